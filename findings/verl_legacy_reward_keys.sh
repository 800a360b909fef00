#!/usr/bin/env bash
# verl's trainer accepts custom_reward_function.path and then uses another reward.
#
# Version:   verl 0.9.1
# Guessed:   the config tree has the block custom_reward_function (and reward_model, sandbox_fusion), and verl has a
#            function migrate_legacy_reward_impl that moves it to `reward`: an older command still works, or is
#            refused.
# Behaviour: verl.trainer.main_ppo never calls that function; of all entry points only the older fully asynchronous
#            one does. Hydra takes the key, since the block is there; the reward function is looked up under `reward`
#            alone.
# Source:    verl/trainer/config/legacy_reward_impl.yaml; verl/trainer/ppo/reward.py, get_custom_reward_fn;
#            verl/trainer/main_ppo.py, main
# Seen:      get_custom_reward_fn gives None for custom_reward_function.path=mine.py, and the file's function for
#            reward.custom_reward_function.path=mine.py or once migrate_legacy_reward_impl is called by hand;
#            reward_model.reward_manager=dapo leaves the manager `naive`
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 hydra-core==1.3.8 <<'EOF'
import inspect
from pathlib import Path

from hydra import compose, initialize_config_module
from verl.experimental.reward_loop import migrate_legacy_reward_impl
from verl.trainer import main_ppo
from verl.trainer.ppo.reward import get_custom_reward_fn

Path("mine.py").write_text("def compute_score(**columns):\n    return 7.0\n")


def composed(key):
    with initialize_config_module("verl.trainer.config", version_base=None):
        names = [f"{key}.path=mine.py", f"{key}.name=compute_score", "reward_model.reward_manager=dapo"]
        return compose("ppo_trainer", overrides=names)


older, newer = composed("custom_reward_function"), composed("reward.custom_reward_function")
print("older key:", get_custom_reward_fn(older), "| newer key:", get_custom_reward_fn(newer))
assert get_custom_reward_fn(newer)() == 7.0
assert get_custom_reward_fn(older) is None and older.reward.reward_manager.name == "naive"
assert "migrate_legacy" not in inspect.getsource(main_ppo)
migrated = migrate_legacy_reward_impl(older)
assert get_custom_reward_fn(migrated)() == 7.0 and migrated.reward.reward_manager.name == "dapo"
EOF
