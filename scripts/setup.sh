#!/usr/bin/env bash
# Make or update .venv with the pinned packages, for this machine's platform. Silent when nothing is to do.
#
#   PLATFORM=cpu|gpu|megatron  choose the lock file by hand. Default: that of the .venv; of a new one gpu where
#                              nvidia-smi finds one. On a login node say gpu
#   WITH_FLASH_ATTN=1          on GPUs install flash-attn too, which may compile for an hour; without it training uses
#                              PyTorch's attention. Default: as before; megatron always needs it
#   PYTHON=3.11                Python of a new .venv: 3.11 or 3.12, for GPUs 3.12 (the only one that verl has wheels for)
#   PIP_FIND_LINKS             folders with wheels, looked into beside the package index
#
# Nodes that share a file system may all run it: one installs, the others wait.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' scripts/setup.sh
    exit $(($# > 1 || ${#1} == 0)) # it takes no argument but --help
fi

stamp=.venv/.installed
if [ -z "${PLATFORM:-}" ] && [ -s "$stamp" ]; then PLATFORM=$(cut -d' ' -f1 "$stamp"); fi
if [ -z "${PLATFORM:-}" ]; then
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then PLATFORM=gpu; else PLATFORM=cpu; fi
fi
case $PLATFORM in
    cpu) default_python=3.11 ;;
    gpu | megatron) default_python=3.12 ;;
    *) echo "setup: PLATFORM must be cpu, gpu or megatron, not '$PLATFORM'" >&2; exit 2 ;;
esac

lock=requirements/$PLATFORM.txt
with_flash_attn=${WITH_FLASH_ATTN:-}
if [ -z "$with_flash_attn" ] && grep -qs ' flash-attn$' "$stamp"; then with_flash_attn=1; fi
if [ "$PLATFORM" = megatron ]; then with_flash_attn=1; fi
if [ "$with_flash_attn" != 1 ] || [ "$PLATFORM" = cpu ]; then with_flash_attn=; fi
state="$PLATFORM $(cat "$lock" requirements/after-torch.txt pyproject.toml | sha256sum | cut -c1-16) $PWD"
if [ -n "$with_flash_attn" ]; then state+=" flash-attn"; fi
is_ready() { [ "$(cat "$stamp" 2>/dev/null)" = "$state" ]; }
if is_ready; then exit 0; fi

say() { echo "setup: $*"; }
exec 9>.setup.lock
if ! flock --nonblock 9; then
    say "another process installs into this folder: waiting for it"
    flock 9
    if is_ready; then exit 0; fi
fi
PATH="$PATH:$(python3 -m site --user-base || true)/bin" # where pip puts uv; status 1 in a virtual environment
if ! command -v uv >/dev/null; then
    say "installing uv with pip"
    if ! { python3 -m pip install --quiet --user uv 2>/dev/null || python3 -m pip install --quiet --break-system-packages uv; }; then
        echo "setup: uv could not be installed: deactivate the virtual environment you are in, or install uv by hand" >&2
        exit 2
    fi
fi
if [ ! -x .venv/bin/python ]; then
    say "making .venv with Python ${PYTHON:-$default_python}"
    uv venv --quiet --python "${PYTHON:-$default_python}" .venv
fi
if [ "$PLATFORM" != cpu ] && ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))'; then
    echo "setup: PLATFORM=$PLATFORM needs Python 3.12, and .venv has another one: remove it" >&2
    exit 2
fi

# On a CPU, torch comes from a given folder of wheels or from PyTorch's own CPU builds, not with gigabytes of CUDA.
sources=() torch_given=
for folder in ${PIP_FIND_LINKS:-}; do
    sources+=(--find-links "$folder")
    if compgen -G "$folder/torch-*.whl" >/dev/null; then torch_given=yes; fi
done
if [ "$PLATFORM" = cpu ] && [ -z "$torch_given" ]; then sources+=(--torch-backend cpu); fi

say "installing $(grep -c '==' "$lock") pinned packages for $PLATFORM (a few minutes the first time)"
rm -f "$stamp" # until all is there, it is not ready
# Every worker process imports thousands of files: compiled once here, a start takes a third of the time.
options=(--quiet --compile-bytecode --python .venv/bin/python "${sources[@]}")
later=$(sed '/^#/d; s/.*/^&==/' requirements/after-torch.txt)
if ! output=$(grep -v "$later" "$lock" | uv pip sync "${options[@]}" - 2>&1); then
    echo "$output" >&2
    echo "setup: the packages of $lock could not be installed" >&2
    exit 1
fi
after_torch() { grep "$later" "$lock" | if [ -n "$with_flash_attn" ]; then cat; else grep -v '^flash-attn=='; fi; }
if [ -n "$(after_torch)" ]; then
    say "installing what is built against torch: minutes, or an hour where it finds no wheel (docs/cluster.md#install)"
    if ! output=$(after_torch | uv pip install "${options[@]}" --no-deps --no-build-isolation -r - 2>&1); then
        echo "$output" >&2
        echo "setup: $(after_torch | tr '\n' ' ')could not be built: docs/cluster.md#install" >&2
        exit 1
    fi
fi
uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$state" >"$stamp"
say "done: .venv is ready"
