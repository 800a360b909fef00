"""Agent loops whose sessions cannot be refined. Which loop a session has, the config does not tell: its row does."""

from transfer_queue import KVBatchMeta

from recipe.online_refiner import queue

NOT_MEDIA = {"mm_token_type_ids"}
"""What a processor returns for text as well."""


def refuse(rows: KVBatchMeta, *, is_reward_model_colocated: bool) -> None:
    """Refuse rows that would be refined wrongly.

    Args:
        rows: Rewarded rows, no padding.
        is_reward_model_colocated: Whether rewards come after the rollout, from a model that sleeps meanwhile.

    Raises:
        ValueError: If one is of such a loop; it says what to set.
    """
    advice = (
        "set actor_rollout_ref.rollout.agent.default_agent_loop (or the data's column agent_name) to another agent "
        "loop, or constraint.mode=none"
    )
    if any(not key.endswith("_0") for key in rows.keys):
        raise ValueError(f"an agent loop writes several rows for a session, of which none is the session; {advice}")
    data = queue.read(rows, "metrics", "multi_modal_inputs")
    if any(set(media) - NOT_MEDIA for media in queue.objects(data["multi_modal_inputs"])):
        raise ValueError(f"a tool's images would not reach the refiner, which reads text; {advice}")
    is_by_verl = all(metrics.get("compute_score") for metrics in queue.objects(data["metrics"]))  # seconds
    if not is_by_verl and not is_reward_model_colocated:
        raise ValueError(f"an agent loop rewards its sessions itself, and a refinement only verl could; {advice}")
