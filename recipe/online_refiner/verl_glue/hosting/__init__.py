"""verl's replicas that host the reference model, and the servers of the rollout that answer in its place."""
