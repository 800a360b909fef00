"""The jobs that are worth running on a GPU.

Each job is a function: it runs something, and returns figures and what is wrong (``faults``). A rehearsal runs the
same on the CPU platform. What differs there:

| | on a GPU | in a rehearsal |
|---|---|---|
| sizes | 1.5B, answers of 1,000 tokens, 200 problems, 60 steps | two layers, 32 tokens, 2 problems, 2 steps |
| SmolLM2: quickstart, check, pair | the real model | the real model |
| numbers | bfloat16, FlashAttention, CUDA graphs | float32, PyTorch's attention, none |
| engines | sleep and wake | cannot sleep: the soak asks the same questions again |
| without flash-attn | a folder of links hides it from the run | it is not installed there |
| vLLM's model runner | the older one is asked for | there is one; the variable changes nothing |
| neighbours | where `/tmp` can be a job's own | the same |
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.gpu_quarter import training, words
from experiments.gpu_quarter.learning import LAB, PAIR, programs
from experiments.gpu_quarter.registry import BAD, JOBS, ROOT, Figures, Place, job
from experiments.gpu_quarter.runner import Job
from recipe.runs.files import read_rows
from recipe.smoke import letters
from recipe.smoke.cases import CASES, LIMITS, NUM_STEPS, Case, faults

KV_BYTES = 2 << 30
"""Bytes of KV cache in each engine of a small job, fixed because jobs side by side would count each other's memory."""
OVERRUNS_S = 20.0
REHEARSAL_S = 1800.0
"""The seconds after which a job of a rehearsal counts as hung: a machine may be busy with other work."""


def toy(place: Place, name: str) -> tuple[Path, list[str]]:
    """Return the folder and the overrides of a small run: the smoke test's first case."""
    folder = place.folder(name)
    letters.save_prompts(folder / "prompts.parquet")
    letters.save_llama(folder / "model", hidden_size=128, intermediate_size=256)
    kv = f"engine_kwargs.vllm.kv_cache_memory_bytes={place.choose(KV_BYTES, 64 << 20)}"
    overrides = CASES[0].command(folder, platform=place.platform, num_gpus=1)
    return folder, [*overrides, "trainer.save_freq=-1", f"++actor_rollout_ref.rollout.{kv}"]


def run_case(place: Place, case: Case, name: str, environment: dict[str, str] | None = None) -> Figures:
    """Run a case of the smoke test, and return its figures and faults."""
    _, overrides = toy(place, name)
    run_dir = place.fresh(name)
    metrics = run_dir / "metrics.jsonl"
    code, found = training.train(training.ours(run_dir, [*overrides, *case.overrides]), metrics, environment)
    wrong = training.step_faults(code, found, case.steps)
    if not wrong:
        wrong = [*faults(case, list(read_rows(metrics)), LIMITS[place.platform])]
    return {**found, "faults": wrong}


@job("quickstart", "the quickstart's command, six steps", seconds=350)
def quickstart(place: Place) -> Figures:
    """Run the quickstart as the README describes it."""
    return run_quickstart(place, "quickstart")


@job("quickstart-dynamic", "the quickstart with micro-batches of 8,192 tokens", seconds=300)
def quickstart_dynamic(place: Place) -> Figures:
    """Run the quickstart with micro-batches that a GPU of 16 GiB can hold; engines say what their start takes."""
    actor = "actor_rollout_ref.actor"
    overrides = [f"{actor}.use_dynamic_bsz=true", f"{actor}.ppo_max_token_len_per_gpu=8192", "console=log"]
    return run_quickstart(place, "quickstart-dynamic", overrides, {"VLLM_LOGGING_LEVEL": "INFO"})


def run_quickstart(
    place: Place, name: str, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Figures:
    """Run the quickstart's command, and return its figures with the timeline of its start."""
    num_steps, run_dir, log = place.choose(6, 1), place.fresh(name), place.output / f"{name}.log"
    number = f"trainer.total_training_steps={num_steps}"
    command = ["bash", "scripts/quickstart.sh", f"run_dir={run_dir}", number, *overrides]
    variables = {**(environment or {}), **({"PLATFORM": place.platform} if place.is_rehearsal else {})}
    before = log.stat().st_size if log.exists() else 0  # an earlier call's output is there too
    code, found = training.train(command, run_dir / "metrics.jsonl", variables)
    found["start"] = training.start_of(log.read_bytes()[before:].decode(errors="replace"))
    return {**found, "faults": training.step_faults(code, found, range(1, num_steps + 1))}


SAME = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "critic/advantages/max")
"""The metrics by which two runs on the same rollouts are compared."""
MAX_DIFFERENCE = 1e-2
"""The largest relative difference of a loss or gradient in bfloat16, which each run sums in another order."""
ROUNDED = 1e-4
"""The largest relative difference between means of the same rewards, summed in float32 and kept with five digits."""
OTHER_ROLLOUTS = "it trained on rollouts of its own"


def _on_same_rollouts(place: Place) -> list[str]:
    return [
        "skip.rollout_tq.enable=True",
        f"skip.rollout_tq.dump_dir={place.folder('rollouts')}",
        f"skip.rollout_tq.steps={list(range(1, NUM_STEPS + 1))}",
        "trainer.experiment_name=gsm8k",  # part of the name under which rollouts are kept; this is verl's default
    ]


def _stock(place: Place, name: str) -> Figures:
    """Run stock verl on rollouts that its first run keeps."""
    folder, overrides = toy(place, name)
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    launcher = place.choose("recipe.preload.launch", "recipe.cpu_platform.launch")
    own = [one for one in overrides if not one.startswith(training.OWN)]
    more = [
        "hydra.searchpath=[pkg://recipe.cpu_platform.config]",
        f"+platform={place.platform}",
        f"hydra.run.dir={folder}",
        f"trainer.default_local_dir={folder}/checkpoints",
        "trainer.logger=[console,file]",
        "actor_rollout_ref.rollout.name=vllm",
    ]
    command = [sys.executable, "-m", launcher, "-m", "verl.trainer.main_ppo", *own, *_on_same_rollouts(place), *more]
    code, found = training.train(command, metrics, {"VERL_FILE_LOGGER_PATH": str(metrics)})
    return {**found, "faults": training.step_faults(code, found, range(1, NUM_STEPS + 1))}


def _compared(place: Place, found: Figures) -> Figures:
    first = training.figures_of(place.output / "stock.json")["steps"]
    if found["faults"]:
        return found
    differs = training.rounded(training.largest_difference(found["steps"], first, SAME))
    wrong = [f"{name} differs by {value:g}" for name, value in differs.items() if value > MAX_DIFFERENCE]
    if differs["critic/score/mean"] > ROUNDED:
        wrong = [OTHER_ROLLOUTS]
    return {**found, "differs": differs, "faults": wrong}


@job("stock", "stock verl, whose rollouts the next two train on", seconds=100, measures=False)
def stock(place: Place) -> Figures:
    """Train."""
    return _stock(place, "stock")


@job("stock-again", "stock verl once more: the GPU's own noise", seconds=95, measures=False, needs=("stock",))
def stock_again(place: Place) -> Figures:
    """Train on the same rollouts, and compare."""
    return _compared(place, _stock(place, "stock-again"))


@job("eta-0", "ours with a constraint of strength 0", seconds=135, measures=False, needs=("stock",))
def eta_0(place: Place) -> Figures:
    """Train on the same rollouts, and compare."""
    _, overrides = toy(place, "eta-0")
    run_dir = place.fresh("eta-0")
    command = training.ours(run_dir, [*overrides, *_on_same_rollouts(place), "constraint.eta=0"])
    code, found = training.train(command, run_dir / "metrics.jsonl")
    found["faults"] = training.step_faults(code, found, range(1, NUM_STEPS + 1))
    return _compared(place, found)


def sized_model(place: Place) -> Path:
    """Return the folder of a model of random weights with its prompts; written once."""
    folder = place.folder("random")
    if not (folder / "made.json").exists():  # in a process of its own: this one's would stay on the GPU
        sizes = place.choose(("1.5B", "128", "500"), ("tiny", "8", "10"))
        subprocess.run([sys.executable, "-m", "experiments.gpu_quarter.words", str(folder), *sizes], check=True)
    return folder


SIZED = {
    "none": ("without a constraint", ("constraint.mode=none",)),
    "static-kl": ("static KL in the loss", ("constraint.mode=none", "actor_rollout_ref.actor.use_kl_loss=true")),
    "sft": ("the default mode", ()),
    "penalty": ("the paper's way", ("constraint.mode=penalty",)),
}
"""The arms of one training by name, each with a description and its overrides."""


def sized(place: Place, name: str, arm: str, environment: dict[str, str] | None = None) -> Figures:
    """Run three steps of an arm, and the dry run that estimates its memory."""
    folder, length = sized_model(place), place.choose(1000, 32)
    run_dir = place.folder(name) / "run"
    tokens = place.choose(16384, 512)
    micro = ("actor", "rollout.log_prob", "ref.log_prob")
    overrides = [
        f"platform={place.platform}",
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/prompts.parquet",
        f"data.val_files={folder}/prompts.parquet",
        f"data.train_batch_size={place.choose(16, 2)}",
        f"data.max_prompt_length={place.choose(160, 32)}",
        f"data.max_response_length={length}",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={folder}/model",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={place.choose(16, 2)}",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}",
        *(f"actor_rollout_ref.{one}_use_dynamic_bsz=true" for one in micro[1:]),
        *(f"actor_rollout_ref.{one}_max_token_len_per_gpu={tokens}" for one in micro[1:]),
        f"actor_rollout_ref.rollout.n={place.choose(8, 4)}",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"actor_rollout_ref.rollout.gpu_memory_utilization={place.choose(0.4, 0.1)}",
        f"actor_rollout_ref.rollout.max_model_len={place.choose(4096, 256)}",
        f"actor_rollout_ref.rollout.max_num_batched_tokens={place.choose(8192, 1024)}",
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "reward.num_workers=2",
        f"reward.custom_reward_function.path={words.__file__}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"refiner.template={folder}/words.jinja",
        "refiner.temperature=1.0",
        "trainer.n_gpus_per_node=1",
        "trainer.total_epochs=99",
        f"trainer.total_training_steps={place.choose(3, 2)}",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "trainer.resume_mode=disable",
        "trainer.logger=[console]",
        *SIZED[arm][1],
    ]
    command = training.ours(run_dir, overrides)
    environment = {**os.environ, **(environment or {})}
    # It ends long before the first step.
    dry = subprocess.Popen([*command, "dry_run=true"], stdout=subprocess.PIPE, text=True, env=environment)
    metrics = run_dir / "metrics.jsonl"
    code: int | None = 0
    if len(steps := training.steps_of(metrics)) == place.choose(3, 2):  # an earlier call was ended while it ended
        found: Figures = {"steps": training.rounded(steps)}
    else:
        place.fresh(name)
        code, found = training.train(command, metrics, environment)
    said, _ = dry.communicate()
    wrong = training.step_faults(code, found, range(1, place.choose(3, 2) + 1))
    return {**found, "dry_run": said.splitlines(), "faults": wrong}


for _arm in SIZED:
    _about = f"1.5B, 128 answers of 1,000 tokens: {SIZED[_arm][0]}"
    job(f"sized-{_arm}", _about, seconds=170)(partial(sized, name=f"sized-{_arm}", arm=_arm))


@job("log-probs", "log-probs without flash-attn: ours against verl's loop", seconds=30)
def log_probs(place: Place) -> Figures:
    """Compute the same log-probs and gradients in both ways."""
    from experiments.gpu_quarter.probes import compare_log_probs

    return compare_log_probs(*place.choose((8192, 151_936), (64, 512)))


@job("without-flash-attn", "the same training where flash-attn is missing", seconds=250)
def without_flash_attn(place: Place) -> Figures:
    """Run with a search path on which flash-attn is not found."""
    environment = _hidden(place, "flash_attn")
    asks = [
        sys.executable,
        "-c",
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('flash_attn') is not None)",
    ]
    if subprocess.run(asks, env={**os.environ, **environment}).returncode:
        return {"faults": ["flash-attn is installed where PYTHONPATH does not say, so it cannot be hidden"]}
    return sized(place, "without-flash-attn", "none", environment)


def _hidden(place: Place, package: str) -> dict[str, str]:
    """Return a search path on which a package is missing, by links to all else beside it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    site, bare = Path(spec.origin).parents[1], place.folder("site")
    for entry in site.iterdir():
        if not entry.name.startswith(package) and not (bare / entry.name).exists():
            (bare / entry.name).symlink_to(entry)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join(str(bare) if Path(entry) == site else entry for entry in entries)}


@job("resume", "killed in its third step, and resumed", seconds=230, measures=False)
def resume(place: Place) -> Figures:
    """Kill all processes of a run, and run its command again."""
    _, overrides = toy(place, "resume")
    run_dir = place.fresh("resume")
    command = training.ours(run_dir, [*overrides, "trainer.save_freq=1", "trainer.total_training_steps=4"])
    metrics = run_dir / "metrics.jsonl"
    ended, killed = training.train(command, metrics, until=lambda num_steps: num_steps >= 2)
    done = [step["step"] for step in killed["steps"]]
    code, found = training.train(command, metrics)
    wrong = training.step_faults(code, found, range(1, 5))
    if ended is not None or len(done) not in (2, 3):
        wrong.append(f"the first run ended by itself ({ended}) after steps {done}")
    again = [step["step"] for step in training.steps_of(run_dir / "metrics.undone.jsonl")]
    if min(again, default=done[-1]) < done[-1]:  # the last may be saved after its line
        wrong.append(f"steps {again} were done again")
    return {**found, "killed_after": done, "faults": wrong}


@job("soak", "50 sleeps and wakes of one engine", seconds=140)
def soak(place: Place) -> Figures:
    """Ask the same greedy questions after each."""
    from experiments.gpu_quarter.probes import sleep_and_wake

    return sleep_and_wake(sized_model(place) / "model", place.choose(50, 3), sleeps=not place.is_rehearsal)


SHARED = next(case for case in CASES if case.name == "shared")


@job("shared", "LoRA, one engine for policy and refiner", seconds=110)
def shared(place: Place) -> Figures:
    """Run the smoke test's case."""
    return run_case(place, SHARED, "shared")


@job("older-runner", "a Llama by vLLM's older model runner", seconds=110)
def older_runner(place: Place) -> Figures:
    """Run the smoke test's first case."""
    found = run_case(place, CASES[0], "older-runner", {"VLLM_USE_V2_MODEL_RUNNER": "0"})
    log = (place.output / "older-runner.log").read_text(errors="replace")
    if not place.is_rehearsal and "Using V2 Model Runner" in log:
        found["faults"].append("vLLM has used its newer one")
    return found


SHARES = re.compile(r"\b(were|was) refined\b")
"""The first line of the table that ``online-refiner check`` prints."""


@job("check", "the check before a run: SmolLM2 on 200 problems", seconds=180)
def check(place: Place) -> Figures:
    """Run ``online-refiner check``, and keep its output."""
    options = {
        "model": place.smollm2(),
        "data": f"{programs(place)}/train.parquet",
        "problems": place.choose(200, 2),
        "samples": place.choose(4, 2),
        "max-response-tokens": place.choose(128, 32),
        "max-new-tokens": place.choose(192, 48),
        "max-model-len": 1024,
        "output": f"{place.folder('check')}/refined.jsonl",
    }
    command = [sys.executable, "-m", "recipe.commands", "check", "apps", "general"]
    command += [f"--{name}={value}" for name, value in options.items()]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(answer.stdout)
    wrong = [] if answer.returncode == 0 else [f"exit code {answer.returncode}"]
    lines = answer.stdout.splitlines()
    first = next((number for number, line in enumerate(lines) if SHARES.search(line)), None)
    if first is None:
        wrong.append("it printed no line about refined answers")
    return {"printed": lines[first:], "faults": wrong}


@job("hangs", "does not end", seconds=1, group=BAD, limit_s=5)
def hangs(place: Place) -> Figures:
    """Wait, with a child that waits in a session of its own."""
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return {"code": child.wait()}


@job("dies", "is killed", seconds=1, group=BAD, limit_s=60)
def dies(place: Place) -> Figures:
    """Print a line and die."""
    print(*range(2 * 200), sep="\n", flush=True)
    os.abort()


@job("overruns", "does not end within a first call's time", seconds=1, group=BAD, limit_s=120)
def overruns(place: Place) -> Figures:
    """Wait longer than a first call lasts."""
    time.sleep(OVERRUNS_S)
    return {"waited_s": OVERRUNS_S}


ORDER = (
    "stock",
    "eta-0",
    "resume",
    "without-flash-attn",
    "soak",
    "shared",
    *(f"pair-{arm}" for arm in PAIR),
    "quickstart",
    "quickstart-dynamic",
    "older-runner",
    "check",
    *(f"lab-{arm}" for arm in LAB),
    "stock-again",
    *(f"sized-{arm}" for arm in SIZED),
    "log-probs",
)
"""The jobs in the order in which they are run: the worth of what they show, unless a GPU has shown it before."""


def all_jobs(names: Sequence[str], *, rehearses: bool) -> list[Job]:
    """Return the jobs of these names, or all, in their order; a rehearsal begins each, whatever its time on a GPU."""
    known = {name: JOBS[name][0] for name in ORDER}
    if rehearses:
        known = {name: replace(one, expects_s=0.0, limit_s=REHEARSAL_S) for name, one in known.items()}
        known |= {name: replace(one, expects_s=0.0) for name, (one, _) in BAD.items()}
    if unknown := sorted(set(names) - known.keys()):
        raise ValueError(f"no such jobs: {', '.join(unknown)}; there are {', '.join(known)}")
    return [one for name, one in known.items() if not names or name in names]


def act(name: str, place: Place) -> Figures:
    """Run a job in this process."""
    return {**JOBS, **BAD}[name][1](place)
