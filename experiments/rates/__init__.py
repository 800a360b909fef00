"""Every method at its own learning rate: the second comparison in the small world."""
