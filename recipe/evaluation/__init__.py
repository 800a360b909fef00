"""pass@k on HumanEval, MBPP, GSM8K, MATH-500 and prepared rows; ``scripts/evaluate.py`` is its command."""

from recipe.own_names import refuse_hidden

refuse_hidden(__name__, "reward")
