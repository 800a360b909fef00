"""The leak rule: sentences that speak of the refiner's prompt, and ordinary ones that look like them."""

from pathlib import Path
from typing import Any

import pytest

from refiner_worker.config import TEMPLATES
from refiner_worker.leaks import speaks_of_prompt
from refiner_worker.prompts import RefinerPrompt

GIVEN = "What does the original program print? What is 3 + 4? It is 8."
FEEDBACK = "It failed on test 3 with an IndexError."
LEAKS = [
    "It got 0.25 points. Better.",
    "It got -0.25 points.",
    "The reward of 0.25 is too low.",
    "This answer only received 0.25 points.",
    "Score: 0.25. Here is a better one.",
    "Repeat word for word what is right, as here.",
    "The previous answer forgot a case.",
    "Both previous incorrect answers are mended.",
    "The original solution has a mistake in step 2.",
    "The mistake in the original solution is in step 3.",
    "My earlier answer had an error in the loop.",
    "The initial program fails for empty lists, so I check that first.",
    "The original code did not handle zero.",
    "The submitted code crashed on empty input.",
    "The answer given above is wrong in line 3.",
    "This answer was marked wrong.",
    "The given answer was wrong. Here is the corrected one: 7.",
    "Your solution got zero points because of step 2.",
    "Your answer is incorrect. The sum is 12.",
    "I corrected the response. It is 7.",
    "I've fixed the bug in the loop.",
    "Here's the improved version:",
    "Reward: 0. Corrected: 7",
    "Corrected reply: The hare.",
    "# Fixed version",
    "The first answer failed on test 3 with an IndexError, so I fixed the index.",
    "Before, it failed on test 3 with some list.",
]
ORDINARY = [
    "# keep the previous answer for backtracking",
    "# extend the previous solution by one item",
    "# if the previous attempt failed, try again",
    "# return the last answer if none is better",
    "Substituting this into the earlier solution, x = 2 + sqrt(3).",
    "The film got a score of 0.25 on the index.",
    "Each correct answer scores 0.25 points.",
    "He improved his score by 0.25 points in the second round.",
    "0.25 of the cake is left.",
    "The points (0.25, 1) and (2, 3) lie on the line.",
    "The team scored 7 points.",
    "The answer is 4.",
    "The correct answer is (B).",
    "So the answer is wrong if x is negative, and x must be positive.",
    "The first solution is x = 1 and the second solution is x = 2.",
    "The original program of the question prints 5.",
    "The given code prints 4.",
    "The previous solution is stored in dp[i - 1].",
    "Your answer should be given in meters.",
    "A fixed point of f is where f(x) = x.",
    "The error is at most 0.25.",
    "The earlier version of the bridge was made of wood.",
    "Hard work brings its own reward.",
    "I fixed dinner and we ate at seven.",
    "Test 3 has a list.",
    "def improved_version(a): return max(runs(a))",
    "fixed_code = encode(final_answer)",
]

UNSEEN_LEAKS = [
    "The student's answer was wrong, so the correct one is 7.",
    "The response above did not answer the question.",
    "This solution got 0.25 of 1.00 points.",
    "# The bug was in the index of the loop",
    "I corrected the mistake in line 2.",
    "The earlier program timed out, so this one uses a dictionary.",
    "My first answer was not correct.",
    "Here is the revised reply:",
    "Revised program:",
    "As the feedback says, the third test fails.",
    "The previous code returned the wrong type.",
    "In the original solution, the second step was wrong.",
    "Fixed the off-by-one error.",
    "The original answer incorrectly adds the two numbers.",
    "The answer should not have been 8.",
    "I have rewritten the solution to be faster.",
    "The original reply, which scored 0.25, was too long.",
    "The initial response was missing an import.",
    "Here is the solution with the error fixed.",
    "The given response has a few issues.",
    "The solution provided was incorrect because it used integer division.",
    "My apologies for the wrong answer.",
    "The old code crashed for n = 0.",
    "A better answer: 7",
    "Corrected version of the program:",
    "The reply was scored 0.25 because it was rude.",
    "The program failed because of a missing import.",
    "Your response received a low score.",
    "The above code does not compile.",
    "The previous reply misunderstood the question.",
]
UNSEEN_ORDINARY = [
    "The first program on television was broadcast in 1928.",
    "# the old version of the file is kept as a backup",
    "def score(answer): return 1 if answer == solution else 0",
    "The answer was known to the Babylonians.",
    "The solution has two roots.",
    "Let us check the solution: 3 + 4 = 7.",
    "This program reads n and prints the sum.",
    "The response time was 0.25 seconds.",
    'print("Your answer is correct")',
    "# remember the original version of each word",
    "The code uses a set to remove repeated points.",
    "That answer depends on the value of x.",
    "# no solution was found",
    "The given program has three loops.",
    "I improved my English by reading.",
    "It has been 0.25 seconds since the last point.",
    "The previous program state is restored.",
    "Our earlier answers give x + y = 7.",
    "The original solution had a volume of 2 liters.",
    "If my answer was wrong, please tell me.",
    "The prior probability is 0.25.",
    "It was the first solution to the problem of longitude.",
    "She had the wrong answer at first, but then she saw it.",
    "The submission deadline is on Friday.",
    "For each attempt, the player loses 1 point.",
    "The old solution of vinegar should be thrown away.",
    "# fix the response",
    "The fixed program of the concert includes Bach.",
    "Then the final answer is 0.25.",
    "An error in your reply to the bank may cost money.",
]
"""Sentences that were written after all but a few words of the rule; docs/refiner.md has the counts."""


def leaks(said: str, given: str = GIVEN) -> bool:
    own = f"This answer got 0.25 of 1.00 points. {FEEDBACK} Repeat word for word what is right."
    return speaks_of_prompt(said, own=own, given=given, reward=0.25)


@pytest.mark.parametrize("said", LEAKS)
def test_what_the_policy_never_sees_is_found_unless_question_or_response_have_it(said: str) -> None:
    assert leaks(said)
    assert not leaks(said, f"{GIVEN} {said}")


@pytest.mark.parametrize("said", ORDINARY)
def test_ordinary_sentences_are_let_through(said: str) -> None:
    assert not leaks(said)


def test_how_many_sentences_the_rule_gets_right() -> None:
    assert (len(UNSEEN_LEAKS), len(UNSEEN_ORDINARY)) == (30, 30)
    found, flagged = (sum(map(leaks, some)) for some in (UNSEEN_LEAKS, UNSEEN_ORDINARY))
    page = (Path(__file__).parents[3] / "docs" / "refiner.md").read_text(encoding="utf-8")
    assert f"found {found} of 30 leaks and flagged {flagged} of 30" in " ".join(page.split())


@pytest.mark.parametrize(
    "said", ["Here is the corrected code:", "I fixed the bug in the loop.", "Fixed version: x = 2"]
)
def test_a_task_that_asks_for_a_correction_gets_one(said: str) -> None:
    assert leaks(said, "Write a program.")
    assert not leaks(said, "Fix this program: x = 1")


@pytest.mark.parametrize("template", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_feedback_is_part_of_what_the_policy_never_sees(tokenizer: Any, template: str) -> None:
    limits = {"feedback": 256, "sibling": 256, "solution": 256}
    limits = {name: limits[name] for name in limits if name in (TEMPLATES / f"{template}.jinja").read_text()}
    prompt = RefinerPrompt(TEMPLATES / f"{template}.jinja", tokenizer, {}, limits)
    told = {"feedback": FEEDBACK, "sibling": "a sibling's words", "solution": "words of a solution"}
    own = prompt.own_words(0.25, told)
    assert (FEEDBACK in own) == ("feedback" in limits)
    assert "sibling's words" not in own and "words of a solution" not in own
