"""The verdicts on a response in words, as the page shows them."""

from recipe.online_refiner.method.pairs import Verdict

VERDICTS: dict[str, str] = {
    Verdict.NONE: "not refined",
    Verdict.MAX_REWARD: "not refined: it has the highest reward",
    Verdict.NOT_CHOSEN: "not refined: others of its group go first",
    Verdict.OVER_BUDGET: "not refined: over refiner.budget",
    Verdict.TOO_LONG: "not refined: too long for the refiner",
    Verdict.NO_ANSWER: "not refined: it ends within its thought",
    Verdict.NO_TURN: "not refined: it does not end with the policy's turn",
    Verdict.NOT_ASKED: "not refined: the constraint needs none",
    Verdict.TIMEOUT: "failed: the refiner took too long",
    Verdict.REQUEST: "failed: the refiner refused or lost it",
    Verdict.THOUGHT: "failed: cut within the refiner's thought",
    Verdict.TRUNCATED: "failed: cut by the length limit",
    Verdict.EMPTY: "failed: it is empty",
    Verdict.ENCODING: "failed: its text has no tokens",
    Verdict.LEAK: "failed: it speaks of the earlier answer",
    Verdict.REWARD: "failed: the reward function gave no number",
    Verdict.FAULT: "failed: an error, see the log",
    Verdict.WORKER: "failed: its worker died",
    Verdict.NOT_BETTER: "its reward is not higher",
    Verdict.ACCEPTED: "accepted",
    Verdict.OWN: "right, and imitated itself",
}
"""The words for each verdict."""
