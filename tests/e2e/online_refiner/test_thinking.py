"""Models that think, in whole jobs.

The letters model is told to think between an a and a b. SmolLM2's chat template opens a thought, which ends where its
program begins.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from recipe.runs.files import Records, read_rows

THINKS = ["refiner.thoughts=[a,b]", "refiner.template=dialogue", "actor_rollout_ref.rollout.max_model_len=640"]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sft", "penalty"])
def test_a_refinement_begins_with_the_responses_thought(train_letters: Callable, tmp_path: Path, mode: str) -> None:
    trained = train_letters(tmp_path, 2, *THINKS, f"constraint.mode={mode}", "constraint.eta=0.1")
    scored = [one for one in trained.refinements if one["verdict"] in ("accepted", "not_better")]
    thought = {one["key"]: one["response"][: one["response"].rfind("b") + 1] for one in scored}
    assert any(thought.values())
    assert all(one["refined"].startswith(thought[one["key"]]) for one in scored)
    cut = [one for one in trained.refinements if one["response"].startswith("a") and "b" not in one["response"]]
    assert {one["verdict"] for one in cut} <= {"no_answer"}
    for name in ("tokens/refine_thought", "tokens/refine_kept", "refiner/num_accepted"):
        assert sum(step[name] for step in trained.steps) > 0, name
    assert all(step["actor/grad_norm"] > 0 for step in trained.steps)


OPENS, CLOSES = "Thought:", "```python"
BEGUN = f"{OPENS} I read the input, then print what is asked for.\n"
"""So a small model soon ends it."""


@pytest.fixture(scope="module")
def thinker(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return SmolLM2 with a chat template that opens a thought."""
    folder = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(smollm2, folder)
    template = folder / "chat_template.jinja"
    begin = "<|im_start|>assistant\n"
    assert template.read_text().count(begin) == 1
    template.write_text(template.read_text().replace(begin, begin + BEGUN))
    return folder


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("rewrites", ["answer", "response"])
@pytest.mark.parametrize("mode", ["sft", "penalty"])
def test_the_actor_learns_nothing_of_the_refiners_thought(
    start_marked: Callable,
    thinker: Path,
    own_ray: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    rewrites: str,
) -> None:
    seen, run_dir = tmp_path / "seen", tmp_path / "run"
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "helpers"))
    seen.mkdir()
    job = start_marked(
        [
            "-m",
            "recipe.online_refiner.main",
            "experiment=quickstart",
            f"actor_rollout_ref.model.path={thinker}",
            "console=log",
            f"run_dir={run_dir}",
            "trainer.total_training_steps=2",
            "trainer.save_freq=-1",
            "actor_rollout_ref.model.external_lib=seen_by_actor",
            f"constraint.mode={mode}",
            f"refiner.thoughts=['{OPENS}','{CLOSES}']",
            f"refiner.rewrites={rewrites}",
            "refiner.template=apps",
            "refiner.thought_length=64",
            "refiner.response_length=192",
            "data.max_response_length=128",
            "measure.num_kl_rollouts=0",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
            # Whatever is scored acts, so that there are rows to look at.
            "constraint.reward_gate=false",
            "actor_rollout_ref.rollout.max_model_len=640",
        ],
        cwd=tmp_path,
        environment={**own_ray, "SEEN_BY_ACTOR": str(seen)},
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert len(steps) == 2 and all(step["tokens/refine_thought"] > 0 for step in steps)
    tokenizer, num_rows = AutoTokenizer.from_pretrained(thinker), 0
    for columns in map(torch.load, seen.iterdir()):
        for row in range(len(columns["refine_mask"])):
            if columns["refine_mask"][row].any():
                num_rows += 1
                own = {name: values[row] for name, values in columns.items()}
                assert mode != "sft" or "refine_weights" in own
                assert_no_thought_is_learned(tokenizer, own, rewrites)
    verdicts = [json.loads(line)["verdict"] for line in Records(f"{run_dir}/refinements").lines()]
    assert num_rows > 0 or rewrites == "response", verdicts


def assert_no_thought_is_learned(tokenizer: PreTrainedTokenizerBase, row: dict[str, Tensor], rewrites: str) -> None:
    """Assert that what the actor learns from, of one refined row, has no thought of the refiner's."""

    def charged_before(ids: Tensor, charges: Tensor, num_letters: int) -> bool:
        ends = [len(tokenizer.decode(ids[: place + 1])) for place in range(len(ids))]
        return any(charge for end, charge in zip(ends, charges.tolist(), strict=True) if end <= num_letters)

    text, own = tokenizer.decode(row["refine_ids"]), tokenizer.decode(row["responses"])
    assert text.count(CLOSES) == (own.count(CLOSES) if rewrites == "answer" else 1), "no mark of the refiner's"
    if rewrites == "answer":
        before, mark, _ = own.rpartition(CLOSES)
        kept = len(before + mark)
        assert text[:kept] == own[:kept]
        if "refine_weights" in row:
            assert not charged_before(row["refine_ids"], row["refine_weights"], kept)
        if "refine_charged" in row:
            assert not charged_before(row["responses"], row["refine_charged"], kept)
