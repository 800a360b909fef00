"""A quarter of an hour of GPU: a list of jobs that runs by itself, and the page of what came back."""
