"""What a run needs of its machines: memory by moment of a step before it starts, seconds from runs that were measured.

Pure functions of a config, of models' configs and of run directories. Needs neither torch nor a GPU.
"""
