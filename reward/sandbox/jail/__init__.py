"""The code that runs inside a slot process and in the sandboxed children that it forks.

It imports the standard library only, and no other part of the package: a hostile program can see its slot's memory.
`values` is also used on the other side of the connection, which reads what programs return.
"""
