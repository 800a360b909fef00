"""How many GPUs share a sequence."""

from omegaconf import DictConfig


def num_shares(block: DictConfig) -> int:
    """Return how many GPUs share a sequence of the actor, or of the critic."""
    if block.strategy == "megatron":
        return block.megatron.context_parallel_size
    if block.strategy == "veomni":
        return block.veomni.ulysses_parallel_size
    if block.strategy not in ("fsdp", "fsdp2"):
        return 1
    engine = block.fsdp_config if "fsdp_config" in block else block.fsdp
    return max(block.get("ulysses_sequence_parallel_size") or 1, engine.ulysses_sequence_parallel_size)  # verl's older
