"""Experiments that measure this extension and are no part of it; run them from the root of a clone."""
