"""What runs inside a slot process and the sandboxed children that it forks.

Standard library only, and nothing of the rest of the package: a hostile program can see whatever its slot holds.
`values` is also used on the other side of the connection, which reads what programs return.
"""
