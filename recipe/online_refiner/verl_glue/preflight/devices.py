"""The devices of this machine, as verl knows them."""

from omegaconf import DictConfig
from verl.utils.device import auto_set_device, get_torch_device


def num_devices() -> int:
    """Return the number of visible devices, of whichever kind verl has found."""
    return int(get_torch_device().device_count())


def name_device(config: DictConfig) -> None:
    """Set ``trainer.device`` to the kind of device that verl has found, as its ``main_ppo`` does later."""
    auto_set_device(config)
