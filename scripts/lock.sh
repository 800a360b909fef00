#!/usr/bin/env bash
# Pin every dependency again: writes requirements/{cpu,gpu,megatron}.txt from pyproject.toml.
#
#   bash scripts/lock.sh            newest versions
#   bash scripts/lock.sh --keep     keep each pin that pyproject.toml and requirements/*overrides.txt still allow
#   bash scripts/lock.sh --check    change nothing: are the pins what pyproject.toml asks for, and does the index have a
#                                   wheel of each for GPU machines, except those of requirements/sdists.txt?
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { # NAME ARGUMENT...; pins that the file has already stay
    local lock=$folder/$1.txt
    shift
    uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} --override requirements/overrides.txt --extra dev --extra figures "$@" \
        --output-file "$lock" pyproject.toml >/dev/null
    sed -i "/sys_platform == 'never'/d" "$lock"
}
copy_pins() { # FROM TO
    cp "$1"/{cpu,gpu,megatron}.txt "$2"
}
compile_all() {
    compile cpu --extra cpu --override requirements/cpu-overrides.txt
    compile gpu --extra gpu --override requirements/gpu-overrides.txt
    compile megatron --extra megatron --override requirements/gpu-overrides.txt \
        --excludes requirements/gpu-excludes.txt --python-version 3.12
}
index_has_wheels() { # FILE of pins; on a GPU machine: Python 3.12, the C library of Ubuntu 22.04
    uv pip compile --quiet --no-header --no-deps --only-binary :all: --python-version 3.12 \
        --python-platform x86_64-manylinux_2_35 --output-file "$folder/found.txt" "$1" >/dev/null
}
check() {
    local failed=0 lock name
    copy_pins requirements "$folder"
    compile_all
    for lock in cpu gpu megatron; do
        diff "requirements/$lock.txt" "$folder/$lock.txt" || { echo "lock: $lock.txt: run scripts/lock.sh"; failed=1; }
    done
    for lock in gpu megatron; do
        sed '/^#/d; s/.*/^&==/' requirements/sdists.txt >"$folder/sdists"
        grep -v -f "$folder/sdists" "requirements/$lock.txt" >"$folder/wheels.txt"
        index_has_wheels "$folder/wheels.txt" || { echo "lock: $lock.txt: name it in requirements/sdists.txt"; failed=1; }
    done
    while read -r name; do
        if grep -h "$name" requirements/{gpu,megatron}.txt | sort -u >"$folder/one.txt" &&
            index_has_wheels "$folder/one.txt" 2>/dev/null; then
            echo "lock: $(cat "$folder/one.txt") has a wheel now: take it out of requirements/sdists.txt"
            failed=1
        fi
    done <"$folder/sdists"
    return $failed
}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
case ${1:-} in
    --check) check ;;
    "" | --keep)
        if [ "${1:-}" = --keep ]; then copy_pins requirements "$folder"; fi
        compile_all
        copy_pins "$folder" requirements
        ;;
    *) echo "usage: bash scripts/lock.sh [--check|--keep]" >&2; exit 2 ;;
esac
