"""RL fine-tuning with an online refiner: a reward-gated dynamic constraint on top of verl's trainers."""
