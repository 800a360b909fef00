"""What runs inside the zygote process and the sandboxed children it forks; the trusted process imports none of it.

Standard library only, and nothing of the rest of the package: whatever the zygote holds, a hostile program can see.
"""
