"""pass@k on HumanEval, MBPP, GSM8K, MATH-500 and prepared rows; ``scripts/evaluate.py`` is its command."""
