"""This package's wheel and source distribution, built from the files that git tracks or would track."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta as made; print(getattr(made, sys.argv[1])(sys.argv[2]))"


def tracked(*folders: str) -> list[Path]:
    """Return the paths, below the repository, of its files in some folders; without folders, of all its files."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout.decode()
    return [Path(name) for name in filter(None, listed.split("\0")) if (REPOSITORY / name).is_file()]


def build(kind: str, folder: Path) -> Path:
    """Build a ``wheel`` or an ``sdist`` in an empty folder, and return its path."""
    source = folder / "source"
    for path in tracked():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes((REPOSITORY / path).read_bytes())
        (source / path).chmod((REPOSITORY / path).stat().st_mode)
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]
