"""What a rule is, and rules on the machine. This module needs neither torch nor verl.

Rules that look at verl are in ``recipe.online_refiner.verl_glue.preflight``, those on the config alone in
``recipe.online_refiner.config.rules``.
"""
