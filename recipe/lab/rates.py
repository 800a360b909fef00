"""How often a model solves problems, and what it does to its answers as their refiner."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from recipe.lab.base_model import messages, prompt_ids, tests_of
from recipe.mini_apps.generator import MiniProblem
from refiner_worker.prompts import RefinerPrompt
from reward.apps import ALL_PASSED_SCORE, score_response

MAX_NEW_TOKENS = 48
BATCH_SIZE = 128


@dataclass(slots=True, kw_only=True, frozen=True)
class Rates:
    """Shares over problems of one split, one answer each (temperature 1; the refiner is greedy)."""

    num_problems: int
    mean_reward: float | None
    solved: float | None
    repeated: float | None  # of the right answers: refined into the very same text; None without any
    improved: float | None  # of the wrong answers: refined into one of a strictly higher reward; None without any
    mean_refined_reward: float | None


def measure(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[MiniProblem], template: Path
) -> Rates:
    """Draw an answer to every problem, let the model refine it, and score both by the APPS reward."""
    prompts = [prompt_ids(tokenizer, problem) for problem in problems]
    answers = generate(model, tokenizer, prompts, do_sample=True)
    rewards = score(problems, answers)
    refiner = RefinerPrompt(template, tokenizer)
    prompts = [
        refiner.encode(messages(problem), text, reward)
        for problem, text, reward in zip(problems, answers, rewards, strict=True)
    ]
    refined = generate(model, tokenizer, prompts, do_sample=False)
    refined_rewards = score(problems, refined)
    rows = list(zip(answers, refined, rewards, refined_rewards, strict=True))
    right = [new == old for old, new, reward, _ in rows if reward == ALL_PASSED_SCORE]
    wrong = [new > reward for _, _, reward, new in rows if reward < ALL_PASSED_SCORE]
    return Rates(
        num_problems=len(problems),
        mean_reward=mean(rewards),
        solved=mean([reward == ALL_PASSED_SCORE for reward in rewards]),
        repeated=mean(right),
        improved=mean(wrong),
        mean_refined_reward=mean(refined_rewards),
    )


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return sum(values) / len(values) if values else None


@torch.no_grad()
def generate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]], *, do_sample: bool
) -> list[str]:
    """Return one answer to every prompt, at temperature 1 or greedily."""
    texts = []
    for start in range(0, len(prompts), BATCH_SIZE):
        batch = prompts[start : start + BATCH_SIZE]
        length = max(map(len, batch))
        ids = torch.tensor([[tokenizer.pad_token_id] * (length - len(row)) + row for row in batch])
        output = model.eval().generate(
            ids,
            attention_mask=(ids != tokenizer.pad_token_id).long(),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=do_sample,
            top_k=0 if do_sample else None,
        )
        texts += tokenizer.batch_decode(output[:, length:], skip_special_tokens=True)
    return texts


def score(problems: Sequence[MiniProblem], answers: Sequence[str]) -> list[float]:
    """Return the APPS reward of every answer.

    Raises:
        ValueError: If one could not be run.
    """

    def reward(problem: MiniProblem, text: str) -> float:
        result = score_response(tests_of(problem), text)
        if result.score is None:
            raise ValueError(f"{problem.problem_id}: {result.detail}")
        return result.score

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(reward, problems, answers))
