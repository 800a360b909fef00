"""What counts as a reward, and how reward functions of the user's own are called."""
