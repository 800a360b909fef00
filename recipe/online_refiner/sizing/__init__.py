"""What a run needs of its machines, said before it starts: memory by moment of a step, seconds by stage, replicas.

Pure functions of a config and of models' configs. Needs neither torch nor verl.
"""
