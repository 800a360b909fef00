"""One self-contained page of curves, costs and refinements from run directories (``python -m recipe.report``)."""

from recipe.own_names import refuse_hidden

refuse_hidden(__name__, "refiner_worker")
