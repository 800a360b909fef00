"""Does a backend compute what the method says? Log-probs and parameter changes against plain loops and autograd.

The ranks of the actor's real worker (verl's engine and loss, this extension's rows) train on small batches; a Hugging
Face model trains on the same ones, token by token. ``scripts/check_backends.py`` prints the differences by layout.
"""
