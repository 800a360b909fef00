"""What refining costs: the same training without it, in the paper's way, and with each saving, one by one.

    python -m experiments.bench_overhead [--steps 6] [--arms none paper ...] [--output runs/overhead] [OVERRIDE...]

Every arm is a run of the main job that differs in a few keys; overrides (a model, data, `platform=gpu`) hold for all.
Without `experiment=` it is the quickstart's task in groups of 8, as in the paper; `scripts/get_smollm2.py` has prepared
its model. The learning rate is 0, so that every step of every arm samples from the same policy. The first step
of an arm, in which engines warm up, is left out. Writes `overhead.md` (what the arms cost, and the same by stage) and
`overhead.json`; arms whose run is already complete in the output folder are not run again.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil

from recipe.runs.files import RunDir, read_rows

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
DRAFT = "refiner.draft=ngram"
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
    "soft": ("the same with constraint.target=soft", (SKIP, "constraint.mode=sft", "constraint.target=soft")),
    "paper": ("penalty, all responses, after the rollout", ("refiner.skip_reward_at_least=null",)),
    "skip": ("+ solved responses are skipped", (SKIP,)),
    "cap": ("+ the worst response of each group only", (SKIP, CAP)),
    "in_place": ("accepted responses scored in place as well", (SKIP, "constraint.target=in_place")),
    "failed": (
        "failed responses scored in place given a solved sibling; nothing is decoded",
        (SKIP, "constraint.target=in_place", "constraint.reward_gate=failed"),
    ),
    "draft": ("+ drafts by n-gram lookup", (SKIP, CAP, DRAFT)),
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
"""Name: what it is, and its overrides. Each saving (+) comes on top of the one above."""
BASELINES = {"lora_none": "lora_none", "shared": "lora_none"}


STAGES = {
    "the policy answers": (("gen", "reward"), ("rollout",)),
    "the refiner rewrites": (("refine", "wait_refiner"), ("refine_prompt", "refine")),
    "log-probs": (("old_log_prob", "refine_log_prob", "kl_ref", "ref", "adv"), ("refine_log_prob", "kl_ref")),
    "the policy learns": (("update_actor", "update_weights"), ("update_actor",)),
}
"""What a run says that it does (``stage.json``): its timers, and the counters of its tokens."""
POLL_S = 0.05
Cost = dict[str, float]
"""One arm: medians over its steps in seconds (``exposed_s``: what refining adds, as the run itself measures it);
``tokens_per_pair``: prompt and generated tokens of the refiner per accepted pair, over all steps, infinite if none was
accepted; ``attempted``: share of the responses that were refined; ``draft_acceptance``, where there were drafts. For
each stage ``STAGE, s``, ``STAGE, CPU s`` and ``STAGE, tokens``; ``rest``: the share of a step in no stage."""


def cpu_by_stage(job: subprocess.Popen[bytes], run_dir: RunDir) -> list[dict[str, float]]:
    """Wait for a job, and return the CPU seconds of all its processes in each stage of each step, the first step first.

    A process that ends between two stages is counted up to the last change of stage.
    """
    used: dict[int, float] = {}
    steps: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    before, changed_at = None, 0
    while True:
        is_done = job.poll() is not None
        at = run_dir.stage.stat().st_mtime_ns if run_dir.stage.exists() else 0
        if at != changed_at and (stage := run_dir.read_stage()):
            earlier, changed_at = sum(used.values()), at
            with contextlib.suppress(psutil.NoSuchProcess):
                driver = psutil.Process(job.pid)
                for process in (driver, *driver.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        used[process.pid] = sum(process.cpu_times()[:2])
            if before and before["step"]:
                steps[before["step"]][before["stage"]] += sum(used.values()) - earlier
            before = stage
        if is_done:
            return [dict(steps[step]) for step in sorted(steps)]
        time.sleep(POLL_S)


def run_arm(name: str, folder: Path, num_steps: int, overrides: list[str]) -> Cost:
    """Run an arm, unless it has been, and return what its steps cost.

    Raises:
        RuntimeError: The run failed; names its log.
    """
    metrics, seconds = folder / name / "metrics.jsonl", folder / name / "cpu.json"
    if not seconds.exists() or len(list(read_rows(metrics))) < num_steps:
        run_dir = RunDir(folder / name)
        command = [sys.executable, "-m", "recipe.online_refiner.main", *overrides, *ALWAYS, *ARMS[name][1]]
        if name == "dedicated" and "platform=gpu" not in overrides:
            command.append("ray_kwargs.ray_init.num_gpus=2")  # logical ones
        command += [f"trainer.total_training_steps={num_steps}", f"run_dir={run_dir.path}"]
        for file in (metrics, run_dir.stage):
            file.unlink(missing_ok=True)
        with (folder / f"{name}.log").open("w") as log:
            job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            seconds.write_text(json.dumps(cpu_by_stage(job, run_dir)))
        if job.returncode:
            raise RuntimeError(f"{name}: the run failed, see {log.name}")
    return summarise(list(read_rows(metrics))[1:], json.loads(seconds.read_text())[1:])


def summarise(steps: list[dict[str, float]], cpu: list[dict[str, float]]) -> Cost:
    """Return what the steps of an arm cost, by their metrics and their CPU seconds by stage."""

    def median(rows: list[dict[str, float]], *names: str) -> float:
        return statistics.median(sum(row.get(name, 0.0) for name in names) for row in rows)

    medians = {
        "step_s": "timing_s/step",
        "rollout_s": "timing_s/gen",
        "exposed_s": "refiner/exposed_s",
        "hidden_s": "refiner/hidden_s",
        "draft_acceptance": "refiner/spec_accept_rate",
    }
    totals = {key: sum(step[key] for step in steps) for key in steps[0] if key.startswith(("refiner/num_", "tokens/"))}
    num_tokens, num_pairs = totals["tokens/refine_prompt"] + totals["tokens/refine"], totals["refiner/num_accepted"]
    cost = {name: median(steps, key) for name, key in medians.items() if key in steps[0]}
    cost["tokens_per_pair"] = num_tokens / num_pairs if num_pairs else float("inf")
    cost["attempted"] = totals["refiner/num_attempted"] / totals["refiner/num_rollouts"]
    parts = [f"timing_s/{timer}" for timers, _ in STAGES.values() for timer in timers]
    cost["rest"] = statistics.median(
        1 - sum(step.get(part, 0.0) for part in parts) / step["timing_s/step"] for step in steps
    )
    for stage, (timers, counters) in STAGES.items():
        cost[f"{stage}, s"] = median(steps, *(f"timing_s/{timer}" for timer in timers))
        cost[f"{stage}, tokens"] = median(steps, *(f"tokens/{counter}" for counter in counters))
        cost[f"{stage}, CPU s"] = median([step for step in cpu if stage in step] or [{}], stage)
    return cost


def table(costs: dict[str, Cost]) -> str:
    """The costs as a Markdown table: seconds, and ratios to the arms without a refiner and in the paper's way."""
    columns = ["arm", "step, s", "to none", "rollout, s", "exposed, s", "to paper", "hidden, s"]
    columns += ["refined", "tokens a pair", "drafts taken"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, cost in costs.items():
        base = costs.get(BASELINES.get(name, "none"))
        paper = costs.get("paper")
        to_none = f"{cost['step_s'] / base['step_s']:.2f}" if base else ""
        to_paper = f"{cost['exposed_s'] / paper['exposed_s']:.2f}" if paper and cost["exposed_s"] else ""
        pair = "" if cost["tokens_per_pair"] in (0.0, float("inf")) else f"{cost['tokens_per_pair']:.0f}"
        row = [ARMS[name][0], f"{cost['step_s']:.1f}", to_none, f"{cost['rollout_s']:.1f}", f"{cost['exposed_s']:.2f}"]
        row += [to_paper, f"{cost['hidden_s']:.1f}", f"{cost['attempted']:.0%}", pair]
        row.append(f"{cost['draft_acceptance']:.0%}" if "draft_acceptance" in cost else "")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def by_stage(costs: dict[str, Cost]) -> str:
    """The same by stage as a Markdown table, and the share of a step's seconds that is in no stage."""
    lines = [f"| arm: s / CPU s / tokens | {' | '.join(STAGES)} | rest |", "|---" * (len(STAGES) + 2) + "|"]
    for name, cost in costs.items():
        cells = [
            f"{cost[f'{stage}, s']:.1f} / {cost[f'{stage}, CPU s']:.1f} / {cost[f'{stage}, tokens']:.0f}"
            for stage in STAGES
        ]
        lines.append("| " + " | ".join([ARMS[name][0], *cells, f"{cost['rest']:.1%}"]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the arms one after the other and write what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="of each arm; the first is left out")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--output", type=Path, default=Path("runs/overhead"))
    arguments, overrides = parser.parse_known_args()
    if arguments.steps < 2:
        parser.error("--steps: at least 2, as the first is left out")
    if not any(override.startswith("experiment=") for override in overrides):
        overrides = [*TASK, *overrides]
    costs, num_failed = {}, 0
    for name in arguments.arms:
        try:
            costs[name] = run_arm(name, arguments.output, arguments.steps, overrides)
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
