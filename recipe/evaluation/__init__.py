"""pass@k on HumanEval, HumanEval+, MBPP and MBPP+; ``scripts/evaluate.py`` is its command."""
