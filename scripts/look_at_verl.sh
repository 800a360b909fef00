#!/usr/bin/env bash
# Look at another verl: the names that this extension needs, its imports, and verl's example scripts. No network.
#
#   bash scripts/look_at_verl.sh DIR    DIR: a checkout of verl, or a folder that a wheel was unpacked in (it holds verl/)
set -euo pipefail
folder=$(cd "${1:?usage: bash scripts/look_at_verl.sh DIR}" && pwd)
cd "$(dirname "$0")/.."
[ -f "$folder/verl/version/version" ] || { echo "look_at_verl: $folder has no verl/version/version" >&2; exit 2; }
export PYTHONPATH="$folder:$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
failed=0

echo "== verl $(cat "$folder/verl/version/version"): names"
.venv/bin/python - <<'PYTHON' || failed=1
import sys

from recipe.online_refiner.verl_glue.contract import HOOKS, faults_of_contract

for hook, fault in faults_of_contract():
    print(f"{fault} (needed by {hook.needed_by})")
print(f"{len(HOOKS) - len(faults_of_contract())} of {len(HOOKS)} names are there")
sys.exit(bool(faults_of_contract()))
PYTHON

echo "== imports"
.venv/bin/python - <<'PYTHON' 2> >(tail -n 1 >&2) || failed=1
import importlib
import pkgutil
import sys

import recipe
import refiner_worker
import reward
from recipe.cpu_platform import prepare_vllm

prepare_vllm()

# The CPU platform has its own check of versions; a program of the sandbox's jail removes modules when it is imported.
APART = ("recipe.cpu_platform", "recipe.preload", "reward.sandbox.jail")
found = [pkgutil.walk_packages(part.__path__, f"{part.__name__}.") for part in (recipe, refiner_worker, reward)]
names = [one.name for part in found for one in part if not one.name.startswith(APART) and "__main__" not in one.name]
wrong = 0
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        wrong += 1
        print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
print(f"{len(names) - wrong} of {len(names)} modules are imported")
sys.exit(bool(wrong))
PYTHON

echo "== example scripts"
.venv/bin/python tests/recipes/composed.py 2> >(tail -n 1 >&2) || failed=1
exit $failed
