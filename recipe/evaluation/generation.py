"""Samples from a model, by vLLM in this process."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from recipe.cpu_platform import ENVIRONMENT
from recipe.evaluation.benchmarks import Sample, Task
from recipe.preload.noise import drop_expected


@dataclass(slots=True, kw_only=True, frozen=True)
class Sampling:
    """How answers are drawn; the defaults stand here only."""

    num_samples: int = 1  # a task
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    max_new_tokens: int = 768
    seed: int = 0  # of each task's first sample: the same seed draws the same answers


def generate(model: str, tasks: Sequence[Task], sampling: Sampling) -> tuple[list[Sample], str]:
    """Draw samples for every task.

    Args:
        model: Folder or hub id.
        tasks: At least one.
        sampling: How.

    Returns:
        The samples in the order of the tasks, and the first task's prompt as the model got it.

    Raises:
        ValueError: If the model has no chat template, or vLLM cannot sample so.
        OSError: If the model cannot be read.
    """
    is_cpu = prepare_vllm()
    from transformers import AutoConfig, AutoTokenizer
    from vllm import LLM, SamplingParams

    settings = {**asdict(sampling), "n": sampling.num_samples, "max_tokens": sampling.max_new_tokens}
    del settings["num_samples"], settings["max_new_tokens"]
    try:
        wanted = SamplingParams(**settings)
    except Exception as error:  # of classes of vLLM's own, which are no ValueError
        raise ValueError(f"vLLM: {error}") from None
    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        raise ValueError(f"{model} has no chat template: evaluate a base model with evalplus (docs/evaluation.md)")
    texts = [tokenizer.apply_chat_template(task.messages, tokenize=False, add_generation_prompt=True) for task in tasks]
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]  # the template writes them
    # The context that is needed, or all that the model has: answers then end earlier.
    needed = max(map(len, prompts)) + sampling.max_new_tokens
    config = AutoConfig.from_pretrained(model).get_text_config()
    engine = LLM(
        model=model,
        dtype="float32" if is_cpu else "auto",
        enforce_eager=is_cpu,
        enable_chunked_prefill=not is_cpu,  # after a part of a prompt vLLM turns a seed back, as only a GPU's can be
        max_model_len=min(needed, getattr(config, "max_position_embeddings", needed)),
        seed=sampling.seed,
    )
    outputs = engine.generate([{"prompt_token_ids": tokens} for tokens in prompts], wanted)
    samples = [
        Sample(task=task, text=answer.text)
        for task, output in zip(tasks, outputs, strict=True)
        for answer in output.outputs
    ]
    return samples, texts[0]


def prepare_vllm() -> bool:
    """Set the environment that vLLM reads when it is imported; returns whether there is no GPU."""
    import torch

    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else asking begins CUDA, and vLLM's forks cannot
    if torch.cuda.is_available():
        return False
    os.environ.update(ENVIRONMENT)
    drop_expected()
    import recipe.cpu_platform.activate  # noqa: F401  # its settings of vLLM on a CPU

    return True
