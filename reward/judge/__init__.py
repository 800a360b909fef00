"""Judges: processes that read what answers and programs wrote, and know the expected outputs.

What a model wrote can be made to take any time and memory to search, parse or compare. A judge does that under limits
of its own, so that the trainer's process, which only passes such text on, is neither stalled nor filled.
"""

from reward.judge.process import Call, Judge, JudgeLostError, Reply, UnjudgeableError, ask

__all__ = ["Call", "Judge", "JudgeLostError", "Reply", "UnjudgeableError", "ask"]
