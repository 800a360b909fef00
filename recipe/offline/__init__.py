"""Refinements without a run: the answers to a data set are refined, counted and written as files for training."""
