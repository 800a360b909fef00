"""pass@k on HumanEval and prepared rows; ``online-refiner evaluate``."""

from recipe.own_names import refuse_hidden

refuse_hidden(__name__, "reward")
