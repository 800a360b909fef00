#!/usr/bin/env bash
# In verl, letters within a metric's name decide how a step's values become one number.
#
# Version:   verl 0.9.1
# Guessed:   of the values of a step's iterations the mean is logged, or for `.../max` the maximum.
# Behaviour: in trainer separate_async, where a step has several iterations, the name is searched for max, min, sum
#            and total anywhere, in this order: `climax_reached` is a maximum, `num_minutes` a minimum,
#            `consumed_share` and `summary_rate` are sums, so a share of 0.6 is logged as 1.2.
# Source:    verl/trainer/ppo/v1/utils.py, MetricsAggregator._get_aggregation_type
# Seen:      of 0.2 and 0.6: accepted_share 0.4, consumed_share 0.8, summary_rate 0.8, num_minutes 0.2, climax_reached
#            0.6
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 transferqueue==0.1.11 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
from verl.trainer.ppo.v1.utils import MetricsAggregator

WANTED = {
    "env/accepted_share": 0.4,  # a mean, as one expects
    "env/consumed_share": 0.8,  # con-sum-ed
    "env/summary_rate": 0.8,  # sum-mary
    "env/num_minutes": 0.2,  # min-utes
    "env/climax_reached": 0.6,  # cli-max
}
aggregator = MetricsAggregator()
for value in (0.2, 0.6):
    aggregator.add_step_metrics(dict.fromkeys(WANTED, value), sample_count=8)
found = aggregator.get_aggregated_metrics()
print(found)
assert {name: round(value, 6) for name, value in found.items()} == WANTED
EOF
