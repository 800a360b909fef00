"""One self-contained page of curves, costs and refinements from run directories (``python -m recipe.report``)."""
