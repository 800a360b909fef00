"""A list of jobs that runs by itself within 15 minutes on a GPU, and the page with its results."""
