#!/usr/bin/env bash
# Submit the run to a Ray cluster that is up: ADDRESS=http://HEAD:8265 bash examples/cluster/ray_job.sh OVERRIDE...
# A cluster with tokens wants RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here as well. The cluster's image has this package; with WORKING_DIR=. the checkout is sent instead (config and code, no data).
set -euo pipefail
address=${ADDRESS:-http://127.0.0.1:8265}
send=()
if [ -n "${WORKING_DIR:-}" ]; then send=(--working-dir "$WORKING_DIR"); fi
exec ray job submit --address "$address" ${NO_WAIT:+--no-wait} "${send[@]}" -- \
    python -m recipe.online_refiner.main "$@"
