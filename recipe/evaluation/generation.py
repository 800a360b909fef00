"""Samples from a model, by vLLM in this process."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recipe.cpu_platform import ENVIRONMENT
from recipe.evaluation.benchmarks import Task
from recipe.evaluation.prompts import PROMPTS, PromptFormat
from recipe.evaluation.samples import Sample


@dataclass(slots=True, kw_only=True, frozen=True)
class Sampling:
    """How answers are drawn; the defaults stand here only."""

    num_samples: int = 1  # a task
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    max_new_tokens: int = 768
    seed: int = 0  # of each task's first sample: the same seed draws the same answers

    def __post_init__(self) -> None:
        """Reject what cannot be drawn."""
        if self.num_samples < 1 or self.max_new_tokens < 1:
            raise ValueError("--num-samples and --max-new-tokens must be at least 1")
        if not 0 <= self.temperature <= 2 or not 0 < self.top_p <= 1:  # as vLLM wants it
            raise ValueError("--temperature must be from 0 to 2, and --top-p above 0 and at most 1")
        if self.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                f"--num-samples {self.num_samples} of greedy sampling are all the same: set --temperature above 0"
            )


@dataclass(slots=True, kw_only=True, frozen=True)
class Generated:
    """What a model gave."""

    samples: list[Sample]  # [num_tasks * num_samples] in the order of the tasks
    example_prompt: str  # of the first task, as the model got it


def generate(model: str, tasks: Sequence[Task], prompt: str, sampling: Sampling) -> Generated:
    """Draw samples for every task.

    Args:
        model: Folder or hub id.
        tasks: At least one.
        prompt: A key of :data:`recipe.evaluation.prompts.PROMPTS`.
        sampling: How.

    Raises:
        ValueError: If the model has no chat template though one is needed, or a prompt does not fit.
        OSError: If the model cannot be read.
    """
    layout = PROMPTS[prompt]
    if tasks[0].family not in layout.families:
        raise ValueError(f"--prompt {prompt} is not for these problems: set --prompt chat")
    is_cpu = prepare_vllm()
    from transformers import AutoConfig, AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(model)
    if layout.is_chat and not tokenizer.chat_template:
        raise ValueError(f"{model} has no chat template: set --prompt completion")
    texts = [_render(tokenizer, layout, task) for task in tasks]
    # A chat template writes the special tokens itself.
    prompts = [tokenizer(text, add_special_tokens=not layout.is_chat).input_ids for text in texts]
    engine = LLM(
        model=model,
        dtype="float32" if is_cpu else "auto",
        enforce_eager=is_cpu,
        enable_chunked_prefill=not is_cpu,  # behind a part of a prompt vLLM turns a seed back, as only a GPU's can be
        max_model_len=_context_tokens(AutoConfig.from_pretrained(model), prompts, tasks, sampling),
        seed=sampling.seed,
    )
    outputs = engine.generate(
        [{"prompt_token_ids": tokens} for tokens in prompts],
        [
            SamplingParams(
                n=sampling.num_samples,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                stop=list(layout.stops(task)),
                seed=sampling.seed,
            )
            for task in tasks
        ],
    )
    samples = [
        Sample(task=task, text=answer.text, program=layout.program(task, answer.text))
        for task, output in zip(tasks, outputs, strict=True)
        for answer in output.outputs
    ]
    return Generated(samples=samples, example_prompt=texts[0])


def prepare_vllm() -> bool:
    """Set the environment that vLLM reads when it is imported; returns whether there is no GPU."""
    import torch

    if torch.cuda.is_available():
        return False
    os.environ.update(ENVIRONMENT)
    import recipe.cpu_platform.activate  # noqa: F401  # its settings of vLLM on a CPU

    return True


def _render(tokenizer: Any, layout: PromptFormat, task: Task) -> str:
    if not layout.is_chat:
        return layout.text(task)
    messages = list(task.messages) or [{"role": "user", "content": layout.text(task)}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _context_tokens(config: Any, prompts: list[list[int]], tasks: Sequence[Task], sampling: Sampling) -> int:
    """The context that is needed, or all that the model has: answers then end earlier."""
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    needed = len(prompts[longest]) + sampling.max_new_tokens
    available = getattr(config.get_text_config(), "max_position_embeddings", None) or needed
    if len(prompts[longest]) >= available:
        raise ValueError(
            f"the prompt of {tasks[longest].task_id} has {len(prompts[longest])} tokens, the model's context "
            f"{available}: evaluate a model with a longer context"
        )
    return min(needed, available)
