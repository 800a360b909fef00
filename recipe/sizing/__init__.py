"""What memory a run needs, by moment of a step: pure functions of its config and its models' configs, without torch."""
