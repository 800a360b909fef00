"""Rules that look at verl, or at models, data and rewards through verl, before Ray starts.

Importing a module adds its rules to the rules of ``recipe.preflight`` and ``recipe.online_refiner.config.rules``.
"""
