#!/usr/bin/env bash
# The quickstart's task with a refiner by URL: that of REFINER_URL (and REFINER_KEY), or one that vLLM serves beside it here.
# Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python
model=$("$python" scripts/get_smollm2.py)
if [ -z "${REFINER_URL:-}" ]; then
    # In place of another machine, where it is: VLLM_API_KEY=... vllm serve MODEL --generation-config vllm
    log=$(mktemp) port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export REFINER_URL="http://127.0.0.1:$port/v1" REFINER_KEY=of-this-example
    echo "starting vLLM's server (about a minute on 2 cores); its output is in $log"
    VLLM_API_KEY=$REFINER_KEY VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind TORCHDYNAMO_DISABLE=1 \
        "$python" -m vllm.entrypoints.openai.api_server --model "$model" --host 127.0.0.1 --port "$port" \
        --dtype float32 --enforce-eager --max-model-len 1024 --generation-config vllm >"$log" 2>&1 &
    server=$!
    trap 'kill $server; wait $server || true' EXIT
    until "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health')" 2>/dev/null; do
        kill -0 $server || { tail "$log"; exit 1; }
        sleep 1
    done
fi
key=null
[ -z "${REFINER_KEY:-}" ] || key=REFINER_KEY
.venv/bin/online-refiner train experiment=quickstart "actor_rollout_ref.model.path=$model" \
    measure.num_kl_rollouts=0 refiner.placement=external "refiner.url=$REFINER_URL" refiner.api_key_env=$key \
    trainer.total_training_steps=2 trainer.save_freq=-1 run_dir=runs/examples/external_refiner \
    trainer.resume_mode=disable "$@"
