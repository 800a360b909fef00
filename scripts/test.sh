#!/usr/bin/env bash
# Install what is missing, then check style, types and behaviour.
#
#   bash scripts/test.sh            everything a machine without a GPU can run (at most 40 minutes on 2 cores)
#   bash scripts/test.sh unit       style, types and unit tests (at most 2 minutes)
#   bash scripts/test.sh e2e [ARGS] end-to-end tests: real Ray, vLLM and trainers on small models
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
what=${1:-all}
shift || true

static() {
    .venv/bin/ruff check --quiet .
    .venv/bin/ruff format --quiet --check .
    .venv/bin/mypy
}
with_static() { # style and types beside the tests, on another core
    static &
    local checks=$!
    "$@"
    wait "$checks"
}
case $what in
    unit) with_static .venv/bin/pytest -q tests/unit "$@" ;;
    e2e) .venv/bin/pytest -v -m "not gpu and not slow" tests/e2e "$@" ;;
    all) with_static .venv/bin/pytest -v -m "not gpu and not slow" --durations=15 tests "$@" ;;
    *) echo "usage: bash scripts/test.sh [unit|e2e|all] [pytest arguments]" >&2; exit 2 ;;
esac
