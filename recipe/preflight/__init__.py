"""What a run will meet, tried before Ray starts: the machine, models, data, reward and checkpoint.

Its modules add rules to those of ``recipe.online_refiner.config.checks``; most need verl.
"""
