#!/usr/bin/env bash
# Pin every dependency again: writes requirements/cpu.txt and requirements/gpu.txt from pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
    uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} --extra dev "$@" pyproject.toml
}
compile --extra cpu --override requirements/cpu-overrides.txt | grep -v "sys_platform == 'never'" >requirements/cpu.txt
compile --extra gpu >requirements/gpu.txt
