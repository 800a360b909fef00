#!/usr/bin/env bash
# Run the Python program on standard input with these packages alone:
#
#   bash findings/with_packages.sh [--no-locks] NAME==VERSION ... <program
#
# The environment and all that the program writes are in a temporary folder, which is removed at the end. The project's
# code is not there. What the packages need has the versions of requirements/cpu.txt and puzzles.txt; --no-locks is for
# packages that exclude those. Torch comes from a folder of PIP_FIND_LINKS that has its wheel, else from PyTorch's builds
# for CPUs, as in scripts/setup.sh.
set -euo pipefail
requirements=$(cd "$(dirname "$0")/../requirements" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

options=(--torch-backend cpu)
for wheels in ${PIP_FIND_LINKS:-}; do
    if compgen -G "$wheels/torch-*.whl" >/dev/null; then options=(--find-links "$wheels"); fi
done
PATH="$PATH:$(python3 -m site --user-base || true)/bin" # where pip puts uv
uv venv --quiet --python 3.11 "$folder/venv"
if [ "$1" = --no-locks ]; then
    shift
else
    options+=(--constraint "$requirements/cpu.txt" --constraint "$requirements/puzzles.txt")
    options+=(--override "$requirements/cpu-overrides.txt")
fi
uv pip install --quiet --python "$folder/venv" "${options[@]}" "$@"

cat >"$folder/finding.py"
cd "$folder"
env -i HOME="$folder" TMPDIR="$folder" RAY_TMPDIR="$folder" PATH="$folder/venv/bin:$PATH" PYTHONWARNINGS=ignore \
    HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 python finding.py
