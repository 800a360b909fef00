"""Every change that this recipe makes to verl on all machines, with its reason.

``tests/unit/online_refiner/test_verl_patches.py`` fails when verl fixes or moves a function that is replaced here.
"""

import asyncio
import logging
from collections import Counter
from functools import wraps
from importlib.util import find_spec
from typing import Any

import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transformers.models.glm4v.modeling_glm4v import Glm4vTextAttention
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLAttention
from verl.experimental.reward_loop import reward_loop
from verl.models.transformers import glm4v, qwen2_vl
from verl.protocol import DataProto
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils import tensordict_utils as tu
from verl.workers import engine_workers
from verl.workers.engine import base as engine_base

from recipe.online_refiner.method.pairs import group_of
from recipe.online_refiner.verl_glue import reward_managers
from recipe.online_refiner.verl_glue.rows import pair_of, read_numbers
from recipe.rewarding.answers import awaited, checked_score
from refiner_worker.client import RunEndedError

NUM_POSITIONS = 4
"""The number of positions that a token has in verl if the model uses M-RoPE: text, time, height and width."""
POLL_S = 0.2
"""The seconds between two looks for new rollouts; with verl's 2 s, a step would wait one second for nothing on average.
"""


class RewardLoopWorker(reward_loop.RewardLoopWorker):
    """verl's reward worker, whose answers are complete and whose rewards are finite numbers (``rewards.py``).

    Reason: ``RewardLoopWorker.compute_score_disrm`` returns the score alone, and
    ``AgentLoopWorker._compute_score`` (``verl/experimental/agent_loop/agent_loop.py``) reads ``reward_extra_info`` from
    the answer: a reward model on GPUs of its own ends the first rollout with a KeyError.
    """

    def _init_reward_fn(self) -> None:
        reward_managers.apply()
        super()._init_reward_fn()

    async def compute_score(self, data: DataProto) -> dict[str, Any]:
        """Return verl's answer with a reward that is a float, whoever gave it: a function, a manager or a model.

        Raises:
            ValueError: If the reward is no finite number.
        """
        answer: dict[str, Any] = await awaited(super().compute_score(data))
        return {**answer, "reward_score": checked_score(answer["reward_score"])}

    async def compute_score_disrm(self, data: DataProto) -> dict[str, Any]:
        """Return the reward model's score and, as every other reward does, a (here empty) dict of extras."""
        return {"reward_extra_info": {}, **await super().compute_score_disrm(data)}

    async def numbers(self, rows: KVBatchMeta) -> list[dict[str, float | None]]:
        """Return the numbers that the reward function said beside the rewards of some rows: no text leaves this."""
        return await asyncio.to_thread(read_numbers, rows)


def poll_often(buffer: ReplayBuffer) -> ReplayBuffer:
    """Let a buffer look for new rollouts every POLL_S seconds.

    Reason: no setting reaches verl's interval. Its attribute stays as it is: for
    ``PPOTrainerSeparateAsync._step_had_idle`` it is also the wait from which on a step was idle.
    """
    wait = buffer._wait_for_next_poll

    def waited(partition_id: str, last_debug_time: float) -> float:
        interval, buffer.poll_interval = buffer.poll_interval, POLL_S
        try:
            return wait(partition_id, last_debug_time)
        finally:
            buffer.poll_interval = interval

    buffer._wait_for_next_poll = waited
    return buffer


def keep_refined(buffer: ReplayBuffer) -> ReplayBuffer:
    """Let groups whose rewards are all equal pass DAPO's filter where a refinement of theirs is better.

    Reason: ``ReplayBuffer._dapo_filtered_keys`` evicts them, and no setting exempts any.
    """
    find = buffer._dapo_filtered_keys

    def filtered(partition_id: str) -> tuple[set[str], Counter]:
        groups, counts = find(partition_id)
        tags = ((group_of(key), tag) for key, tag in buffer.partitions[partition_id].items())
        pairs = ((group, pair_of(tag)) for group, tag in tags if group in groups)  # each poll would read all others
        kept = {group for group, pair in pairs if pair is not None and pair.is_accepted}
        rewards = buffer._dapo_classification_cache[partition_id]
        return groups - kept, counts - Counter(rewards[group] for group in kept)

    buffer._dapo_filtered_keys = filtered
    return buffer


def end_if_most_fail(buffer: ReplayBuffer, num_wanted: int) -> ReplayBuffer:
    """Let a run end where more groups of a step fail than the step wants.

    Reason: ``ReplayBufferAsync`` takes out every group with a failed session and asks for another one, without end.
    """
    evict, num_failed = buffer._evict_terminal_groups, Counter[int]()

    def counted(step: int, partition_id: str, reasons: tuple[set, set, set, Counter]) -> Any:
        num_failed[step] += len(reasons[2])
        if num_failed[step] > num_wanted:
            raise RunEndedError(
                f"step {step}: {num_failed[step]} prompts are lost, more than the step wants: a rollout of each failed "
                "in its agent loop or reward; the log above has the errors."
            )
        return evict(step, partition_id, reasons)

    buffer._evict_terminal_groups = counted
    return buffer


def forget_trained_rows(partition_id: str = "train") -> None:
    """Remove the rows of a restored queue that belong to no prompt.

    Reason: verl saves the queue before it clears the step's rows (``PPOTrainer.fit``), and nothing asks for them later:
    each resume would leave a step's rows, until the queue is full.
    """
    items = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    prompts = {key for key, tag in items.items() if tag.get("is_prompt", False)}
    if gone := [key for key in items if key not in prompts and group_of(key) not in prompts]:
        tq.kv_clear(keys=gone, partition_id=partition_id)


def split_positions(data: TensorDict) -> None:
    """Give the rows of a batch from the TransferQueue their own M-RoPE positions, (4, length) each.

    Reason: the queue packs rows by ``as_nested_tensor``, which lays rows of different lengths side by side, but rows of
    one length, and a single row, one below the other. verl's ``maybe_fix_3d_position_ids`` takes all for the former,
    and the next selection of rows fails.
    """
    positions: Any = data.get("position_ids", None)
    if positions is None or not positions.is_nested or positions.dim() < 3:
        return
    values, lengths = positions.values(), positions.offsets().diff().tolist()
    are_stacked = len(values) == NUM_POSITIONS * len(lengths)
    rows = values.split(NUM_POSITIONS) if are_stacked else values.split(lengths, dim=1)
    data["position_ids"] = tu.nested_tensor_from_tensor_list(list(rows))


def unpack_pictures(module: Any) -> None:
    """Let verl's module of a vision model take the embeddings of pictures from what the vision tower returns.

    Reason: since transformers 5 a tower returns an object. ``_get_input_embeds`` of Qwen2-VL and Qwen2.5-VL unpacks it
    only for rows with pictures, so micro-batches of text, for which it sees a black picture, end in an AttributeError;
    that of GLM-4V never unpacks it.
    """
    embed = module._get_input_embeds
    if hasattr(embed, "__wrapped__"):
        return

    @wraps(embed)
    def unpacked(model: Any, *arguments: Any, **settings: Any) -> Any:
        hook = model.visual.register_forward_hook(lambda _, __, output: getattr(output, "pooler_output", output))
        try:
            return embed(model, *arguments, **settings)
        finally:
            hook.remove()

    module._get_input_embeds = unpacked


def keep_own_attention() -> None:
    """Let Qwen2-VL, Qwen2.5-VL and GLM-4V keep the attention of transformers, which finds packed rows by positions.

    Reason: ``apply_monkey_patch`` gives them one that calls flash-attn. Without flash-attn it ends in a NameError.
    Sequence parallelism needs it, and is refused without flash-attn (``recipe/preflight/machine.py``).
    """
    qwen2_vl.qwen2_vl_attn_forward = Qwen2_5_VLAttention.forward
    glm4v.glm4v_attn_forward = Glm4vTextAttention.forward


def mend_models() -> None:
    """Apply what models need in this process, a worker of the policy; a second call changes nothing."""
    engine_workers.maybe_fix_3d_position_ids = engine_base.maybe_fix_3d_position_ids = split_positions
    for module in (qwen2_vl, glm4v):
        unpack_pictures(module)
    if find_spec("flash_attn") is None:
        keep_own_attention()


def apply() -> None:
    """Apply every patch of the trainer in this process; a second call changes nothing."""
    reward_loop.RewardLoopWorker = RewardLoopWorker  # RewardLoopManager makes its Ray actors from this name
    # With actor_rollout_ref.hybrid_engine=false, PPOTrainerSeparateAsync._setup logs a line with flush=True, which
    # loggers do not know: the run ends with a TypeError where such lines are shown.
    trainer_separate_async.logger.setLevel(logging.WARNING)
