"""Rules on the config alone, by subject (``recipe/preflight/rules.py`` describes what a rule is).

A rule that concerns one mode or placement alone is the method ``refusal`` of its class. Values that verl itself
refuses with a clear message have no rule here.
"""

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
