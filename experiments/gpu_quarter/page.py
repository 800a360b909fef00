"""Writes experiments/gpu.md from the JSON files of jobs."""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.gpu_quarter.jobs import JOBS, ORDER, OTHER_ROLLOUTS, ROUNDED, SAME, SIZED
from experiments.gpu_quarter.runner import CUT, PASSED
from experiments.lab.protocol import HELD_OUT
from recipe.online_refiner import metric_names

PAGE = Path(__file__).resolve().parents[1] / "gpu.md"
EARLIER = "h100.json"
"""The results of 15 minutes that were measured before this list existed."""
Results = Mapping[str, dict[str, Any]]
NUM_SIZED_STEPS = 3
STAGES = {
    "rollout": ("timing_s/gen",),
    "refining": (metric_names.REFINE_S,),
    "log π_θ(a')": (metric_names.LOG_PROB_S,),
    "KL to π₀": (metric_names.KL_S, "timing_s/ref"),
    "old log-probs": ("timing_s/old_log_prob",),
    "update": ("timing_s/update_actor",),
    "weights to vLLM": ("timing_s/update_weights",),
}
"""The columns, each with the metrics that are summed in it."""
MEMORY = {
    "rollout awake": metric_names.MEMORY_ROLLOUT,
    "asleep": metric_names.MEMORY_ASLEEP,
    "refiner awake": metric_names.MEMORY_REFINE,
    "both asleep": metric_names.MEMORY_REFINED,
    "update, torch's peak": "actor/perf/max_memory_reserved_gb",
}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results in a folder by job, in the order of the jobs."""
    found = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return {name: found[name] for name in ORDER if name in found}


def write_page(folder: Path, page: Path = PAGE) -> None:
    """Write the page."""
    found = parts(read(folder))
    if (file := folder / EARLIER).exists():
        found.append(earlier(json.loads(file.read_text())))
    page.write_text("\n".join(line for part in found for line in [*part, ""]).rstrip() + "\n")


def parts(results: Results) -> list[list[str]]:
    """Return the parts of the page, as lines."""
    head = [
        "<!-- Written by `python -m experiments.gpu_quarter page` from experiments/results/gpu. -->",
        "# What ran on a GPU",
        "",
        "`python -m experiments.gpu_quarter run` runs this list on your GPU; `online-refiner smoke` is shorter.",
        "Each number was taken once.",
    ]
    sections = [machine, jobs, quickstart, noise, stages, memory, log_probs, soak, pair, check, lab]
    return [head, *(lines for section in sections if (lines := section(results)))]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a Markdown table."""
    head, *lines = ["| " + " | ".join(map(str, line)) + " |" for line in [columns, *rows]]
    return [head, "|" + "---|" * len(columns), *lines]


def passed(results: Results, *names: str) -> dict[str, dict[str, Any]]:
    """Return the figures of the jobs that passed, of these names or names that begin so."""
    return {
        name: result["figures"]
        for name, result in results.items()
        if name.startswith(names) and (result["state"] == PASSED or is_whole(result))
    }


def is_whole(result: Mapping[str, Any]) -> bool:
    """Return whether a job had done all its steps when its time was up."""
    return bool(result["state"] == CUT and len(result["figures"].get("steps", ())) == NUM_SIZED_STEPS)


def machine(results: Results) -> list[str]:
    """Return the lines about the machine on which the jobs ran."""
    lines = dict.fromkeys(
        f"- {one['device']}, {one['cpus']} CPU cores, driver {one['driver']}, "
        + ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        + f"; {one['date']}"
        for one in results.values()
    )
    return list(lines)


def jobs(results: Results) -> list[str]:
    """Return the outcome of each job."""
    rows, faults, missing = [], [], []
    for name in ORDER:
        (job, _), one = JOBS[name], results.get(name)
        if one is None:
            missing.append(f"`{name}`")
            continue
        # Beside another job the GPU's memory is that of both.
        peak = f"{one['gpu_mib_at_peak'] / 1024:.1f}" if job.measures else ""
        first = f"{one['figures']['step_at_s'][0]:.0f}" if one.get("figures", {}).get("step_at_s") else ""
        rows.append([f"`{name}`", job.shows, one["state"], one["device"], f"{one['seconds']:.0f}", first, peak])
        if one["state"] != PASSED:
            why = "all steps were done" if is_whole(one) else "; ".join(one["faults"]) or "its log is in the JSON file"
            faults.append(f"- `{name}` {one['state']}: {why}")
        elif "note" in one:
            faults.append(f"- `{name}`: {one['note']}")
    return [
        "## Jobs",
        "",
        *table(["job", "what", "outcome", "on", "s", "first step after, s", "GPU GiB at peak"], rows),
        *(["", *faults] if faults else []),
        *(["", f"These [jobs](gpu_quarter/jobs.py) were not run yet: {', '.join(missing)}."] if missing else []),
    ]


def noise(results: Results) -> list[str]:
    """Return how far runs on the same rollouts differ."""
    figures = passed(results, "stock-again", "eta-0")
    rows = [
        [f"`{name}`", *(f"{one['differs'][metric]:.1e}" for metric in SAME)]
        for name, one in figures.items()
        if one["differs"]["critic/score/mean"] <= ROUNDED
    ]
    others = [
        f"`{name}` says nothing: {OTHER_ROLLOUTS}."
        for name in figures
        if f"`{name}`" not in [row[0] for row in rows] and "note" not in results[name]
    ]
    if not rows:
        return []
    text = (
        "Runs on the same rollouts. The largest difference to stock verl's first run, relative to the metric's largest "
        "value:"
    )
    return [
        "## η = 0 against stock verl",
        "",
        text,
        "",
        *table(["job", *SAME], rows),
        *(["", *others] if others else []),
    ]


def _mean(steps: Sequence[Mapping[str, float]], *names: str) -> float:
    """Return the mean of the steps after the first, in which engines warm up; metrics are summed up."""
    return statistics.mean(sum(step.get(name, 0.0) for name in names) for step in steps[1:])


def stages(results: Results) -> list[str]:
    """Return the seconds of a step by stage."""
    rows = []
    figures = passed(results, "sized", "without-flash-attn")
    for name, one in figures.items():
        steps = one["steps"]
        whole = _mean(steps, metric_names.STEP_S)
        shown = [_mean(steps, *names) for names in STAGES.values()]
        tokens = (
            _mean(steps, metric_names.TOKENS_ROLLOUT, metric_names.TOKENS_REFINE)
            or _mean(steps, "response_length/mean") * 128
        )
        what = SIZED[name.removeprefix("sized-")][0] if name.startswith("sized-") else "none, without flash-attn"
        rows.append(
            [
                what,
                f"{whole:.1f}",
                *(f"{one:.1f}" for one in shown),
                f"{whole - sum(shown):.1f}",
                f"{tokens / whole:.0f}",
            ]
        )
    if not rows:
        return []
    text = (
        "A Llama of Qwen2.5-1.5B's sizes with random weights, 16 prompts × 8 answers of 1,000 tokens, refinements of "
        "about 430. Seconds, mean of two steps after a first one."
    )
    return ["## 1.5B by stage", "", text, "", *table(["arm", "step", *STAGES, "rest", "tokens written a second"], rows)]


def memory(results: Results) -> list[str]:
    """Return the memory at each moment, and what a dry run says."""
    rows, planned = [], ("", list[str]())
    for name, one in passed(results, "sized").items():
        last = one["steps"][-1]
        arm = SIZED[name.removeprefix("sized-")][0]
        rows.append([arm, *(f"{last[key]:.1f}" if key in last else "" for key in MEMORY.values())])
        planned = (arm, one["dry_run"]) if one.get("dry_run") else planned  # of the last arm, which is the fullest
    if not rows:
        return []
    arm, lines = planned
    said = [re.match(r" +(.+?) +(\d+\.\d)", line) for line in lines]
    moments = ", ".join(f"{one[1]} {one[2]}" for one in said if one)
    return [
        "## Its memory",
        "",
        "GiB in use on the GPU:",
        "",
        *table(["arm", *MEMORY], rows),
        "",
        f"What `dry_run=true` says beforehand of {arm}: {moments}.",
    ]


def log_probs(results: Results) -> list[str]:
    """Return the cost of log-probs without flash-attn."""
    rows = [
        [way, f"{one[way]['forward_s']:.4f}", f"{one[way]['backward_s']:.4f}", f"{one[way]['largest_error']:.3f}"]
        for one in passed(results, "log-probs").values()
        for way in ("verl", "ours")
    ]
    if not rows:
        return []
    one = results["log-probs"]["figures"]
    text = f"Log-probs of {one['tokens']:,} packed tokens over {one['vocabulary']:,} words, bfloat16:"
    columns = ["way", "forward, s", "backward, s", "largest error"]
    return ["## Without flash-attn", "", text, "", *table(columns, rows)]


def quickstart(results: Results) -> list[str]:
    """Return the metrics of the quickstart's steps, and what its start waits for."""
    found = passed(results, "quickstart")
    if not found:
        return []
    seconds = (
        metric_names.STEP_S,
        "timing_s/gen",
        metric_names.REFINE_S,
        "timing_s/old_log_prob",
        "timing_s/update_actor",
    )
    rows = [
        [
            f"`{name}`",
            step["step"],
            f"{step.get(metric_names.REWARD, 0.0):.2f}",
            f"{step.get(metric_names.IMPROVEMENT_RATIO, 0.0):.0%}",
            *(f"{step.get(metric, 0.0):.1f}" for metric in seconds),
        ]
        for name, one in found.items()
        for step in one["steps"]
    ]
    columns = ["job", "step", "reward", "refinements accepted"]
    columns += ["step, s", "rollout, s", "refining, s", "old log-probs, s", "update, s"]
    starts = [line for name, one in found.items() if "start" in one for line in start(name, one)]
    return ["## The quickstart", "", "512 answers a step.", "", *table(columns, rows), *starts]


def start(name: str, figures: Mapping[str, Any]) -> list[str]:
    """Return the timeline of a start up to the first step's end, and the seconds that engines say they took."""
    began, engines = figures["start"]["began_at_s"], figures["start"]["engines"]
    ends = [*list(began.values())[1:], *figures["step_at_s"][:1]]
    rows = [[what, at, f"{end - at:.0f}"] for (what, at), end in zip(began.items(), ends, strict=False)]
    lines = [
        "",
        f"The start of `{name}`, in seconds since its command:",
        "",
        *table(["part", "begins after", "takes"], rows),
    ]
    said = ["", f"The engines of `{name}` said of their start:", "", *(f"- {line}" for line in engines)]
    return [*(lines if len(rows) > 1 else []), *(said if engines else [])]  # the script itself prints one part


def pair(results: Results) -> list[str]:
    """Return the lines of the two arms on sums."""
    lines = {name: one for name, one in passed(results, "pair-").items() if "line" in one}
    if not lines:
        return []
    rows = []
    for name, one in lines.items():
        line, seconds = one["line"], statistics.median(step[metric_names.STEP_S] for step in one["steps"])
        shares = ", ".join(f"{share:.0%}" for share in line["held_out"].values())
        rows.append(
            [f"`{name}`", shares, f"{line['kl']:.3f}", f"{line['log_loss']:.3f}", line["tokens"], f"{seconds:.1f}"]
        )
    line = next(iter(lines.values()))["line"]
    validations = list(line["held_out"])
    text = (
        "SmolLM2-135M-Instruct learns sums as in the [collapse experiment](collapse/PROTOCOL.md), which explains the "
        f"columns, at its learning rate {line['rate']:g}. The initial model solves {line['start']:.0%} of the held-out "
        f"questions; validations follow every {validations[0]} steps. One seed cannot show which arm is better."
    )
    columns = ["job", "held-out solved", "KL", "log-loss", "tokens written", "median step, s"]
    return ["## With and without the refiner", "", text, "", *table(columns, rows)]


def earlier(found: Mapping[str, Any]) -> list[str]:
    """Return the results that were measured before this list of jobs existed."""
    starts, engines = found["start_s"], {size: one for size, one in found["sleep"].items() if isinstance(one, dict)}
    phases = list(starts["preloaded"])
    rows = [[name, *(starts[name].get(phase, "") for phase in phases)] for name in ("preloaded", "plain")]
    asleep = [
        [size, f"{one['weights_gib']:.1f}", f"{one['sleep']:.2f}", f"{one['wake']:.2f}"]
        for size, one in engines.items()
    ]
    return [
        f"## Earlier: {found['device']}, {found['date']}",
        "",
        f"Seconds from the launch of {found['job']['what']}. One run each; `plain` is `preload=false`, and ran first:",
        "",
        *table(["job", *phases], rows),
        "",
        "One engine alone. Greedy answers were the same after each cycle:",
        "",
        *table(["model", "weights, GiB", "sleep, s", "wake, s"], asleep),
    ]


def soak(results: Results) -> list[str]:
    """Return the cost of sleeping."""
    found = passed(results, "soak")
    if not found:
        return []
    cycles = found["soak"]["cycles"]
    middle = {
        name: statistics.median(one[name] for one in cycles)
        for name in ("sleep_s", "wake_s", "asleep_mib", "awake_mib")
    }
    return [
        "## Sleep and wake",
        "",
        f"One engine with these weights, {len(cycles)} cycles: asleep after {middle['sleep_s']:.2f} s, awake after "
        f"{middle['wake_s']:.2f} s (medians). It holds {middle['asleep_mib'] / 1024:.1f} GiB asleep and "
        f"{middle['awake_mib'] / 1024:.1f} GiB awake. At most one of eight greedy answers changed.",
    ]


def check(results: Results) -> list[str]:
    """Return what the check printed."""
    found = passed(results, "check")
    return ["## The check", "", *("> " + line for line in found["check"]["printed"])] if found else []


def lab(results: Results) -> list[str]:
    """Return the curves' ends of the lab's arms."""
    rows = []
    for name, one in passed(results, "lab-").items():
        held_out = [step[HELD_OUT] for step in one["steps"] if HELD_OUT in step]
        shares = ", ".join(f"{value:.0%}" for value in held_out[-3:])
        rows.append([f"`{name}`", len(one["steps"]), shares, f"{one['steps'][-1].get(metric_names.REWARD, 0.0):.2f}"])
    if not rows:
        return []
    columns = ["arm", "steps", "held-out solved, last three validations", "reward of the last step"]
    return ["## One seed of the lab", "", "One seed tells nothing of which arm is better.", "", *table(columns, rows)]
