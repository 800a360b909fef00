"""The design of the collapse experiment: its runs phase by phase, its outcomes and its contrasts (see PROTOCOL.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.lab.arms import ALGORITHMS, LIKE, NONE, TUNED, Overrides, kl_in_loss
from experiments.lab.protocol import SEED_KEYS

EXPERIMENT = "lab_sums"
QUESTIONS = (
    "reasoning-gym --tasks chain_sum --number 400 --seed 0 --graded-by math "
    "--set chain_sum.max_terms=2 chain_sum.max_digits=1 --val-fraction 0.4"
)
"""The arguments of ``online-refiner prepare`` that write the questions, but for the folder."""
NUM_ANSWERS = 2
"""The answers to each held-out question in a validation."""
HELD_OUT = f"val-core/reasoning_gym/chain_sum/acc/mean@{NUM_ANSWERS}"
NUM_STEPS = 24
VALIDATIONS = (6, 12, 18, 24)
END = (18, 24)
"""The steps whose mean validation is a run's end: a validation of 140 answers has a standard error of 0.04."""
COMMON: Overrides = (
    f"trainer.total_training_steps={NUM_STEPS}",
    f"trainer.test_freq={VALIDATIONS[0]}",
    f"trainer.save_freq={NUM_STEPS}",
    f"actor_rollout_ref.rollout.val_kwargs.n={NUM_ANSWERS}",
    "trainer.val_before_train=false",  # START measures it, for all runs
    "trainer.resume_mode=disable",
    "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",  # what the log-loss is measured on
    # A refinement may be as long as a response, and a second sample is greedy as a refinement is.
    "refiner.response_length=${data.max_response_length}",
    "refiner.temperature=0.0",
    # The rollout's log-probs differ from the actor's by more than in float32, so the actor computes them again.
    "algorithm.rollout_correction.bypass_mode=false",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
)
ON_CPUS: Overrides = (
    # CPUs that multiply matrices in bfloat16 do so four times as fast. The weights stay in float32.
    "actor_rollout_ref.rollout.dtype=bfloat16",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=bf16",
    # The backward pass of short rows takes a quarter less time than with sdpa.
    "actor_rollout_ref.model.override_config.attn_implementation=eager",
)
"""The overrides that make a run fast on CPUs; on a GPU verl's defaults are bfloat16 and flash attention."""
NUM_HELD_OUT = 70
START_ANSWERS = 8
"""The answers to each held-out question that measure the reference model."""
START: Overrides = (
    "trainer.val_before_train=true",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.validation_data_dir=${run_dir}/validation",  # a run's metrics have no validation before training
    f"actor_rollout_ref.rollout.val_kwargs.n={START_ANSWERS}",
    "measure.num_kl_rollouts=0",
)
RATES = (5e-5, 1e-4, 2e-4, 4e-4, 8e-4)
LOWER = (2e-5, 1e-5)
"""The rates that follow if both runs collapse at the lowest of `RATES` already."""
START_SEED, CALIBRATION_SEED = 200, 201
CALIBRATION_KL = 0.01
"""The weight that tuning chose on this task at 2e-5 (results/lab_sums.yaml)."""
KL_WEIGHTS = (0.01, 0.1, 1.0)
SEEDS = tuple(range(1, 9))


def sft(eta: float) -> Overrides:
    """Return the overrides of imitating better refinements."""
    return TUNED["sft"][0](eta)


ARMS: dict[str, Overrides] = {
    "none": NONE,
    **{f"static_kl_{weight:g}": kl_in_loss(weight) for weight in KL_WEIGHTS},
    "sft_1": sft(1.0),
    "second_sample_1": ("control=resample", *sft(1.0)),
    "own_solved_1": (*sft(1.0), *LIKE["sft"]["own_solved"]),
    "lagrangian_1": TUNED["lagrangian"][0](1.0),
    "sft_0.1": sft(0.1),
}
"""The arms of the final phase: the overrides of the lab's preset by the arm's name."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A planned comparison of two arms by one outcome; `static_kl` is the weight that ends best."""

    outcome: str
    first: str
    second: str


CONTRASTS = (
    Contrast("collapsed", "sft_1", "static_kl"),
    Contrast("collapsed", "sft_1", "none"),
    Contrast("collapsed", "second_sample_1", "static_kl"),
    Contrast("collapsed", "sft_1", "second_sample_1"),
    Contrast("collapsed", "sft_1", "own_solved_1"),
    Contrast("collapsed", "lagrangian_1", "static_kl"),
    Contrast("end", "sft_1", "static_kl"),
    Contrast("end", "sft_1", "second_sample_1"),
    Contrast("log_loss", "sft_1", "static_kl"),
)
Line = Mapping[str, Any]
"""A run as it is committed: `run`, `arm`, `rate`, `seed`, `start` (the reference model's held-out share), `held_out`
by step, `kl`, `log_loss`, `tokens` written and `cpu_s`."""
Lines = Mapping[str, Sequence[Line]]
"""The committed lines of each phase: `calibrate` and `final`."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the trainer."""

    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """The run's name in its line and its folder."""
        return f"{self.arm}-lr{self.rate:g}-seed{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """The overrides of the trainer's configuration."""
        return [*overrides(ARMS[self.arm], self.rate, self.seed), *ON_CPUS]


def overrides(arm: Overrides, rate: float, seed: int) -> list[str]:
    """Return the overrides of the trainer's configuration for an arm, on any platform."""
    seeds = [f"{key}={seed}" for key in SEED_KEYS]
    learning = f"actor_rollout_ref.actor.optim.lr={rate}"
    return [f"experiment={EXPERIMENT}", *ALGORITHMS["grpo"], *COMMON, *arm, learning, *seeds]


def next_run(lines: Lines) -> tuple[str, Job] | None:
    """Return the phase and the first run that has no line; None if there is none, or no rate makes runs collapse."""
    rate, missing = calibrate(lines["calibrate"])
    if missing is not None:
        return "calibrate", missing
    if rate is None:
        return None
    known = {line["run"] for line in lines["final"]}
    return next((("final", job) for job in final(rate) if job.name not in known), None)


def final(rate: float) -> list[Job]:
    """Return the runs of the final phase in their order."""
    return [Job(arm, rate, seed) for seed in SEEDS for arm in ARMS]


def calibrate(lines: Sequence[Line]) -> tuple[float | None, Job | None]:
    """Return the lowest rate at which both calibration runs collapse, or else the run that is missing to find it.

    Neither is returned if both runs collapse at no rate.
    """
    chosen = None
    for rate in RATES:
        fails, missing = _fails(lines, rate)
        if missing is not None:
            return None, missing
        if fails:
            chosen = rate
            break
    for rate in LOWER if chosen == RATES[0] else ():
        fails, missing = _fails(lines, rate)
        if missing is not None:
            return None, missing
        if not fails:
            break
        chosen = rate
    return chosen, None


def _fails(lines: Sequence[Line], rate: float) -> tuple[bool, Job | None]:
    """Return whether both calibration runs collapse at a rate, and the run that is missing to say so.

    Where static KL holds, the run without a constraint decides nothing, so it is left out.
    """
    known = {line["run"]: line for line in lines}
    for arm in (f"static_kl_{CALIBRATION_KL:g}", "none"):
        job = Job(arm, rate, CALIBRATION_SEED)
        if job.name not in known:
            return False, job
        if not collapsed(known[job.name]):
            return False, None
    return True, None


def best_kl(lines: Sequence[Line]) -> str:
    """Return the arm of static KL with the highest mean end; of equal ones the smallest weight."""
    arms = [f"static_kl_{weight:g}" for weight in KL_WEIGHTS]
    return max(arms, key=lambda arm: fmean(end(line) for line in lines if line["arm"] == arm))


def end(line: Line) -> float:
    """Return the mean held-out share at the last two validations."""
    return fmean(line["held_out"][str(step)] for step in END)


def best(line: Line) -> float:
    """Return the highest held-out share of a run, that before training included."""
    return max(line["start"], *line["held_out"].values())


def collapsed(line: Line) -> bool:
    """Return whether a run ends below half of its best validation, or below the reference model."""
    return end(line) < best(line) / 2 or end(line) < line["start"]
