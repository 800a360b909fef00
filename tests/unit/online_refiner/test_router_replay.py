"""Rows of refinements beside rows whose experts are replayed: what verl's own functions for Megatron make of them."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from recipe.online_refiner.verl_glue.loss import append_refined_rows, jagged

PROMPTS, RESPONSES, REFINED = [[3, 4], [5]], [[11, 12, 13], [14, 15, 16]], [[21, 22, 23, 24], [25]]
NUM_EXPERTS, NUM_LAYERS, TOP_K = 8, 2, 2
ORDER = [2, 0, 3, 1]  # an update sorts its rows


@pytest.fixture
def routes() -> list[torch.Tensor]:
    """Experts that the rollout chose, (length, layers, k) for each of two rows; the last token has none."""
    generator = torch.Generator().manual_seed(1)
    lengths = [len(prompt) + len(response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    chosen = [torch.rand(length, NUM_LAYERS, NUM_EXPERTS, generator=generator).argsort(-1) for length in lengths]
    routes = [one[..., :TOP_K].to(torch.int16) for one in chosen]
    for one in routes:
        one[-1] = 0
    return routes


@pytest.fixture
def longer(routes: list[torch.Tensor]) -> TensorDict:
    """A mini-batch of two rows, the refinement of the first one and an empty row."""
    columns = {"prompts": PROMPTS, "responses": RESPONSES, "refine_ids": REFINED}
    data: dict[str, Any] = {name: jagged([torch.tensor(row) for row in rows]) for name, rows in columns.items()}
    whole = [torch.tensor(prompt + response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    data |= {"input_ids": jagged(whole), "position_ids": jagged([torch.arange(len(row)) for row in whole])}
    data["response_mask"] = jagged([torch.ones(len(row), dtype=torch.int64) for row in RESPONSES])
    data["refine_weights"] = jagged([torch.ones(len(row)) for row in REFINED])
    data |= {"refine_start": torch.zeros(2, dtype=torch.int64), "refine_used": torch.tensor([1, 0])}
    data["routed_experts"] = jagged(routes)
    return append_refined_rows(tu.get_tensordict(data, {}), 2)


def test_refined_rows_have_no_routes_and_the_others_keep_theirs(routes: list[torch.Tensor], longer: TensorDict) -> None:
    kept = longer["routed_experts"].unbind()
    assert all(torch.equal(*pair) for pair in zip(kept[:2], routes, strict=True))
    assert [tuple(row.shape) for row in kept[2:]] == [(6, NUM_LAYERS, TOP_K), (2, NUM_LAYERS, TOP_K)]
    assert not any(row.any() for row in kept[2:]) and {row.dtype for row in kept} == {torch.int16}


def test_refined_rows_choose_their_experts_where_the_others_replay(
    routes: list[torch.Tensor], longer: TensorDict
) -> None:
    # Here: Megatron takes seconds to import.
    from verl.utils.megatron.router_replay_patch import RouterReplay, RouterReplayAction
    from verl.utils.megatron.router_replay_utils import align_r3_router_replay_data, build_r3_replay_mask

    data = tu.index_select_tensor_dict(longer, ORDER)
    mask = build_r3_replay_mask(data["input_ids"], data["response_mask"])
    targets = align_r3_router_replay_data(data["routed_experts"], data["input_ids"])
    own: list[torch.Tensor] = [torch.empty(6, 0), routes[0], torch.empty(2, 0), routes[1]]
    for layer in range(NUM_LAYERS):
        scores = torch.randn(len(mask.values()), NUM_EXPERTS, generator=torch.Generator().manual_seed(layer))
        router = RouterReplay()
        router.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        router.set_target_indices(targets.values()[:, layer].long(), mask.values())
        native = scores.topk(TOP_K)
        probs, chosen = router.get_replay_topk(scores, TOP_K, default_compute_topk=lambda one, k, **_: one.topk(k))
        assert torch.equal(probs, scores.gather(1, chosen))
        lengths = mask.offsets().diff().tolist()
        for row, found, live in zip(own, chosen.split(lengths), native.indices.split(lengths), strict=True):
            replayed = len(row) - 1 if row.dim() == 3 else 0  # no log-prob depends on the last token's route
            expected = [*row[:replayed, layer].tolist(), *live[replayed:].tolist()] if replayed else live.tolist()
            assert found.tolist() == expected
