#!/usr/bin/env bash
# Install what is missing, then check style, types and behaviour.
#
#   bash scripts/test.sh            all but the slow ones, without a GPU
#   bash scripts/test.sh unit       style, types and unit tests
#   bash scripts/test.sh e2e [ARGS] end-to-end tests: real Ray, vLLM and trainers on small models
#   bash scripts/test.sh slow       the end-to-end tests that the others leave out: docs/development.md says which
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
what=${1:-all}
shift || true

optional() { # MODULE WHAT: of reasoning-gym one part needs a C compiler
    if .venv/bin/python -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$1'))"; then return; fi
    PATH="$PATH:$(python3 -m site --user-base || true)/bin"
    if ! uv pip install --quiet --python .venv/bin/python --no-deps -r "requirements/$2.txt" 2>/dev/null; then
        echo "test: requirements/$2.txt could not be installed; the tests of $2 are skipped"
    fi
}
# Only its files are read. It must not be importable: verl uses TRL where it finds it, and asks for a class that has moved.
chat_templates() {
    if [ -d .venv/chat-templates/trl ]; then return; fi
    PATH="$PATH:$(python3 -m site --user-base || true)/bin"
    if ! uv pip install --quiet --python .venv/bin/python --no-deps --target .venv/chat-templates \
        -r requirements/chat-templates.txt 2>/dev/null; then
        echo "test: TRL could not be fetched; the tests of its chat templates are skipped"
    fi
}
# The page of a run is tested in a real browser, where Debian's package can be had.
browser() {
    if command -v chromium >/dev/null; then return; fi
    local apt="timeout 180 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10"
    if ! { [ "$(id -u)" = 0 ] && command -v apt-get && $apt update &&
        DEBIAN_FRONTEND=noninteractive $apt install --yes --no-install-recommends chromium; } >/dev/null 2>&1; then
        echo "test: chromium could not be installed; the tests of a run's page in a browser are skipped"
    fi
}
# What models that see need beside it (requirements/images.txt). Where torch is no CUDA build, the library of PyPI's build
# cannot be loaded, and two registrations of its Python code, of functions for boxes, would raise.
images() {
    if [ -d .venv/images/torchvision ]; then return; fi
    PATH="$PATH:$(python3 -m site --user-base || true)/bin"
    if ! uv pip install --quiet --python .venv/bin/python --no-deps --target .venv/images \
        -r requirements/images.txt 2>/dev/null; then
        echo "test: requirements/images.txt could not be installed; the tests of images are skipped"
    elif ! PYTHONPATH=.venv/images .venv/bin/python -c "import torchvision" 2>/dev/null; then
        sed -i 's/^@torch.library.register_fake("torchvision::q\?nms")$/# &/' .venv/images/torchvision/_meta_registrations.py
    fi
}
chosen="not slow and not gpu" failed=0
run() { # and go on; 5: no test was chosen
    "$@" || [ $? = 5 ] || failed=1
}
# Two tests at a time, since most wait more than they compute; those of a file in one process. More would take longer on
# two cores: a job's dozen processes cost CPU time while they wait, and some need a third of 24 GB. With a thread for each
# core they would wait for each other, busily.
together() {
    OMP_NUM_THREADS=1 .venv/bin/pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder \
        --durations=15 -m "$chosen and not alone" "$@"
}
alone() { # of the files that have such a test, since to import all files takes long
    local files
    mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.alone' tests/e2e)
    .venv/bin/pytest -v --durations=15 -m "$chosen and alone" "${files[@]}" "$@"
}
static() {
    .venv/bin/ruff check --quiet . && .venv/bin/ruff format --quiet --check . && .venv/bin/mypy && return
    echo "test: style or types failed: see ruff's or mypy's lines above"
    return 1
}
unit() {
    static &
    run together tests/unit "$@"
    run wait $!
}
e2e() {
    run together tests/e2e tests/recipes "$@"
    run alone "$@"
}
all() { # long tests first, style and types beside them
    static &
    local checks=$!
    run together tests/e2e tests/recipes tests/unit
    run wait $checks
    run alone
}
slow() {
    chosen="slow and not gpu"
    e2e "$@"
}
case $what in
    unit | e2e | slow | all)
        optional reasoning_gym puzzles
        optional evalplus evaluation
        chat_templates
        browser
        images
        "$what" "$@"
        ;;
    *) echo "usage: bash scripts/test.sh [all|unit|e2e|slow] [pytest arguments, but not of all]" >&2; exit 2 ;;
esac
[ $failed = 0 ] || { echo "test: failed (see above)"; exit 1; }
