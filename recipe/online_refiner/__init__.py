"""RL fine-tuning with an online refiner: a reward-gated dynamic constraint on top of verl's trainers."""

import importlib.util
import os
from pathlib import Path

from recipe.own_names import refuse_hidden

__version__ = "0.5.0"

# Where verl's configs are, for config/online_refiner.yaml: Hydra would import verl, and torch with it, to find them.
if _verl := importlib.util.find_spec("verl"):
    os.environ["VERL_CONFIG"] = str(Path(str(_verl.origin)).parent / "trainer" / "config")

# For config/experiment/quickstart.yaml, whose rows are a part of this package.
os.environ["QUICKSTART_DATA"] = str(Path(__file__).parents[1] / "quickstart")

refuse_hidden(__name__, "refiner_worker")
