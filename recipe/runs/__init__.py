"""The files that a run writes, and the view of a run on a terminal."""
