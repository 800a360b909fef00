"""Points that reasoning-gym gives for the length of a right answer within what was answered."""

import pytest

from reward.judge.puzzles import is_for_a_part


@pytest.mark.parametrize(
    ("found", "answer", "expected"),
    [
        ("5000", "500", True),
        ("1500", "500", True),
        ("-3", "3", True),
        ("3.5", "3", True),
        ("attached", "tac", True),
        ("It is 500.", "500", False),
        ("x=3, so 3", "3", False),
        ("500 or 1500", "500", False),
        ("500", "500", False),
    ],
)
def test_a_right_answer_within_another_word_brings_nothing(found: str, answer: str, expected: bool) -> None:
    assert is_for_a_part(len(answer) / len(found), found, answer) is expected


def test_points_for_something_else_stay() -> None:
    assert not is_for_a_part(0.3, "5000", "500") and not is_for_a_part(0.0, "7", "500")
