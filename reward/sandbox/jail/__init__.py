"""What runs inside the zygote process and the sandboxed children it forks; the trusted process imports none of it.

Standard library only, and nothing of the rest of the package: whatever the zygote holds, a hostile program can see.
Functions that every run calls are imported by name: looking one up in its module makes the child copy three pages of
memory that it shares with the zygote.
"""
