"""The arguments of verl's own example scripts are accepted as often as the docs say, for the reasons that they give."""

import pytest
from composed import ARGUMENTS, NOT_COMPOSED, PAGE, page_of, refusals

ACCEPTED = 58
"""Scripts that are accepted. Raise it when more are, and never lower it without a line in the changelog."""


@pytest.fixture(scope="module")
def found() -> dict[str, str | None]:
    return refusals()


def test_no_script_is_lost(found: dict[str, str | None]) -> None:
    accepted = [name for name, reason in found.items() if reason is None]
    assert (len(accepted), len(ARGUMENTS)) == (ACCEPTED, 87)
    assert sum(reason != NOT_COMPOSED for reason in found.values()) == 82


def test_each_refusal_ends_with_its_rule(found: dict[str, str | None]) -> None:
    reasons = [reason for reason in found.values() if reason not in (None, NOT_COMPOSED)]
    assert reasons and all(reason and reason.endswith("]") for reason in reasons)


def test_the_page_has_these_results(found: dict[str, str | None]) -> None:
    assert PAGE.read_text() == page_of(found), "run: python tests/recipes/composed.py --write"
