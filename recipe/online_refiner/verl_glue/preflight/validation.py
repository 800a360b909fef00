"""verl's own check of its config."""

import contextlib
import copy
import io
import sys

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config


def let_verl_check(config: DictConfig) -> None:
    """Let verl check its config, except the rank of an adapter: that check imports vLLM, which may not be installed.

    Raises:
        ValueError: If verl refuses a value; so do AssertionError and Hydra's errors.
    """
    model = config.actor_rollout_ref.model
    if max(model.lora_rank, OmegaConf.select(model, "lora.rank") or 0) > 0:  # a rule of ours has checked it
        config = copy.deepcopy(config)
        OmegaConf.update(config.actor_rollout_ref.model, "lora.merge", True, force_add=True)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    for line in [line for line in said.getvalue().splitlines() if not line.startswith("[validate_config]")]:
        print(line, file=sys.stderr)  # not that all is well
