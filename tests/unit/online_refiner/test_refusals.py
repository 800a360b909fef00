"""Rollouts with which a step does not go on: too few, or of agent loops whose sessions cannot be refined."""

import pytest
from transfer_queue import KVBatchMeta

from recipe.online_refiner.verl_glue.refine_actors import refuse
from recipe.online_refiner.verl_glue.watch import MIN_SHARE_OF_ROLLOUTS, refuse_too_few
from refiner_worker.client import RunEndedError


def test_a_session_of_several_rows_is_refused() -> None:
    rows = KVBatchMeta(keys=["a_0_0", "a_0_1"], tags=[{}, {}], partition_id="train")
    with pytest.raises(ValueError, match="several rows for a session.*agent_name.*constraint.mode=none"):
        refuse(rows, [], is_reward_model_colocated=False)


def test_a_step_with_too_few_rollouts_ends_the_run() -> None:
    least = int(100 * MIN_SHARE_OF_ROLLOUTS)
    refuse_too_few(least, 100, step=3)
    with pytest.raises(RunEndedError, match=f"step 3: {least - 1} of 100"):
        refuse_too_few(least - 1, 100, step=3)
