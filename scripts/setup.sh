#!/usr/bin/env bash
# Make or update .venv with the pinned packages, for this machine's platform. Silent when nothing is to do.
#
#   PLATFORM=cpu|gpu   choose the lock file by hand (default: gpu where nvidia-smi finds one)
#   PYTHON=3.11        Python version of a new .venv (3.11 or 3.12: the lock files are resolved for these)
#   PIP_FIND_LINKS     folders with wheels, looked into beside the package index
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${PLATFORM:-}" ]; then
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then PLATFORM=gpu; else PLATFORM=cpu; fi
fi
case $PLATFORM in cpu | gpu) ;; *) echo "setup: PLATFORM must be cpu or gpu, not '$PLATFORM'" >&2; exit 2 ;; esac

lock=requirements/$PLATFORM.txt
stamp=.venv/.installed
state="$PLATFORM $(cat "$lock" pyproject.toml | sha256sum | cut -c1-16) $PWD"
if [ "$(cat "$stamp" 2>/dev/null)" = "$state" ]; then exit 0; fi

say() { echo "setup: $*"; }
if ! command -v uv >/dev/null; then
    say "installing uv with pip"
    python3 -m pip install --quiet --user uv 2>/dev/null || python3 -m pip install --quiet --break-system-packages uv
    PATH="$PATH:$(python3 -m site --user-base)/bin"
fi
if [ ! -x .venv/bin/python ]; then
    say "making .venv with Python ${PYTHON:-3.11}"
    uv venv --quiet --python "${PYTHON:-3.11}" .venv
fi

# On a CPU, torch comes from a given folder of wheels or from PyTorch's own CPU builds, not with gigabytes of CUDA.
sources=() torch_given=
for folder in ${PIP_FIND_LINKS:-}; do
    sources+=(--find-links "$folder")
    if compgen -G "$folder/torch-*.whl" >/dev/null; then torch_given=yes; fi
done
if [ "$PLATFORM" = cpu ] && [ -z "$torch_given" ]; then sources+=(--torch-backend cpu); fi

say "installing $(grep -c '==' "$lock") pinned packages for $PLATFORM (a few minutes the first time)"
# Every worker process imports thousands of files: compiled once here, a start takes a third of the time.
if ! output=$(uv pip sync --quiet --compile-bytecode --python .venv/bin/python "${sources[@]}" "$lock" 2>&1); then
    echo "$output" >&2
    echo "setup: the packages of $lock could not be installed" >&2
    exit 1
fi
uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$state" >"$stamp"
say "done: .venv is ready"
