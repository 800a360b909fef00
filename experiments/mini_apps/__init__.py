"""Mini APPS: small programming problems in the format of the APPS data set, generated from families of our own.

Their easiest level, which the quickstart has, is within reach of a model of 135 million parameters, so that a run on
one machine shows a reward that moves.
"""
