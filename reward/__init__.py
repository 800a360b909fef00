"""Rewards of code answers, the APPS score of the paper's Eq. 7 and 8, and of final answers.

The package imports the standard library only, so that a reward worker and the command line start in milliseconds.
"""

from reward.apps import Verdict, score_from_verdicts, score_response
from reward.grading import Score
from reward.limits import Limits
from reward.problem import Problem

__all__ = ["Limits", "Problem", "Score", "Verdict", "score_from_verdicts", "score_response"]
