"""Failures of a test's surroundings, after which it may be tried once more; any other failure counts at once."""

NATIVE_CRASH = ["assert -11 == 0", r"\*\*\* SIGSEGV received", "Fatal Python error: Segmentation fault"]
"""Once in hundreds of runs gloo's own thread (``pt_gloo_runloop``) ends a rank in malloc."""
RAYS_PATIENCE = {
    "ray/_private/node.py": "The current node timed out during startup",
    "ray/_private/services.py": "seconds while waiting for node to startup",
}
"""Ray's messages, by its source files, about a node that has not started after 30 s.

No setting makes this time longer, and a node may take more on a machine whose cores are busy.
"""
