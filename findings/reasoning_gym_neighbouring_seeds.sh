#!/usr/bin/env bash
# Two data sets of reasoning-gym with seeds 0 and 1 share all puzzles but one.
#
# Version:   reasoning-gym 0.1.25
# Guessed:   another seed gives other puzzles, so seed 0 is for training and seed 1 for validation.
# Behaviour: puzzle i of a data set is drawn by Random(seed + i). With seed 1 a data set is the one of seed 0, moved
#            up by one puzzle. Two data sets share nothing only if their seeds are as far apart as they are long.
# Source:    reasoning_gym/arithmetic/chain_sum.py, ChainSumDataset.__getitem__, and so in nearly every other task
# Seen:      of 50 puzzles, shared with seed 0: 49 (seed 1), 40 (seed 10), 0 (seed 50), in each of five tasks
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" reasoning-gym==0.1.25 <<'EOF'
import reasoning_gym

NUM = 50


def puzzles(task, seed):
    return [(one["question"], one["answer"]) for one in reasoning_gym.create_dataset(task, seed=seed, size=NUM)]


for task in ["basic_arithmetic", "chain_sum", "family_relationships", "knights_knaves", "leg_counting"]:
    first, second = puzzles(task, 0), puzzles(task, 1)
    shared = {seed: len(set(first) & set(puzzles(task, seed))) for seed in (1, 10, NUM)}
    print(f"{task}: shared with seed 0, by seed: {shared}")
    assert second[:-1] == first[1:], "seed 1 is not seed 0 moved by one"
    assert shared == {1: NUM - 1, 10: NUM - 10, NUM: 0}, shared
EOF
