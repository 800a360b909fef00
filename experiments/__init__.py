"""What measures this extension and is no part of it; run from the root of a clone."""
