"""Does everything work here that a run needs? ``online-refiner smoke`` asks it on a node."""
