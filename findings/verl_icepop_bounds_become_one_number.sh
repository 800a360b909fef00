#!/usr/bin/env bash
# verl's IcePop bounds 0.5_5 reach it as the number 0.55, and it halves the loss instead of dropping tokens.
#
# Version:   verl 0.9.1 with hydra-core 1.3.8 and omegaconf 2.3.1
# Guessed:   algorithm.rollout_correction.rollout_is_threshold takes "lower_upper", and its doc string has the example
#            "0.5_5.0". So 0.5_5 means the same, or is refused.
# Behaviour: an underscore between digits is a separator to Hydra, as in 1_000, and to YAML: 0.5_5 is the float 0.55.
#            Only because 0.5_5.0 is no number does it stay a text. verl takes one number for another method: weights are
#            cut at 0.55, so no token is dropped, and each one that the rollout and the trainer agree on counts 0.55. A
#            text in a text helps: "'0.5_5'" on the command line.
# Source:    hydra/grammar/OverrideLexer.g4, POINT_FLOAT; verl/trainer/ppo/rollout_corr_helper.py,
#            _parse_rollout_is_threshold, compute_rollout_correction_weights. Public report of whole numbers in another
#            project's config: issue 1163 of Hydra
# Seen:      tokens with the ratios 0.25, 1, 4, 8 weigh 0, 1, 4, 0 with 0.5_5.0 and 0.25, 0.55, 0.55, 0.55 with 0.5_5
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 hydra-core==1.3.8 omegaconf==2.3.1 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

KEYS = "algorithm.rollout_correction"
RATIOS = torch.tensor([[0.25, 1.0, 4.0, 8.0]])  # of the trainer's probability of a token to the rollout's


def weights(bounds):
    """What the loss of each token is multiplied by, with these bounds on the command line."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        overrides = [f"{KEYS}.rollout_is=token", f"{KEYS}.rollout_is_threshold={bounds}"]
        read = compose("ppo_trainer", overrides=overrides).algorithm.rollout_correction
    found, _, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=RATIOS.log(),
        rollout_log_prob=torch.zeros(1, 4),
        response_mask=torch.ones(1, 4),
        rollout_is=read.rollout_is,
        rollout_is_threshold=read.rollout_is_threshold,
    )
    by_token = [round(weight, 3) for weight in found.batch["rollout_is_weights"][0].tolist()]
    print(f"{bounds}: read as {read.rollout_is_threshold!r}, weights {by_token}")
    return by_token


assert weights("0.5_5.0") == weights("'0.5_5'") == [0.0, 1.0, 4.0, 0.0]
assert weights("0.5_5") == [0.25, 0.55, 0.55, 0.55]
assert OmegaConf.create("rollout_is_threshold: 0.5_5").rollout_is_threshold == 0.55
EOF
