"""The blocks of this extension's config, read from the run's. This module needs neither torch nor verl.

The keys of ``refiner`` are in ``refiner_worker/config.py``, the keys of ``constraint`` in ``method``, in one class for
each mode. Rules on these keys and on verl's keys are in ``rules``.
"""

import dataclasses
from typing import Any

import fsspec
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import field_validator
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method.constraint import Constraint, PositiveNumber
from recipe.online_refiner.method.modes import read_constraint
from refiner_worker.config import RefinerConfig, read_refiner
from refiner_worker.keys import BLOCK, NotNegative, from_key, read_keys


@dataclass(slots=True, kw_only=True, config=BLOCK)
class RecordsConfig:
    """The records of rollouts and refinements, which reports read (``recipe/runs/files.py``)."""

    path: str = from_key("run_dir") + "/refinements"
    """A folder that all nodes see, or a URL that fsspec knows (``s3://...``)."""

    @field_validator("path")
    @classmethod
    def _is_writable(cls, path: str) -> str:
        if path.startswith(("http://", "https://")):
            raise ValueError("nothing can be written by HTTP; set a folder, or a URL such as s3://bucket/run")
        if "://" in path:
            try:
                fsspec.get_filesystem_class(path.partition("://")[0])
            except ImportError as error:
                raise ValueError(error) from error
        return path


@dataclass(slots=True, kw_only=True, config=BLOCK)
class MeasureConfig:
    """The measurements in addition to what a step needs."""

    num_kl_rollouts: NotNegative | None = None
    """Responses per step, at most, on which KL(pi_theta || pi_0) is measured; 0: none. Null: 64; 0 with
    ``constraint.mode=none`` or placement ``external``. All of them where verl's workers compute it: static KL, or the
    actor without its adapter. Where it cannot be measured, a warning says why, and the run goes on."""
    cross_entropy_all_every: NotNegative = 10
    """Every so many steps, measure the cross-entropy over all refinements, not only accepted ones. 0: never."""


@dataclass(slots=True, kw_only=True, config=BLOCK)
class SizingConfig:
    """The machine for which ``dry_run=true`` estimates memory (``docs/cluster.md``)."""

    gpu_memory_gib: PositiveNumber | None = None
    """Memory of a GPU in GiB, to refuse what cannot fit. Null: this machine's; without a GPU nothing is checked."""


BLOCKS: dict[str, type] = {
    "measure": MeasureConfig,
    "records": RecordsConfig,
    "sizing": SizingConfig,
}
"""The blocks with a single class. `refiner` has a class for each placement, and `constraint` one for each mode."""


@dataclasses.dataclass(slots=True, kw_only=True)
class RefinementConfig:
    """The blocks of this extension."""

    refiner: RefinerConfig
    constraint: Constraint
    measure: MeasureConfig
    records: RecordsConfig
    sizing: SizingConfig
    has_reference_worker: bool
    """Whether verl computes the reference's log-probs itself (static KL in reward or loss)."""
    temperature: float
    """The temperature of rollouts, at which verl computes log-probs."""
    hosting_fault: str | None
    """One line on why this run cannot host replicas of the refiner; None if it can."""
    trains_lora: bool
    """Whether the policy is an adapter, so that the actor without the adapter has the policy's first weights."""

    @property
    def refines(self) -> bool:
        """Whether a step has a refine stage."""
        return self.constraint.refines

    @property
    def differs_by_source(self) -> bool:
        """Whether the refiner or the weight of the constraint differs by data source."""
        return bool(self.refiner.by_source or self.constraint.by_source)

    @property
    def streams(self) -> bool:
        """Whether responses are refined during the rollout."""
        return self.refines and self.refiner.streaming

    @property
    def hosts_refiner(self) -> bool:
        """Whether the run needs the reference model (to refine, or to measure the KL to it)."""
        return self.refines or self.measures_kl

    @property
    def num_kl_rollouts(self) -> int:
        """The largest number of responses per step on which the KL to the reference is measured; 0 if it cannot be."""
        return self._num_kl_asked if self.fault_of_kl is None else 0

    @property
    def _num_kl_asked(self) -> int:
        default = 64 if self.refines and self.refiner.placement != "external" else 0
        return default if self.measure.num_kl_rollouts is None else self.measure.num_kl_rollouts

    @property
    def fault_of_kl(self) -> str | None:
        """One line on why the KL to the reference cannot be measured; None if it can be, or is not wanted."""
        if self._num_kl_asked == 0 or self.has_reference_worker:
            return None
        key = f"measure.num_kl_rollouts={self._num_kl_asked}"
        if self.hosting_fault and not self.refines:  # else a rule refuses the run
            return f"{key}: {self.hosting_fault}"
        if self.refiner.has_replicas and self.temperature != 1:
            return (
                f"{key} with actor_rollout_ref.rollout.temperature={self.temperature}: the refiner's log-probs are at "
                "temperature 1; set actor_rollout_ref.rollout.temperature=1 to measure the KL"
            )
        if not self.refiner.has_replicas and not self.trains_lora:
            return (
                f"{key} with refiner.placement={self.refiner.placement}: only the actor without its adapter gives the "
                "reference's log-probs; to measure the KL, set actor_rollout_ref.actor.use_kl_loss=true and "
                "actor_rollout_ref.actor.kl_loss_coef=0, or train a LoRA (actor_rollout_ref.model.lora_rank=16)"
            )
        return None

    @property
    def measures_kl(self) -> bool:
        """Whether the KL to the reference is measured with the refiner's replicas."""
        return self.num_kl_rollouts > 0 and not self.has_reference_worker and self.refiner.has_replicas

    @property
    def measures_kl_by_actor(self) -> bool:
        """Whether the KL is measured with the actor without its adapter: vLLM has no prompt log-probs with adapters."""
        return self.num_kl_rollouts > 0 and not self.has_reference_worker and not self.refiner.has_replicas

    @property
    def is_shared(self) -> bool:
        """Whether the rollout's servers refine."""
        return self.refiner.placement == "shared"


def read_blocks(config: DictConfig) -> RefinementConfig:
    """Read this extension's blocks of a composed config, interpolations not yet resolved.

    Raises:
        ValueError: If a key is unknown, missing or of a wrong type.
    """
    blocks: dict[str, Any] = {
        name: read_keys(name, block, _values(config, name), f"the block {name}") for name, block in BLOCKS.items()
    }
    refiner = _values(config, "refiner")
    for field in dataclasses.fields(RefinerConfig):
        if refiner.get(field.name) is None and str(field.default).startswith("${"):  # null stands for that key's value
            refiner[field.name] = OmegaConf.select(config, str(field.default)[2:-1])
    blocks["refiner"] = read_refiner(refiner)
    blocks["constraint"] = read_constraint(_values(config, "constraint"))
    has_reference = bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)
    return RefinementConfig(
        **blocks,
        has_reference_worker=has_reference,
        hosting_fault=blocks["refiner"].hosting_fault(config),
        temperature=config.actor_rollout_ref.rollout.temperature,
        trains_lora=config.actor_rollout_ref.model.lora_rank != 0,
    )


def _values(config: DictConfig, name: str) -> dict[str, Any]:
    """Return the values of a block by key."""
    if not isinstance(config.get(name), DictConfig):
        raise ValueError(f"the config has no block `{name}`; add `refinement: online` to its defaults list")
    try:
        values: Any = OmegaConf.to_container(config[name], resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
    return values
