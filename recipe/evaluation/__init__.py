"""pass@1 on HumanEval+ and MBPP+, by evalplus."""
