"""How often a model solves problems, and what it does to its answers as their refiner."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from recipe.lab.base_model import messages, prompt_ids, tests_of
from recipe.mini_apps.generator import MiniProblem
from refiner_worker.config import MAX_FEEDBACK_TOKENS
from refiner_worker.prompts import RefinerPrompt
from reward.apps import ALL_PASSED_SCORE, score_response

MAX_NEW_TOKENS = 64
BATCH_SIZE = 128


@dataclass(slots=True, kw_only=True, frozen=True)
class Rates:
    """Shares over answers to the problems of one split; policy and refiner at temperature 1. None: of no answers."""

    num_problems: int
    mean_reward: float | None
    solved: float | None
    solved_hard: float | None  # of the answers to problems above the level easy
    repeated: float | None  # of the right answers: refined into the very same text
    improved: float | None  # of the wrong answers: refined into one of a strictly higher reward
    worsened: float | None  # of the wrong answers: refined into one of a lower reward
    verbatim: float | None  # of the wrong answers: refined into the very same text
    canonical: float | None  # of pairs of improved refinements for one problem: both the very same text
    mean_refined_reward: float | None

    @property
    def is_real(self) -> bool:
        """Tell whether the gate has something to do, and a' is more than one known answer."""
        if self.improved is None or self.worsened is None or self.canonical is None:
            return False
        return 0.3 <= self.improved <= 0.5 and self.worsened >= 0.2 and self.canonical < 0.5


def measure(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[MiniProblem],
    template: Path,
    num_answers: int,
) -> Rates:
    """Draw answers to every problem, let the model refine each once, and score all by the APPS reward."""
    problems = [problem for problem in problems for _ in range(num_answers)]
    prompts = [prompt_ids(tokenizer, problem) for problem in problems]
    answers = generate(model, tokenizer, prompts)
    scored = score(problems, answers)
    rewards = [reward for reward, _ in scored]
    refiner = RefinerPrompt(template, tokenizer, {}, {"feedback": MAX_FEEDBACK_TOKENS})
    prompts = [
        refiner.encode(messages(problem), text, reward, told={"feedback": feedback})
        for problem, text, (reward, feedback) in zip(problems, answers, scored, strict=True)
    ]
    refined = generate(model, tokenizer, prompts)
    refined_rewards = [reward for reward, _ in score(problems, refined)]
    rows = list(zip(problems, answers, refined, rewards, refined_rewards, strict=True))
    wrong = [row for row in rows if row[3] < ALL_PASSED_SCORE]
    return Rates(
        num_problems=len(problems) // num_answers,
        mean_reward=mean(rewards),
        solved=mean([reward == ALL_PASSED_SCORE for reward in rewards]),
        solved_hard=mean([row[3] == ALL_PASSED_SCORE for row in rows if row[0].difficulty != "easy"]),
        repeated=mean([old == new for _, old, new, reward, _ in rows if reward == ALL_PASSED_SCORE]),
        improved=mean([new > old for *_, old, new in wrong]),
        worsened=mean([new < old for *_, old, new in wrong]),
        verbatim=mean([old == new for _, old, new, *_ in wrong]),
        canonical=same_pairs((problem.problem_id, text) for problem, _, text, old, new in wrong if new > old),
        mean_refined_reward=mean(refined_rewards),
    )


def same_pairs(texts: Iterable[tuple[str, str]]) -> float | None:
    """Return the share of equal pairs among all pairs of texts for one problem; None without any pair."""
    by_problem: dict[str, Counter[str]] = defaultdict(Counter)
    for problem, text in texts:
        by_problem[problem][text] += 1
    pairs = sum(counts.total() * (counts.total() - 1) for counts in by_problem.values())
    same = sum(number * (number - 1) for counts in by_problem.values() for number in counts.values())
    return same / pairs if pairs else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return sum(values) / len(values) if values else None


@torch.no_grad()
def generate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]) -> list[str]:
    """Return one answer to every prompt, at temperature 1."""
    texts = []
    for start in range(0, len(prompts), BATCH_SIZE):
        batch = prompts[start : start + BATCH_SIZE]
        length = max(map(len, batch))
        ids = torch.tensor([[tokenizer.pad_token_id] * (length - len(row)) + row for row in batch])
        output = model.eval().generate(
            ids,
            attention_mask=(ids != tokenizer.pad_token_id).long(),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=True,
            top_k=0,
        )
        texts += tokenizer.batch_decode(output[:, length:], skip_special_tokens=True)
    return texts


def score(problems: Sequence[MiniProblem], answers: Sequence[str]) -> list[tuple[float, str]]:
    """Return the APPS reward of every answer, and what it says of it.

    Raises:
        ValueError: If one could not be run.
    """

    def reward(problem: MiniProblem, text: str) -> tuple[float, str]:
        result = score_response(tests_of(problem), text)
        if result.score is None:
            raise ValueError(f"{problem.problem_id}: {result.detail}")
        return result.score, result.feedback

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(reward, problems, answers))
