"""Whole jobs on prompts with pictures: the policy sees them, and so does the refiner."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_vision

REPOSITORY = Path(__file__).parents[3]
SHAPES = REPOSITORY / "examples" / "images" / "shapes.py"
SEEING = {"PYTHONPATH": str(tiny_vision.PACKAGES)}
pytestmark = pytest.mark.skipif(
    not tiny_vision.PACKAGES.is_dir(), reason="scripts/test.sh could not install requirements/images.txt"
)


def run(*arguments: str | Path) -> None:
    """Run a script in a process that has the packages for pictures."""
    path = os.pathsep.join([str(REPOSITORY), SEEING["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def shapes_job(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides of the letters' job for a model that sees, and for pictures of shapes."""
    folder = tmp_path_factory.mktemp("shapes")
    run(SHAPES, folder)
    run(tiny_vision.__file__, folder / "model", "qwen3_vl")
    return [
        f"actor_rollout_ref.model.path={folder}/model",
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
        "data.max_prompt_length=160",
        "actor_rollout_ref.rollout.max_model_len=192",
        "refiner.template=general",
        "refiner.temperature=1",
    ]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sft", "penalty"])
def test_two_steps_on_pictures(train_letters: Callable, shapes_job: list[str], tmp_path: Path, mode: str) -> None:
    trained = train_letters(tmp_path, 2, *shapes_job, f"constraint.mode={mode}", environment=SEEING)
    for step in trained.steps:
        assert step["refiner/num_accepted"] > 0, "some refinements have more small letters"
        assert step["actor/sft_cross_entropy" if mode == "sft" else "constraint/divergence"] > 0
    shown = [message["content"] for one in trained.refinements for message in one["prompt"]]
    assert shown and all(text.startswith("<image>How many ") for text in shown)
    assert "base64" not in json.dumps(trained.refinements)
