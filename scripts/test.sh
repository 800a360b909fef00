#!/usr/bin/env bash
# Install what is missing, then check style, types and behaviour.
#
#   bash scripts/test.sh            all but the slow ones, without a GPU (at most 40 minutes on 2 cores)
#   bash scripts/test.sh unit       style, types and unit tests (at most 2 minutes)
#   bash scripts/test.sh e2e [ARGS] end-to-end tests: real Ray, vLLM and trainers on small models
#   bash scripts/test.sh slow       the end-to-end tests that the others leave out (20 minutes more)
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
what=${1:-all}
shift || true

# The report is looked at in a real browser; without one that test is skipped and says so.
browser() {
    if command -v chromium chromium-browser google-chrome >/dev/null; then return; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return; fi
    echo "test: installing chromium with apt for the report's browser test"
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get -qq update && apt-get -qq install --no-install-recommends chromium; } >/dev/null 2>&1 </dev/null; then
        echo "test: chromium could not be installed; the report's browser test is skipped"
    fi
}
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
    slow) browser; .venv/bin/pytest -v -m slow --durations=0 tests/e2e "$@" ;;
    all) with_static .venv/bin/pytest -v -m "not gpu and not slow" --durations=15 tests "$@" ;;
    *) echo "usage: bash scripts/test.sh [unit|e2e|slow|all] [pytest arguments]" >&2; exit 2 ;;
esac
