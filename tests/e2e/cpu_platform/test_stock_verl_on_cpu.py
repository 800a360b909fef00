"""Stock verl, untouched, trains on CPU once the environment variable and the config group are given."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(c.islower() for c in solution_str) / max(len(solution_str), 1)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("num_workers", [1, 2])
def test_grpo_trains_two_steps(
    num_workers: int, start_marked: Callable, tiny_llama: Path, letter_prompts: Path, tmp_path: Path
) -> None:
    """GRPO with 1 and with 2 workers (2 FSDP ranks, 2 vLLM replicas) ends well and leaves no process."""
    reward = tmp_path / "letters.py"
    reward.write_text(REWARD)
    metrics_file = tmp_path / "metrics.jsonl"
    job = start_marked(
        [
            *("-m", "verl.trainer.main_ppo", "hydra.searchpath=[pkg://recipe.cpu_platform.config]", "+platform=cpu"),
            f"trainer.n_gpus_per_node={num_workers}",
            "algorithm.adv_estimator=grpo",
            *(f"data.train_files={letter_prompts}", f"data.val_files={letter_prompts}", "data.train_batch_size=8"),
            *("data.max_prompt_length=64", "data.max_response_length=16", "data.dataloader_num_workers=0"),
            f"actor_rollout_ref.model.path={tiny_llama}",
            *(
                "actor_rollout_ref.actor.ppo_mini_batch_size=8",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            ),
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.rollout.n=4",
            *("actor_rollout_ref.rollout.max_model_len=128", "actor_rollout_ref.rollout.max_num_batched_tokens=2048"),
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
            f"reward.custom_reward_function.path={reward}",
            *("trainer.logger=[console,file]", "trainer.val_before_train=False"),
            *(
                "trainer.total_training_steps=2",
                "trainer.total_epochs=1",
                "trainer.save_freq=-1",
                "trainer.test_freq=-1",
            ),
            f"hydra.run.dir={tmp_path}",
        ],
        environment={
            "VERL_USE_EXTERNAL_MODULES": "recipe.cpu_platform.activate",
            "VERL_FILE_LOGGER_PATH": str(metrics_file),
        },
        cwd=tmp_path,
    )
    assert job.wait(400) == 0, job.output()[-6000:]
    assert job.survivors() == []

    steps = [json.loads(line)["data"] for line in metrics_file.read_text().splitlines()]
    assert [step["training/global_step"] for step in steps] == [1, 2]
    for step in steps:
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/rewards/mean"):
            assert math.isfinite(step[name]), (name, step[name])
        assert step["actor/grad_norm"] > 0
        # The second step's rollouts come from synced weights: stale or broken ones differ by tenths.
        assert step["training/rollout_probs_diff_max"] < 1e-3, step
        assert 0.1 < step["actor/perf/max_memory_allocated_gb"] < 10
