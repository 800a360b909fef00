"""Refinements without a run: a data set's answers refined, counted, and written as files that others train on."""
