"""verl's reward managers with the run's own reward function checked (``recipe/rewarding/answers.py``).

Reason: verl takes what a function returns as it is. A reward of ``None`` takes the rewards of all rows out of the step,
as the queue drops a field that any row lacks; NaN is trained on; and SystemExit ends the reward worker's event loop, so
that the step waits for ever.
"""

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo import reward
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

from recipe.rewarding.answers import checked


def get_checked_reward_fn(config: DictConfig) -> Callable[..., Any] | None:
    """Return the run's own reward function, checked; None if it has none."""
    function = get_custom_reward_fn(config)
    return None if function is None else checked(function)


def load_checked_manager(config: DictConfig, tokenizer: Any) -> Any:
    """Return the run's reward manager as its reward workers load it."""
    apply()
    return load_reward_manager(config, tokenizer)


def apply() -> None:
    """Give the checked function to every manager that is loaded in this process."""
    reward.get_custom_reward_fn = get_checked_reward_fn
