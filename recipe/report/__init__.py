"""A page on one or several runs, in one file that a browser opens without a network."""
