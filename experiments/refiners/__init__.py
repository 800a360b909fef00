"""The prompts with which a small real model's refinements beat its second samples, if there are any."""
