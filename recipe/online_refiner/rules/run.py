"""What rules look at."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from recipe.online_refiner.blocks import RefinementConfig

if TYPE_CHECKING:  # they import torch and verl
    from recipe.online_refiner.files import Files
    from recipe.online_refiner.plan import Plan


@dataclass(kw_only=True)
class Run:
    """A run before it starts; whoever checks its files or sizes has set them."""

    config: DictConfig
    """The whole config, composed."""
    blocks: RefinementConfig
    """This extension's part of it."""
    files: "Files" = field(init=False)
    """Models, data and machine."""
    plan: "Plan" = field(init=False)
    """Sizes of the refiner."""
