"""The refine stage: rollouts of one prompt -> requests -> refinements -> rewards -> verdicts, wherever that is done.

A refine worker calls :class:`group.Refiner` for its share of a batch, an agent loop worker as soon as a group is
complete; the package knows neither of them, nor verl, nor the config of a run. Its modules in the order in which a
response passes them:

- ``group``: which responses of a group are refined, and what becomes of all of them;
- ``prepare``: a response -> an :class:`attempt.Attempt`, with the prompt and the limits of what may be written;
- ``ask``: an attempt -> :class:`attempt.Written`, from replicas that take tokens or from servers that take words;
- ``assemble``: what was written -> the refined response a', one pure function for each shape that a' can have;
- ``judge``: a' -> a verdict: a repetition, a leak, or a reward and the gate of Eq. 6; the best of several samples.

Below them are ``language`` (the policy's tokens and text) and ``account`` (what requests cost, and who shares their
answers); beside them ``reference`` (what a constraint may ask the reference model) and ``budget`` (which responses a
step can afford).
"""
