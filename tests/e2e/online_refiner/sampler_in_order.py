"""A sampler for verl's asynchronous trainers that gives equal runs equal mini-batches."""

from collections.abc import Iterable

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync


class InOrder(ReplayBufferAsync):
    """Waits until every response is there, and takes prompts in the order in which they were sent."""

    def _has_enough_samples(self, global_steps: int, partition_id: str, *arguments: object) -> bool:
        is_writing = self.pending_keys[partition_id] | self.running_keys[partition_id]
        return not is_writing and super()._has_enough_samples(global_steps, partition_id, *arguments)

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: Iterable[str], batch_size: int) -> tuple:
        keys = [key for key in self.prompt_global_steps[partition_id] if key in sampleable_keys]
        return super()._select_prompt_uids(partition_id, keys, batch_size)
