"""A program that looks for an expected output, and prints it if it is anywhere in reach."""

# By the garbage collector, in a frame, the environment or an open file. The pattern does not match itself.
HUNT = """
import gc, os, re, sys
found = []
def look(value):
    found.extend(re.findall('EXPECTED[-]7391', repr(value)[:20000]))
for thing in gc.get_objects():
    if isinstance(thing, (dict, list, tuple)):
        look(thing)
frame = sys._getframe()
while frame:
    look(dict(frame.f_locals))
    look(dict(frame.f_globals))
    frame = frame.f_back
look([dict(os.environ), sys.argv])
for fd in range(64):
    for read in (lambda: os.pread(fd, 20000, 0), lambda: os.read(fd, 20000)):
        try:
            os.set_blocking(fd, False)
            look(read())
        except OSError:
            pass
print(found[0] if found else 'nothing')
"""
