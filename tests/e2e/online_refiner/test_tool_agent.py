"""verl's own tool agent loop with a tool: of a session the last turn is refined, charged and imitated, nothing else.

The tiny model has one more token, whose text is a whole call of a tool, and often begins a turn with it.
"""

import itertools
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_advantages import ETA, groups_of, penalty
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.runs.files import Records, read_rows

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
HERE = Path(__file__).parent
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
OUTPUT = "tool\n5\nassistant\n"
NUM_STEPS, MAX_TURNS, MAX_RESPONSE = 5, 3, 64
PLACEMENTS = {
    "colocated": ["trainer.n_gpus_per_node=2"],
    "streaming": ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a job in changing modes left."""

    metrics: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    refinements: list[dict[str, Any]]


@pytest.fixture(scope="module")
def tool_llama(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the tiny model with the token that calls the tool, and return its folder."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    tokenizer.add_tokens([AddedToken(CALL, normalized=False)])
    call = tokenizer.convert_tokens_to_ids(CALL)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():  # as write_bigrams: the first column tells of a turn's start, and column 11 is free
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding[call], head[call] = torch.eye(64)[11], torch.zeros(64)
        head[call, 0], head[tokenizer.eos_token_id, 11] = 9.95 / 8, 12 / 8
        head[tokenizer.convert_tokens_to_ids("A"), 0] = 8.5 / 8
    folder = tmp_path_factory.mktemp("tool_llama")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=PLACEMENTS)
def trained(
    request: pytest.FixtureRequest,
    start_marked: Callable,
    letters_job: list[str],
    tool_llama: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Trained:
    folder = tmp_path_factory.mktemp("tools")
    settings = [
        "platform=cpu",
        f"run_dir={folder}/run",
        *letters_job,
        f"actor_rollout_ref.model.path={tool_llama}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={HERE / 'calculator.py'}",
        f"actor_rollout_ref.rollout.multi_turn.max_assistant_turns={MAX_TURNS}",
        f"data.max_response_length={MAX_RESPONSE}",
        "actor_rollout_ref.rollout.max_model_len=256",
        "refiner.template=dialogue",
        f"constraint.eta={ETA}",
        "measure.cross_entropy_all_every=1",
        f"trainer.total_training_steps={NUM_STEPS}",
        "trainer.total_epochs=9",
        "trainer.save_freq=-1",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        *PLACEMENTS[request.param],
    ]
    job = start_marked(
        ["-m", "recipe.cpu_platform.launch", str(HERE / "mode_cycle_probe.py"), str(folder), "dapo", *settings],
        cwd=folder,
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    return Trained(
        metrics=list(read_rows(folder / "run" / "metrics.jsonl")),
        steps=[torch.load(folder / f"{step}.pt", weights_only=False) for step in range(1, NUM_STEPS + 1)],
        refinements=list(map(json.loads, Records(f"{folder}/run/refinements").lines())),
    )


def start_of(mask: list[int]) -> int:
    """Return where the last of a mask's runs begins; it is one of ones."""
    runs = [(bit, len(list(run))) for bit, run in itertools.groupby(mask)]
    assert runs[-1][0] == 1
    return len(mask) - runs[-1][1]


def pairs_of(step: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row: pair for row, pair in step["refined"].items() if pair["accepted"]}


def test_sessions_have_turns_with_tools_and_are_refined(trained: Trained) -> None:
    assert [row["step"] for row in trained.metrics] == list(range(1, NUM_STEPS + 1))
    assert max(row["training/num_turns/max"] for row in trained.metrics) == 2 * MAX_TURNS
    assert min(row["training/num_turns/min"] for row in trained.metrics) == 2
    for row, step in zip(trained.metrics, trained.steps, strict=True):
        assert row["actor/grad_norm"] > 0
        assert row["refiner/num_accepted"] == len(pairs_of(step))
    for mode in ("penalty", "sft"):
        steps = [step for step in trained.steps if step["settings"]["mode"] == mode]
        starts = [start_of(step["response_mask"][index]) for step in steps for index in pairs_of(step)]
        assert len(steps) == 2
        assert sum(start > 0 for start in starts) >= 2, "too few refined turns behind a tool to show anything"


def test_only_the_last_turn_is_charged(trained: Trained) -> None:
    """Advantages against plain Python: before the last turn they are verl's own."""
    num_later = 0
    for step in trained.steps:
        groups = groups_of(step)
        for index, (response, mask) in enumerate(zip(step["responses"], step["response_mask"], strict=True)):
            start, charged = start_of(mask), [0.0] * len(response)
            if step["settings"]["mode"] == "penalty" and index in pairs_of(step):
                turn = penalty(response[start:], pairs_of(step)[index], step["settings"]["alignment"])
                charged = [0.0] * start + turn
                assert any(charged) or step["settings"]["alignment"] == "diff", "an edit may take nothing out"
            rewards = groups[step["group"][index]]
            outcome = (sum(step["rm_scores"][index]) - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-6)
            expected = [(outcome + (sum(charged[t:]) if t >= start else 0.0)) * own for t, own in enumerate(mask)]
            # Rewards of sessions are near to each other: what the group's spread divides has fewer digits in float32.
            assert step["advantages"][index] == pytest.approx(expected, abs=1e-4)
            num_later += start > 0 and sum(charged) < -0.01
    assert num_later >= 1, "no charged turn behind a tool"


def test_the_policy_is_asked_for_refinements_in_the_whole_context(trained: Trained, tool_llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tool_llama, dtype=torch.float32)
    step = trained.steps[0]
    for index, pair in step["refined"].items():
        response, ids = step["responses"][index], pair["ids"]
        context = step["prompts"][index] + response[: start_of(step["response_mask"][index])]
        with torch.no_grad():
            table = model(torch.tensor([context + ids])).logits[0].log_softmax(-1)
        expected = [table[len(context) + t - 1, token].item() for t, token in enumerate(ids)]
        assert pair["log_probs"] == pytest.approx(expected, abs=2e-6, rel=1e-6)


def test_the_loss_imitates_what_the_policy_was_asked_for(trained: Trained) -> None:
    row = next(
        row for row, step in zip(trained.metrics, trained.steps, strict=True) if step["settings"]["mode"] == "sft"
    )
    assert row["actor/sft_cross_entropy"] == pytest.approx(row["constraint/cross_entropy_accepted"], abs=1e-5)
    assert row["actor/sft_cross_entropy"] > 0


def test_records_hold_the_turn_and_the_session_before_it(trained: Trained) -> None:
    later = [row for row in trained.refinements if OUTPUT in row["prompt"][0]["content"]]
    assert 0 < len(later) < len(trained.refinements)
    for row in trained.refinements:
        for text in (row["response"], row["refined"]):
            assert text is None or "tool\n" not in text
        if row["refined_reward"] is not None:
            assert (row["verdict"] == "accepted") == (row["refined_reward"] > row["reward"])
        (message,) = row["prompt"]
        assert message["content"].count(CALL) == message["content"].count(OUTPUT) < MAX_TURNS
        assert (row in later) == (CALL in message["content"])
