#!/usr/bin/env bash
# Programs of SmolLM2-135M refined on two CPU cores, into files for SFT and preference training. Options may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
model=$(.venv/bin/python scripts/get_smollm2.py)
exec .venv/bin/online-refiner refine hidden+feedback --model "$model" --data recipe/quickstart/val.parquet \
    --output runs/examples/refine --license apache-2.0 \
    --samples 2 --max-response-tokens 48 --max-new-tokens 96 --max-model-len 1024 "$@"
