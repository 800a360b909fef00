"""Jobs with SmolLM2 that learns: the arms of the lab, and the pair with and without the refiner."""

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.collapse import design
from experiments.collapse import page as collapse
from experiments.collapse.runner import line_of
from experiments.gpu_quarter import training
from experiments.gpu_quarter.registry import ROOT, Figures, Place, job
from experiments.lab.arms import NONE, TUNED, Overrides
from experiments.lab.jobs import PRESETS
from experiments.lab.protocol import HELD_OUT
from recipe.online_refiner import metric_names
from recipe.smoke import letters

LEARNING = (
    "step",
    metric_names.REWARD,
    metric_names.KL_REF,
    metric_names.IMPROVEMENT_RATIO,
    metric_names.STEP_S,
    "response_length/mean",
    HELD_OUT,
    design.HELD_OUT,
)
"""The metrics that are kept of each step."""


def programs(place: Place) -> Path:
    """Return the folder of the lab's programming problems; written once."""
    folder = place.folder("mini_apps")
    if not (folder / "val.parquet").exists():
        command = [sys.executable, "-m", "experiments.mini_apps", "--output", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder


LAB: dict[str, Overrides] = {
    "none": NONE,
    "static-kl": TUNED["kl_in_loss"][0](0.01),
    "sft": TUNED["sft"][0](0.1),
    "penalty": TUNED["penalty"][0](1e-3),
}
"""The arms, each with the middle of the weights that the protocol tries (``experiments/results/lab_gpu.yaml``)."""


def lab(place: Place, arm: str) -> Figures:
    """Train an arm of the lab with one seed."""
    data, run_dir, num_steps = programs(place), place.fresh(f"lab-{arm}"), place.choose(60, 1)
    overrides = [
        PRESETS,
        "experiment=lab_gpu",
        f"platform={place.platform}",
        *LAB[arm],
        f"data.train_files={data}/train.parquet",
        f"data.val_files={data}/val.parquet",
        f"trainer.total_training_steps={num_steps}",
    ]
    if place.is_rehearsal:  # a model of two layers, which reads letters
        letters.save_llama(run_dir.parent / "model")
        overrides += [
            f"actor_rollout_ref.model.path={run_dir.parent}/model",
            "data.train_batch_size=4",
            "data.max_prompt_length=1024",
            "data.max_response_length=16",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
            "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
            "actor_rollout_ref.rollout.max_model_len=1280",
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
            f"actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes={64 << 20}",
            "refiner.response_length=16",
            "trainer.test_freq=-1",
        ]
    else:
        overrides.append(f"actor_rollout_ref.model.path={place.smollm2()}")
    return _learning(run_dir, overrides, num_steps)


def _learning(run_dir: Path, overrides: Sequence[str], num_steps: int) -> Figures:
    """Train, and return the figures with the metrics of learning alone, since there are many steps."""
    code, found = training.train(training.ours(run_dir, overrides), run_dir / "metrics.jsonl")
    found["faults"] = training.step_faults(code, found, range(1, num_steps + 1))
    found["steps"] = [{name: step[name] for name in LEARNING if name in step} for step in found["steps"]]
    return found


PAIR: dict[str, Overrides] = {"none": NONE, "sft": ()}
"""The arms of the pair on sums: no constraint, and the defaults."""


def pair(place: Place, arm: str) -> Figures:
    """Train SmolLM2 on sums at the learning rate of the collapse experiment, and return its line as well."""
    rate, _ = design.calibrate(collapse.read(collapse.RESULTS)["calibrate"])
    run = design.Job(arm, rate or design.RATES[0], design.SEEDS[0])
    run_dir, data = place.fresh(f"pair-{arm}"), collapse.RESULTS / "questions"  # a machine with a GPU has no generator
    num_steps, every = place.choose((60, 6), (2, 2))
    overrides = [
        PRESETS,
        *design.overrides(PAIR[arm], run.rate, run.seed),
        f"platform={place.platform}",
        f"actor_rollout_ref.model.path={place.smollm2()}",
        f"data.train_files={data}/train.parquet",
        f"data.val_files={data}/val.parquet",
        f"trainer.total_training_steps={num_steps}",
        f"trainer.test_freq={every}",
        f"trainer.save_freq={num_steps}",
        "console=log",
    ]
    found = _learning(run_dir, overrides, num_steps)
    if not found["faults"]:
        start = collapse.read_start(collapse.RESULTS)
        assert start is not None, "it is committed"
        found["line"] = line_of(run, run_dir, start["solved"], range(every, num_steps + 1, every))
    return found


for _arm in PAIR:
    job(f"pair-{_arm}", f"SmolLM2 on sums, 60 steps: {_arm}", seconds=420, measures=False)(partial(pair, arm=_arm))


for _arm in LAB:
    _about = f"one seed of the lab with SmolLM2: {_arm}"
    job(f"lab-{_arm}", _about, seconds=700, limit_s=1000, measures=False)(partial(lab, arm=_arm))
