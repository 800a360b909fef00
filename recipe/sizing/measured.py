"""What runs measured, constants fitted to it, and what these predict for other runs and placements."""

import json
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from recipe.sizing.replay import Group, Pace, Request, Setting, replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a machine takes, found in its runs."""

    pace: Pace
    """Of a replica of the rollout or of the refiner."""
    stage_s: float = 0.0
    """Of a refine stage beside its engine."""
    width: float = 1.0
    """What a token of a response costs, in tokens of the refiner (sampling, log-probs)."""
    adapter_width: float = 1.0
    """The same of a policy with LoRA."""
    origin: str = ""
    """The runs that they are fitted to."""

    def write(self, path: Path) -> None:
        """Write them as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> "Constants":
        """Read what :meth:`write` wrote.

        Raises:
            ValueError: If the file cannot be read or lacks something.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return Constants(**{**values, "pace": Pace(**values["pace"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--constants {path}: {error!r}; set a file that --output wrote") from error


@dataclass(slots=True, kw_only=True)
class Step:
    """One step's requests, by prompt, and what it took."""

    responses: list[list[tuple[int, int]]]
    """(prompt, answer) tokens of a group's responses."""
    refinements: list[list[tuple[int, int]]]
    """The same of its refinements."""
    metrics: dict[str, float]

    def groups(self, width: float) -> list[Group]:
        """Return requests to replay; a token of a response costs ``width``."""
        written, drafted = self.metrics["tokens/refine"], self.metrics["refiner/drafted_tokens"]
        num_passes = max(1.0, written - drafted * self.metrics["refiner/spec_accept_rate"])
        gained, computed = max(1.0, written / num_passes), 1 + drafted / num_passes
        return [
            Group(
                responses=[Request(prompt=prompt, answer=answer, computed=width) for prompt, answer in group],
                refinements=[
                    Request(prompt=prompt, answer=answer, gained=gained, computed=computed)
                    for prompt, answer in refined
                ],
            )
            for group, refined in zip(self.responses, self.refinements, strict=True)
        ]


@dataclass(slots=True, kw_only=True)
class Run:
    """A run directory."""

    name: str
    config: DictConfig
    steps: list[Step]
    """Without the first, in which engines warm up."""

    @property
    def has_adapter(self) -> bool:
        """Whether the policy is one with LoRA."""
        return bool(self.config.actor_rollout_ref.model.lora_rank)

    @property
    def measured_s(self) -> float:
        """Seconds that refining added to a step: their mean."""
        return statistics.fmean(step.metrics["refiner/exposed_s"] for step in self.steps)

    def play(self, constants: Constants, **changes: Any) -> list[tuple[float, float]]:
        """Replay every step; ``changes`` are of its :class:`Setting`."""
        width = constants.adapter_width if self.has_adapter else constants.width
        return [replay(replace(self._setting(constants, step), **changes), step.groups(width)) for step in self.steps]

    def predict_s(self, constants: Constants, **changes: Any) -> float:
        """Return the mean of the seconds that refining adds to a step."""
        return statistics.fmean(exposed_s for _, exposed_s in self.play(constants, **changes))

    def _setting(self, constants: Constants, step: Step) -> Setting:
        trainer, rollout, refiner = self.config.trainer, self.config.actor_rollout_ref.rollout, self.config.refiner
        num_gpus = trainer.nnodes * trainer.n_gpus_per_node
        at_once = refiner.get("max_requests_in_flight") or rollout.max_num_seqs
        return Setting(
            pace=constants.pace,
            num_rollouts=max(1, num_gpus // rollout.tensor_model_parallel_size),
            num_refiners=max(1, round(step.metrics.get("refiner/num_replicas") or 1)),
            max_running=(rollout.max_num_seqs, min(rollout.max_num_seqs, at_once)),
            placement=refiner.placement,
            streams=refiner.placement != "colocated" and refiner.streaming is not False,
            stage_s=constants.stage_s,
            shares_cores=trainer.device == "cpu",
        )


def read_run(folder: Path) -> Run:
    """Read a run directory with its records.

    Raises:
        ValueError: If it has less than two steps, its records have no numbers of tokens, or its refiner was not hosted.
    """
    metrics = _rows(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    if len(metrics) < 2:
        raise ValueError(f"{folder}: no run of two steps (the first one, in which engines warm up, is left out)")
    config: Any = OmegaConf.load(folder / "config.yaml")
    if config.refiner.placement == "external":
        raise ValueError(
            f"{folder}: refiner.placement=external: how fast somebody else's server is, nobody can predict"
        )
    records: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((folder / "refinements").glob("*.jsonl")):
        for row in _rows(path):
            if "refine_tokens" not in row:
                raise ValueError(f"{path}: its records have no numbers of tokens: a run of an earlier release")
            records[row["step"]].append(row)
    return Run(name=folder.name, config=config, steps=[_step(config, row, records[row["step"]]) for row in metrics[1:]])


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON lines file; an unfinished last line is left out."""
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _step(config: DictConfig, metrics: dict[str, Any], records: list[dict[str, Any]]) -> Step:
    if not records:  # nothing was refined
        responses = _even(config, metrics)
        return Step(responses=responses, refinements=[[] for _ in responses], metrics=metrics)
    written: dict[str, list[tuple[int, int]]] = defaultdict(list)
    refined: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in records:
        group = row["key"].rsplit("_", 2)[0]
        written[group].append((row["prompt_tokens"], row["response_tokens"]))
        if row["refine_prompt_tokens"] and row["refine_tokens"]:  # the refiner was asked
            refined[group].append((row["refine_prompt_tokens"], row["refine_tokens"]))
    return Step(responses=list(written.values()), refinements=[refined[key] for key in written], metrics=metrics)


def _even(config: DictConfig, metrics: dict[str, Any]) -> list[list[tuple[int, int]]]:
    """Return responses of a step that has no records: those that were cut, and others of one length."""
    prompt, mean, longest, share = (
        metrics[name]
        for name in (
            *("prompt_length/mean", "response_length/mean"),
            *("response_length/max", "response_length/clip_ratio"),
        )
    )
    num_groups = config.data.train_batch_size
    num_rows = config.actor_rollout_ref.rollout.n * num_groups
    num_cut = max(1, round(share * num_rows))
    rest = max(1, round((mean * num_rows - num_cut * longest) / max(1, num_rows - num_cut)))
    rows = [(round(prompt), round(longest) if index < num_cut else rest) for index in range(num_rows)]
    return [rows[index::num_groups] for index in range(num_groups)]


def fit(runs: list[Run]) -> Constants:
    """Fit constants to runs that refine after their rollout, so that its seconds are sums, or that do not refine.

    exposed seconds = pass_s * passes + token_s * tokens + stage_s, least squares of relative errors; then what a token
    of a response costs, so that rollouts take what they took: of policies with LoRA apart from others.

    Raises:
        ValueError: If one refined during its rollout, or none refined.
    """
    rows, seconds = [], []
    units = [Constants(pace=Pace(pass_s=1.0, token_s=0.0)), Constants(pace=Pace(pass_s=0.0, token_s=1.0))]
    for run in runs:
        if run.measured_s and run.config.refiner.placement != "colocated":
            raise ValueError(f"{run.name}: constants are fitted to runs with refiner.placement=colocated")
        for step, *played in zip(run.steps, *map(run.play, units), strict=True):
            if measured := step.metrics["refiner/exposed_s"]:
                rows.append([*(exposed_s for _, exposed_s in played), 1.0])
                seconds.append(measured)
    if not rows:
        raise ValueError("none of the runs to fit refined anything")
    pass_s, token_s, stage_s = not_negative(np.array(rows), np.array(seconds))
    pace = Pace(pass_s=pass_s, token_s=token_s)
    plain = _width([run for run in runs if not run.has_adapter], pace, 1.0)
    return Constants(
        pace=pace,
        stage_s=stage_s,
        width=plain,
        adapter_width=_width([run for run in runs if run.has_adapter], pace, plain),
        origin=f"fitted to {', '.join(run.name for run in runs)}",
    )


def _width(runs: list[Run], pace: Pace, otherwise: float) -> float:
    """Return the width with which rollouts take what they took: the median over steps."""
    once, twice = (Constants(pace=pace, width=width, adapter_width=width) for width in (1.0, 2.0))
    found = []
    for run in runs:
        # Without refinements, which share the machine.
        steps = [replace(step, refinements=[[] for _ in step.responses]) for step in run.steps]
        bare = replace(run, steps=steps)
        for step, (least_s, _), (most_s, _) in zip(run.steps, bare.play(once), bare.play(twice), strict=True):
            if most_s > least_s:
                found.append(1 + (step.metrics["timing_s/gen"] - least_s) / (most_s - least_s))
    return max(0.1, statistics.median(found)) if found else otherwise


def not_negative(rows: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return the least squares of relative errors; a coefficient that would be negative is left out."""
    names = list(range(rows.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, names] / seconds[:, None], np.ones(len(seconds)), rcond=None)
        if (found >= 0).all():
            break
        names.remove(names[int(found.argmin())])
    solution = dict(zip(names, map(float, found), strict=True))
    return [solution.get(name, 0.0) for name in range(rows.shape[1])]
