"""Hydra config groups of this package; Hydra finds them only in a package with this file."""
