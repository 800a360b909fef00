#!/usr/bin/env bash
# Pin every dependency again: writes requirements/cpu.txt and requirements/gpu.txt from pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
    uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} --override requirements/overrides.txt --extra dev "$@" pyproject.toml |
        grep -v "sys_platform == 'never'"
}
compile --extra cpu --override requirements/cpu-overrides.txt >requirements/cpu.txt
compile --extra gpu >requirements/gpu.txt
