"""What runs measured: the requests of their steps, and what a step took."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner.rollout import SKIPPED, group_of
from recipe.online_refiner.run_dir import read_rows, refinement_lines
from recipe.online_refiner.sizing.constants import Constants
from recipe.online_refiner.sizing.fleet import Group, Played, Pool, Setting, simulate
from recipe.online_refiner.sizing.replicas import Request

NOT_REQUESTED = (*SKIPPED, "own")


@dataclass(slots=True, kw_only=True)
class Step:
    """One step's requests, by prompt, and what it took."""

    responses: list[list[tuple[int, int]]]
    """(prompt, answer) tokens of a group's responses."""
    refinements: list[list[tuple[int, int]]]
    """The same of its refinements."""
    metrics: dict[str, float]

    def groups(self, width: float) -> list[Group]:
        """Return requests for a simulation; a token of a response costs ``width``."""
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

    def setting(self, constants: Constants, step: Step) -> Setting:
        """Return who refined, with these constants."""
        config = self.config
        rollout, refiner = config.actor_rollout_ref.rollout, config.refiner
        size = rollout.tensor_model_parallel_size
        num_replicas = max(1, config.trainer.nnodes * config.trainer.n_gpus_per_node // size)
        num_refiners = max(1, round(step.metrics.get("refiner/num_replicas") or 1))
        most = min(rollout.max_num_seqs, refiner.max_requests_in_flight)
        return Setting(
            rollout=Pool(num_replicas=num_replicas, pace=constants.rollout, max_running=rollout.max_num_seqs),
            refiner=Pool(num_replicas=num_refiners, pace=constants.refiner, max_running=most),
            placement=refiner.placement,
            streams=refiner.placement != "colocated" and refiner.streaming is not False,
            reward_s=constants.reward_s,
            stage_s=constants.stage_s,
            shares_cores=config.trainer.device == "cpu",
        )

    def play(self, constants: Constants) -> list[Played]:
        """Play every step."""
        width = constants.rollout_width
        return [simulate(self.setting(constants, step), step.groups(width)) for step in self.steps]


def read_run(folder: Path) -> Run:
    """Read a run directory.

    Raises:
        ValueError: If it has less than two steps, or its records have no numbers of tokens.
    """
    metrics = list(read_rows(folder / "metrics.jsonl")) if (folder / "metrics.jsonl").exists() else []
    if len(metrics) < 2:
        raise ValueError(f"{folder}: no run of two steps (the first one, in which engines warm up, is left out)")
    config: Any = OmegaConf.load(folder / "config.yaml")
    records: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in refinement_lines(folder):
        row = json.loads(line)
        if "refine_tokens" not in row:
            raise ValueError(f"{folder}: its records have no numbers of tokens: a run of an earlier release")
        records[row["step"]].append(row)
    steps = [_step(config, row, records[row["step"]]) for row in metrics[1:]]
    return Run(name=folder.name, config=config, steps=steps)


def _step(config: DictConfig, metrics: dict[str, Any], records: list[dict[str, Any]]) -> Step:
    prompt = round(metrics["prompt_length/mean"])
    if not records:  # nothing was refined
        return Step(responses=_even(config, metrics, prompt), refinements=_none(config), metrics=metrics)
    responses: dict[str, list[tuple[int, int]]] = defaultdict(list)
    refinements: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in records:
        group = group_of(row["key"])
        responses[group].append((row["prompt_tokens"], row["response_tokens"]))
        refinements[group] += (
            [(row["refine_prompt_tokens"], row["refine_tokens"])]
            if row["verdict"] not in NOT_REQUESTED and row["refine_tokens"]
            else []
        )
    return Step(
        responses=list(responses.values()), refinements=[refinements[key] for key in responses], metrics=metrics
    )


def _even(config: DictConfig, metrics: dict[str, Any], prompt: int) -> list[list[tuple[int, int]]]:
    """Return responses of a step that has no records: those that were cut, and others of one length."""
    mean, longest, share = (
        metrics[name] for name in ("response_length/mean", "response_length/max", "response_length/clip_ratio")
    )
    size, num_groups = config.actor_rollout_ref.rollout.n, config.data.train_batch_size
    num_cut = max(1, round(share * size * num_groups))
    rest = round((mean * size * num_groups - num_cut * longest) / max(1, size * num_groups - num_cut))
    lengths = [round(longest) if index < num_cut else max(1, rest) for index in range(size * num_groups)]
    return [[(prompt, length) for length in lengths[index::num_groups]] for index in range(num_groups)]


def _none(config: DictConfig) -> list[list[tuple[int, int]]]:
    return [[] for _ in range(config.data.train_batch_size)]
