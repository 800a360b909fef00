"""A small task for whole jobs (the tiny model is rewarded for small letters), and stock verl's run of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

STOCK_VERL = [
    *("-m", "verl.trainer.main_ppo", "hydra.searchpath=[pkg://recipe.cpu_platform.config]", "+platform=cpu"),
    "trainer.logger=[console,file]",
]
CPU = {"VERL_USE_EXTERNAL_MODULES": "recipe.cpu_platform.activate"}
NUM_STEPS = 3

NATIVE_CRASH = ["assert -11 == 0", r"\*\*\* SIGSEGV received", "Fatal Python error: Segmentation fault"]
"""Once in hundreds of runs gloo's own thread (``pt_gloo_runloop``) ends a rank in malloc. Such a test runs once more,
and pytest's last line says so; any other failure counts at once."""

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(c.islower() for c in solution_str) / max(len(solution_str), 1)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test whose job crashed in native code run once more."""
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=NATIVE_CRASH))


@pytest.fixture(scope="session")
def letters_job(tiny_llama: Path, letter_prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return verl overrides of the task: 4 prompts a step, 4 responses each."""
    reward = tmp_path_factory.mktemp("reward") / "letters.py"
    reward.write_text(REWARD)
    return [
        *("algorithm.adv_estimator=grpo", f"actor_rollout_ref.model.path={tiny_llama}"),
        *(f"data.train_files={letter_prompts}", f"data.val_files={letter_prompts}", "data.train_batch_size=4"),
        *("data.max_prompt_length=64", "data.max_response_length=16", "data.dataloader_num_workers=0"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"),
        # Rows come in another order in each run. Adam would turn that rounding noise into steps of the learning rate.
        *("actor_rollout_ref.actor.optim.optimizer=SGD", "actor_rollout_ref.actor.optim.lr=2e-2"),
        "actor_rollout_ref.actor.optim.override_optimizer_config={momentum:0.9}",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
        *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"),
        *("actor_rollout_ref.rollout.max_model_len=128", "actor_rollout_ref.rollout.max_num_batched_tokens=2048"),
        f"reward.custom_reward_function.path={reward}",
        *("trainer.project_name=e2e", "trainer.experiment_name=letters"),
        *("trainer.val_before_train=False", "trainer.test_freq=-1"),
    ]


@pytest.fixture(scope="session")
def run_stock(start_marked: Callable) -> Callable[..., Path]:
    """Return a function that runs stock verl with overrides in a folder, and returns its metrics.jsonl."""

    def run(folder: Path, *overrides: str) -> Path:
        metrics = folder / "metrics.jsonl"
        command = [
            *STOCK_VERL,
            f"hydra.run.dir={folder}",
            f"trainer.default_local_dir={folder}/checkpoints",
            *overrides,
        ]
        job = start_marked(command, environment={**CPU, "VERL_FILE_LOGGER_PATH": str(metrics)}, cwd=folder)
        assert job.wait(400) == 0, job.output()[-6000:]
        assert job.survivors() == []
        return metrics

    return run


@pytest.fixture(scope="session")
def replayed_job(letters_job: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides of a job of 3 steps that keeps its rollouts, or uses those kept by the run before."""
    return [
        *letters_job,
        *(f"trainer.total_training_steps={NUM_STEPS}", "trainer.total_epochs=3"),
        *("skip.rollout_tq.enable=True", f"skip.rollout_tq.dump_dir={tmp_path_factory.mktemp('rollouts')}"),
        f"skip.rollout_tq.steps={list(range(1, NUM_STEPS + 1))}",
    ]


@pytest.fixture(scope="session")
def stock(run_stock: Callable, replayed_job: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with stock verl on one worker, and return its folder with metrics, checkpoint and kept rollouts."""
    folder = tmp_path_factory.mktemp("stock")
    run_stock(folder, *replayed_job, f"trainer.save_freq={NUM_STEPS}")
    return folder
