"""The cost of refining: the same training without it, as in the paper, and with each saving added one by one.

    python -m experiments.bench_overhead [--steps 6] [--arms none paper ...] [--output runs/overhead] [--trl PYTHON]
        [OVERRIDE...]

Every arm is a run of the main job that differs in a few keys; overrides (a model, data, `platform=gpu`) hold for all.
Without `experiment=` it is the quickstart's task in groups of 8, as in the paper; `scripts/get_smollm2.py` has prepared
its model. The learning rate is 0, so that every step of every arm samples from the same policy. The first
steps of an arm, in which engines warm up, are left out. Writes `overhead.md` (what the arms cost, and the same by
stage) and `overhead.json`; arms whose run is already complete in the output folder are not run again.

With `--trl`, the Python of an environment that has trl 1.16.0, the arms of `trl_steps.py` are run too: the quickstart's
model, prompts, answers and reward in TRL's trainers.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil

from recipe.online_refiner import metric_names
from recipe.online_refiner.metric_names import seconds_of
from recipe.runs.files import RunDir, read_rows

REPOSITORY = Path(__file__).resolve().parents[1]
ALWAYS = (
    "constraint.mode=penalty",
    "actor_rollout_ref.actor.optim.lr=0",
    "trainer.save_freq=-1",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "measure.num_kl_rollouts=0",
    "trainer.resume_mode=disable",
    "trainer.logger=[console]",
)
TASK = (
    "experiment=quickstart",
    "console=log",
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
)
SKIP = "refiner.skip_reward_at_least=1.0"
CAP = "refiner.max_refinements_per_group=1"
DRAFT = (
    "+refiner.rollout.engine_kwargs.vllm.speculative_config="
    "{method: ngram, num_speculative_tokens: 8, prompt_lookup_max: 4, prompt_lookup_min: 2}"
)
MODEL = "verl-online-refiner/SmolLM2-135M-Instruct"
"""The model's folder in the user's cache, where `scripts/get_smollm2.py` puts it."""
LORA = (
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora_alpha=16",
    "actor_rollout_ref.rollout.max_model_len=640",  # the rollout's servers read the refiner's prompt
)
ARMS = {
    "none": ("without a refiner", ("constraint.mode=none",)),
    "static_kl": (
        "without a refiner, static KL in the loss",
        ("constraint.mode=none", "actor_rollout_ref.actor.use_kl_loss=true"),
    ),
    "sft": ("sft, the default; solved responses are skipped", (SKIP, "constraint.mode=sft")),
    "sft_draft": ("the same with speculative decoding by n-gram lookup", (SKIP, "constraint.mode=sft", DRAFT)),
    "budget": ("sft with refiner.budget=0.1", (SKIP, "constraint.mode=sft", "refiner.budget=0.1")),
    "paper": ("penalty, all responses, after the rollout", ("refiner.skip_reward_at_least=null",)),
    "skip": ("+ solved responses are skipped", (SKIP,)),
    "cap": ("+ the worst response of each group only", (SKIP, CAP)),
    "in_place": ("accepted responses scored in place as well", (SKIP, "constraint.target=in_place")),
    "failed": (
        "failed responses scored in place given a solved sibling; nothing is decoded",
        (SKIP, "constraint.target=in_place", "constraint.reward_gate=failed"),
    ),
    "draft": ("+ speculative decoding by n-gram lookup", (SKIP, CAP, DRAFT)),
    "dedicated": (
        "+ a replica of its own, streaming",
        (SKIP, CAP, DRAFT, "refiner.placement=dedicated", "refiner.n_gpus_per_node=1"),
    ),
    "lora_none": ("LoRA policy, without a refiner", ("constraint.mode=none", *LORA)),
    "shared": (
        "LoRA policy, its rollout's server refines, streaming",
        (SKIP, CAP, "refiner.placement=shared", *LORA),
    ),
}
"""The arms by name, each with a description and its overrides. Each saving (+) is added to the one above it."""
TRL_ARMS = {
    "trl": "TRL's GRPOTrainer",
    "trl_kl": "TRL's GRPOTrainer, beta=0.001",
    "trl_sdpo": "TRL's SDPOTrainer, distillation_weight=0.5, the initial model as teacher",
}
BASELINES = {"lora_none": "lora_none", "shared": "lora_none"}


STAGES = {
    "the policy answers": ((*map(seconds_of, ("gen", "reward")),), (metric_names.TOKENS_ROLLOUT,)),
    "the refiner rewrites": (
        (metric_names.REFINE_S, metric_names.WAIT_S),
        (metric_names.TOKENS_REFINE_PROMPT, metric_names.TOKENS_REFINE),
    ),
    "log-probs": (
        (metric_names.LOG_PROB_S, metric_names.KL_S, *map(seconds_of, ("old_log_prob", "ref", "adv"))),
        (metric_names.TOKENS_REFINE_LOG_PROB, metric_names.TOKENS_KL_REF),
    ),
    "the policy learns": ((*map(seconds_of, ("update_actor", "update_weights")),), (metric_names.TOKENS_UPDATE_ACTOR,)),
}
"""The stages that a run reports (``stage.json``), each with the metrics of its seconds and of its tokens."""
POLL_S, MEMORY_POLL_S = 0.05, 10.0
"""Seconds between reads of the stage, and between reads of the memory, which take nearly a second."""
Cost = dict[str, float]
"""The cost of one arm, as medians over its steps in seconds, and these numbers.

``exposed_s``: the seconds that refining adds to a step, as the run itself measures them.
``tokens_per_pair``: prompt and generated tokens of the refiner per accepted pair, over all steps; infinite without any.
``attempted``: the share of the responses that were refined.
``kept``: the share of the acceptances that a budget was expected to keep.
``memory_gb``: the peak memory of all processes together, with shared pages divided among them.
``STAGE, s``, ``STAGE, CPU s``, ``STAGE, tokens``: the cost of each stage.
``rest``: the share of a step that is in no stage.

TRL's arms have seconds and memory only.
"""


def watch(job: subprocess.Popen[bytes], run_dir: RunDir) -> tuple[list[dict[str, float]], float]:
    """Wait for a job, and return the CPU time and memory that all its processes used.

    A process that ends between two stages is counted up to the last change of stage.

    Returns:
        CPU seconds in each stage of each step, the first step first; and GB of memory at the most.
    """
    used: dict[int, float] = {}
    steps: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    before, changed_at, most, looked_at = None, 0, 0, 0.0
    driver = psutil.Process(job.pid)
    while True:
        is_done = job.poll() is not None
        at = run_dir.stage.stat().st_mtime_ns if run_dir.stage.exists() else 0
        if at != changed_at and (stage := run_dir.read_stage()):
            earlier, changed_at, looked_at = sum(used.values()), at, 0.0
            for process in family(driver):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used[process.pid] = sum(process.cpu_times()[:2])
            if before and before["step"]:
                steps[before["step"]][before["stage"]] += sum(used.values()) - earlier
            before = stage
        if is_done:
            return [dict(steps[step]) for step in sorted(steps)], most / 1e9
        if time.monotonic() - looked_at > MEMORY_POLL_S:
            looked_at, now = time.monotonic(), 0
            for process in family(driver):
                with contextlib.suppress(psutil.Error):
                    now += process.memory_full_info().pss
            most = max(most, now)
        time.sleep(POLL_S)


def family(driver: psutil.Process) -> list[psutil.Process]:
    """Return a process and all processes that it started; an empty list if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [driver, *driver.children(recursive=True)]
    return []


def command_of(name: str, num_steps: int, run_dir: RunDir, overrides: list[str], trl: Path | None) -> list[str]:
    """Return the command of an arm, which writes ``metrics.jsonl`` into the folder."""
    if name in TRL_ARMS:
        model = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / MODEL
        program = str(Path(__file__).with_name("trl_steps.py"))
        return [
            str(trl),
            program,
            name,
            str(model),
            "recipe/quickstart/train.parquet",
            str(num_steps),
            str(run_dir.path),
        ]
    command = [sys.executable, "-m", "recipe.online_refiner.main", *overrides, *ALWAYS, *ARMS[name][1]]
    if name == "dedicated" and "platform=gpu" not in overrides:
        command.append("ray_kwargs.ray_init.num_gpus=2")  # logical ones
    return [*command, f"trainer.total_training_steps={num_steps}", f"run_dir={run_dir.path}"]


def run_arm(name: str, folder: Path, num_steps: int, warm_up: int, overrides: list[str], trl: Path | None) -> Cost:
    """Run an arm, unless it is complete already, and return the cost of its steps.

    Raises:
        RuntimeError: If the run failed; the message names its log.
    """
    run_dir = RunDir(folder / name)
    metrics, watched = folder / name / "metrics.jsonl", folder / name / "watched.json"
    if not watched.exists() or len(list(read_rows(metrics))) < num_steps:
        for file in (metrics, run_dir.stage):
            file.unlink(missing_ok=True)
        run_dir.path.mkdir(parents=True, exist_ok=True)
        command, environment = (
            command_of(name, num_steps, run_dir, overrides, trl),
            {**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        with (folder / f"{name}.log").open("w") as log:
            job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            watched.write_text(json.dumps(watch(job, run_dir)))
        if job.returncode:
            raise RuntimeError(f"{name}: the run failed, see {log.name}")
    cpu, memory_gb = json.loads(watched.read_text())
    steps = list(read_rows(metrics))[warm_up:]
    if name in TRL_ARMS:
        return {"step_s": statistics.median(step[metric_names.STEP_S] for step in steps), "memory_gb": memory_gb}
    return {**summarise(steps, cpu[warm_up:]), "memory_gb": memory_gb}


def summarise(steps: list[dict[str, float]], cpu: list[dict[str, float]]) -> Cost:
    """Return the cost of an arm's steps, from their metrics and their CPU seconds by stage."""

    def median(rows: list[dict[str, float]], *names: str) -> float:
        return statistics.median(sum(row.get(name, 0.0) for name in names) for row in rows)

    medians = {
        "step_s": metric_names.STEP_S,
        "rollout_s": "timing_s/gen",
        "exposed_s": metric_names.EXPOSED_S,
        "hidden_s": metric_names.HIDDEN_S,
        "kept": metric_names.BUDGET_KEPT,
    }
    totals = {key: sum(step[key] for step in steps) for key in steps[0] if key.startswith(("refiner/num_", "tokens/"))}
    num_tokens = totals[metric_names.TOKENS_REFINE_PROMPT] + totals[metric_names.TOKENS_REFINE]
    num_pairs = totals[metric_names.NUM_ACCEPTED]
    cost = {name: median(steps, key) for name, key in medians.items() if key in steps[0]}
    cost["tokens_per_pair"] = num_tokens / num_pairs if num_pairs else float("inf")
    cost["attempted"] = totals[metric_names.NUM_ATTEMPTED] / totals[metric_names.NUM_ROLLOUTS]
    parts = [name for seconds, _ in STAGES.values() for name in seconds]
    cost["rest"] = statistics.median(
        1 - sum(step.get(part, 0.0) for part in parts) / step[metric_names.STEP_S] for step in steps
    )
    for stage, (seconds, tokens) in STAGES.items():
        cost[f"{stage}, s"] = median(steps, *seconds)
        cost[f"{stage}, tokens"] = median(steps, *tokens)
        cost[f"{stage}, CPU s"] = median([step for step in cpu if stage in step] or [{}], stage)
    return cost


def table(costs: dict[str, Cost]) -> str:
    """Return the costs as a Markdown table; a cell is empty where an arm has no such number."""
    columns = ["arm", "step, s", "to none", "to static KL", "rollout, s", "exposed, s", "hidden, s", "refined"]
    columns += ["tokens a pair", "kept", "memory, GB"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, cost in costs.items():
        bases = [costs.get(BASELINES.get(name, "none")), costs.get("static_kl")]
        ratios = [f"{cost['step_s'] / base['step_s']:.2f}" if base else "" for base in bases]
        formats = {"rollout_s": ".1f", "exposed_s": ".2f", "hidden_s": ".1f", "attempted": ".0%"}
        formats |= {"tokens_per_pair": ".0f", "kept": ".0%", "memory_gb": ".1f"}
        known = {key: value for key, value in cost.items() if key != "tokens_per_pair" or 0 < value < float("inf")}
        cells = [f"{known[key]:{style}}" if key in known else "" for key, style in formats.items()]
        title = TRL_ARMS[name] if name in TRL_ARMS else ARMS[name][0]
        lines.append("| " + " | ".join([title, f"{cost['step_s']:.1f}", *ratios, *cells]) + " |")
    return "\n".join(lines) + "\n"


def by_stage(costs: dict[str, Cost]) -> str:
    """Return the same by stage as a Markdown table, and the share of a step's seconds that is in no stage."""
    lines = [f"| arm: s / CPU s / tokens | {' | '.join(STAGES)} | rest |", "|---" * (len(STAGES) + 2) + "|"]
    for name, cost in costs.items():
        if name in TRL_ARMS:
            continue
        cells = [
            f"{cost[f'{stage}, s']:.1f} / {cost[f'{stage}, CPU s']:.1f} / {cost[f'{stage}, tokens']:.0f}"
            for stage in STAGES
        ]
        lines.append("| " + " | ".join([ARMS[name][0], *cells, f"{cost['rest']:.1%}"]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the arms one after the other and write their costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="of each arm")
    parser.add_argument("--warm-up", type=int, default=1, help="steps of each arm that are left out")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *TRL_ARMS], default=list(ARMS))
    parser.add_argument("--trl", type=Path, metavar="PYTHON", help="of an environment with trl 1.16.0, for its arms")
    parser.add_argument("--output", type=Path, default=Path("runs/overhead"))
    arguments, overrides = parser.parse_known_args()
    if arguments.steps <= arguments.warm_up:
        parser.error("--steps: more than --warm-up, as those are left out")
    if arguments.trl is None and (asked := [name for name in arguments.arms if name in TRL_ARMS]):
        parser.error(f"--trl: name the Python of an environment with trl 1.16.0, for {' and '.join(asked)}")
    if not any(override.startswith("experiment=") for override in overrides):
        overrides = [*TASK, *overrides]
    costs, num_failed = {}, 0
    for name in arguments.arms:
        try:
            costs[name] = run_arm(name, arguments.output, arguments.steps, arguments.warm_up, overrides, arguments.trl)
        except RuntimeError as error:
            print(error, flush=True)
            num_failed += 1
            continue
        print(table(costs).splitlines()[-1], flush=True)
        (arguments.output / "overhead.json").write_text(json.dumps(costs, indent=1))
        (arguments.output / "overhead.md").write_text(f"{table(costs)}\n{by_stage(costs)}")
    print(table(costs), by_stage(costs), sep="\n")
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
