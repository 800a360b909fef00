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
# Two tests at a time: with a thread for each core they would wait for each other, busily.
together() {
    OMP_NUM_THREADS=1 .venv/bin/pytest -q --numprocesses 2 "$@" || [ $? = 5 ] # 5: no test was chosen
}
alone() {
    .venv/bin/pytest -v --durations=15 "$@" || [ $? = 5 ]
}
static() {
    .venv/bin/ruff check --quiet . && .venv/bin/ruff format --quiet --check . && .venv/bin/mypy
}
unit() { # style and types beside the tests
    static &
    local checks=$! failed=0
    together tests/unit "$@" || failed=1
    wait "$checks" || { failed=1; echo "test: style or types failed: see ruff's or mypy's lines above"; }
    return "$failed"
}
e2e() { # what may share the machine first, those of a file in one process
    local failed=0 default="not gpu and not slow"
    together --dist loadfile -m "$default and not alone" tests/e2e "$@" || failed=1
    alone -m "$default and alone" tests/e2e "$@" || failed=1
    return "$failed"
}
all() {
    local failed=()
    unit || failed+=("style, types or unit tests")
    e2e || failed+=("end-to-end tests")
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
