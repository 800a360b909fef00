"""Does everything work here that a run needs? ``online-refiner smoke`` asks it on a node."""

from recipe.own_names import refuse_hidden

refuse_hidden(__name__, "refiner_worker")
