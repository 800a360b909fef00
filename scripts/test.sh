#!/usr/bin/env bash
# Install what is missing, then check style, types and behaviour.
#
#   bash scripts/test.sh            all but the slow ones, without a GPU
#   bash scripts/test.sh unit       style, types and unit tests (at most 2 minutes)
#   bash scripts/test.sh e2e [ARGS] end-to-end tests: real Ray, vLLM and trainers on small models
#   bash scripts/test.sh slow       the end-to-end tests that the others leave out: docs/development.md says which
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
# With a thread for each core tests that run beside each other would wait for each other, busily. Many wait for a time-out:
# three at a time keep two cores busy.
together() {
    OMP_NUM_THREADS=1 .venv/bin/pytest -q --numprocesses 3 --dist loadgroup "$@" || [ $? = 5 ]
}
alone() {
    .venv/bin/pytest -v --durations=15 "$@" || [ $? = 5 ] # 5: no test was chosen
}
static() {
    .venv/bin/ruff check --quiet . && .venv/bin/ruff format --quiet --check . && .venv/bin/mypy
}
default="not gpu and not slow"
unit() { # style and types beside the tests
    static &
    local checks=$! failed=0
    together tests/unit "$@" || failed=1
    wait "$checks" || { failed=1; echo "test: style or types failed: see ruff's or mypy's lines above"; }
    return "$failed"
}
e2e() {
    local failed=0
    together -m "$default and not alone" tests/e2e "$@" || failed=1
    alone -m "$default and alone" tests/e2e "$@" || failed=1
    return "$failed"
}
all() { # as both, but unit tests fill the cores while jobs start
    static &
    local checks=$! failed=()
    together -m "$default and not alone" --durations=15 tests || failed+=("tests that run together")
    alone -m "$default and alone" tests || failed+=("tests that run alone")
    wait "$checks" || failed+=("style or types")
    if [ ${#failed[@]} != 0 ]; then printf 'test: failed: %s (see above)\n' "${failed[@]}"; return 1; fi
}
slow() {
    browser
    .venv/bin/pytest -v -m slow --durations=0 tests/e2e "$@"
}
case $what in
    unit | e2e | slow | all) "$what" "$@" ;;
    *) echo "usage: bash scripts/test.sh [all|unit|e2e|slow] [pytest arguments, but not of all]" >&2; exit 2 ;;
esac
