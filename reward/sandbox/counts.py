"""What a sandbox has done so far, the same for every backend."""

import collections
import threading
import time


class RunCounts:
    """Counts of runs by status, of retries and restarts, and the time of runs; safe to use from several threads."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._busy_s = 0.0
        self._started_at = time.monotonic()

    def add(self, name: str) -> None:
        """Count a retry or a restart."""
        with self._lock:
            self._counts[name] += 1

    def add_run(self, status: str, seconds: float) -> None:
        """Count a run by its status; `seconds` include waiting for a slot."""
        with self._lock:
            self._counts.update(("runs", status))
            self._busy_s += seconds

    def metrics(self) -> dict[str, float]:
        """Runs, runs_per_s since the start, seconds_per_run (with waiting), retries, restarts, and runs by status."""
        with self._lock:
            counts = {name: float(count) for name, count in self._counts.items()}
            runs = counts.setdefault("runs", 0.0)
            counts["runs_per_s"] = runs / max(time.monotonic() - self._started_at, 1e-9)
            counts["seconds_per_run"] = self._busy_s / max(runs, 1.0)
            return counts
