"""The paper's tables: every arm is a preset that exists, and the table counts complete runs only."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import reproduce
from recipe.online_refiner import config as configs


@pytest.mark.parametrize("name", reproduce.EXPERIMENTS)
def test_every_arm_is_a_preset(name: str) -> None:
    experiment = reproduce.EXPERIMENTS[name]
    runs = experiment.runs([7], [])
    assert {"refiner", "refiner_sft"} <= runs.keys()
    found = {}
    with initialize_config_dir(str(Path(str(configs.__file__)).parent), version_base=None):
        for arm, of_arm in runs.items():
            ((run, overrides),) = of_arm.items()
            config = compose("online_refiner", overrides=overrides)
            assert run == f"{arm}-seed7" and config.data.seed == config.actor_rollout_ref.rollout.seed == 7
            assert config.trainer.total_training_steps == experiment.num_steps, "the paper's"
            actor = config.actor_rollout_ref.actor
            found[arm] = str((config.constraint, config.algorithm, actor.use_kl_loss, actor.kl_loss_coef))
    assert len(set(found.values())) == len(found)


def test_the_table_is_of_complete_runs(tmp_path: Path) -> None:
    experiment = reproduce.EXPERIMENTS["table3"]
    runs = experiment.runs([1, 2, 3], ["refiner", "static_kl"])
    for name, num_steps, reward in (("refiner-seed1", 20, 0.5), ("refiner-seed2", 20, 0.7), ("refiner-seed3", 19, 9.0)):
        folder = tmp_path / name
        folder.mkdir()
        steps = [
            {"step": n, "reward/mean": reward if n > 18 else 0.0, "timing_s/step": 180.0}
            for n in range(1, num_steps + 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (tmp_path / "refiner-seed1" / "pass_at_1.json").write_text('{"humaneval": 0.25}')
    lines = reproduce.table(experiment, runs, tmp_path, 20).splitlines()
    assert (
        lines[0] == "| arm | seeds | reward | KL, nats a token | accepted | hours | pass@1 HumanEval, % | the paper's |"
    )
    assert lines[2:] == [
        "| `static_kl` | 0 of 3 |  |  |  |  |  | 18.0 |",
        "| `refiner` | 2 of 3 | 0.6 ± 0.14 |  |  | 1 ± 0 | 25 | 20.7 |",
    ]
