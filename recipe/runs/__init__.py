"""What a run writes, and how a person sees it."""
