"""What of a refinement only the refiner can have known."""

import pytest

from refiner_worker.copying import RUN, num_copied

SOURCE = list(range(100, 120))


@pytest.mark.parametrize(
    ("answer", "known", "copied"),
    [
        (SOURCE, [], 20),
        ([1, *SOURCE[:RUN], 2], [], RUN),
        ([1, *SOURCE[: RUN - 1], 2], [], 0),  # too short to tell
        ([*SOURCE[:RUN], 5, *SOURCE[10:]], [], RUN + 10),
        ([*SOURCE[: RUN + 1]], [], RUN + 1),  # runs that overlap count once
        (SOURCE, [SOURCE], 0),  # the response has it already
        (SOURCE, [[7], SOURCE[:10]], 20 - 3),  # up to the first run that goes beyond what is known
        (list(range(20)), [], 0),
        ([], [], 0),
    ],
)
def test_tokens_in_runs_that_a_source_has(answer: list[int], known: list[list[int]], copied: int) -> None:
    assert num_copied(answer, [SOURCE, [7] * RUN], known) == copied
