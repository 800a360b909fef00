"""Names and settings of verl that its own registries, classes and functions refuse; what a plan and warnings say."""

import json
import logging
import pickle
import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from checked_run import checked
from omegaconf import DictConfig, OmegaConf
from transformers import Phi3Config

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.plan import notes
from recipe.online_refiner.verl_glue.preflight import names
from recipe.online_refiner.verl_glue.preflight.cautions import cautions
from recipe.online_refiner.verl_glue.preflight.files import Files
from recipe.preflight.noise import LOGGERS, OF_MEGATRON, quieten
from recipe.preflight.rules import RULES, PlannedRun, rule_id

ACTOR, ROLLOUT, OPTIM = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "actor.optim"))
ESTIMATOR, N, BY_STD = "algorithm.adv_estimator", f"{ROLLOUT}.n", "algorithm.norm_adv_by_std_in_grpo"
CORRECTION = "algorithm.rollout_correction"
CORRECTED = {f"{ROLLOUT}.calculate_log_probs": True, f"{CORRECTION}.rollout_is": "token"}
BYPASSED = {f"{ROLLOUT}.calculate_log_probs": True, f"{CORRECTION}.bypass_mode": True}


@pytest.fixture
def plain(pickled: bytes) -> DictConfig:
    """Return the config without data; four responses a prompt."""
    config: DictConfig = pickle.loads(pickled)
    config.actor_rollout_ref.rollout.n = 4
    return config


def broken(config: DictConfig, changes: dict[str, Any]) -> tuple[str, str] | None:
    """Return the id and the line of the first rule of ``names`` that changes break."""
    for key, value in changes.items():
        OmegaConf.update(config, key, value, force_add=True)
    if config.actor_rollout_ref.actor.policy_loss.loss_mode == "bypass_mode":
        config.constraint.mode = "penalty"  # the default refuses it
    run = PlannedRun(config=config, blocks=load(config))
    run.files = Files(config)
    for one in RULES["files"]:
        if one.__module__ == names.__name__ and (line := one(run)):
            return rule_id(one), line
    return None


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({ESTIMATOR: "grp0"}, "names-are-verls", "did you mean grpo?"),
        ({f"{ACTOR}.policy_loss.loss_mode": "gpso"}, "names-are-verls", "did you mean gspo?"),
        ({f"{ACTOR}.strategy": "fsdp3"}, "names-are-verls", "set one of: automodel, fsdp, fsdp2, "),
        ({"trainer.logger": ["console", "wandbb"]}, "names-are-verls", "did you mean wandb?"),
        ({"trainer.logger": "swanlab"}, "names-are-verls", "pip install swanlab"),
        ({"constraint.mode": "none", f"{ROLLOUT}.name": "vlm"}, "names-are-verls", "did you mean vllm?"),
        ({"trainer.v1.sampler.max_off_policy_strategy": "dropp"}, "names-are-verls", "did you mean drop?"),
        ({"reward.reward_manager.name": "daapo"}, "names-are-verls", "did you mean dapo?"),
        ({"reward.reward_model.rollout.name": "vlm"}, "names-are-verls", "did you mean vllm?"),
        ({ESTIMATOR: None}, "names-are-verls", "algorithm.adv_estimator=null is not known"),
        ({"trainer.logger": None}, "names-are-verls", "[] for no logger"),
        ({f"{ROLLOUT}.mode": "asinc"}, "names-are-verls", "did you mean async?"),
        ({f"{ROLLOUT}.quantization": "int3"}, "names-are-verls", "fp8"),
        ({"transfer_queue.backend.storage_backend": "Simple"}, "names-are-verls", "did you mean SimpleStorage?"),
        ({f"{ROLLOUT}.tempreature": 1.0}, "blocks-are-verls", "tempreature: verl has no such key in this block"),
        ({"algorithm.adv_estimater": "grpo"}, "blocks-are-verls", "did you mean adv_estimator?"),
        ({f"{OPTIM}.lr_scheduler_type": "linear"}, "blocks-are-verls", 'in ["constant", "cosine"]'),
        ({f"{ACTOR}.loss_agg_mode": "token_mean"}, "blocks-are-verls", "Invalid loss_agg_mode: token_mean"),
        ({f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "low_var"}, "kl-is-verls", "did you mean low_var_kl?"),
        ({"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "full"}, "kl-is-verls", "kl_penalty=full"),
        ({ESTIMATOR: "grpo_passk", N: 1}, "advantages-can-be-computed", "requires at least 2 samples"),
        ({ESTIMATOR: "rloo_vectorized", N: 1}, "advantages-can-be-computed", "each advantage is 0"),
        ({ESTIMATOR: "optimal_token_baseline"}, "advantages-can-be-computed", "calculate_sum_pi_squared"),
        ({ESTIMATOR: "gdpo"}, "advantages-can-be-computed", "gdpo_reward_keys"),
        ({ESTIMATOR: "remax"}, "advantages-can-be-computed", "reward_baselines"),
        ({ESTIMATOR: "grpo_vectorized", BY_STD: False}, "advantages-can-be-computed", "verl does not pass it to"),
        ({ESTIMATOR: "rloo", "algorithm.use_pf_ppo": True}, "advantages-can-be-computed", "does nothing with"),
        ({ESTIMATOR: "gae", "critic.enable": False}, "advantages-can-be-computed", "critic.enable"),
        ({"trainer.val_before_train": "no"}, "switches-are-true-or-false", "trainer.val_before_train=no: set true"),
        ({"refiner.rollout": {"enforce_eager": "off"}}, "switches-are-true-or-false", "refiner.rollout.enforce_eager"),
        (
            {f"{CORRECTION}.rollout_is": "token", f"{ROLLOUT}.calculate_log_probs": False},
            "correction-has-its-log-probs",
            "calculate_log_probs=true",
        ),
        ({**BYPASSED, f"{CORRECTION}.rollout_is": "token"}, "correction-acts", "not read it with bypass_mode=true"),
        ({**BYPASSED, f"{CORRECTION}.rollout_rs": "token_k1"}, "correction-acts", "rollout_rs=token_k1: verl does not"),
        ({**BYPASSED, f"{CORRECTION}.loss_type": "reinforce"}, "correction-acts", "loss_type=reinforce: verl does not"),
        ({f"{ACTOR}.policy_loss.loss_mode": "bypass_mode"}, "correction-acts", "a block of its own"),
        ({**CORRECTED, f"{CORRECTION}.rollout_is_threshold": 0.55}, "correction-acts", "has weight 0.55, not 1"),
        (
            {**CORRECTED, f"{CORRECTION}.rollout_is_threshold": "5_x"},
            "correction-acts",
            "rollout_correction: could not",
        ),
        ({**CORRECTED, f"{CORRECTION}.rollout_is": "tokens"}, "correction-acts", "rollout_is"),
        ({**CORRECTED, f"{CORRECTION}.rollout_rs": "token_k1"}, "correction-acts", "rollout_rs_threshold must be"),
        (
            {**CORRECTED, f"{CORRECTION}.rollout_rs": "token_k1", f"{CORRECTION}.rollout_rs_threshold": 0.52},
            "correction-acts",
            "must be lower <= upper",
        ),
        (
            {
                f"{ACTOR}.policy_loss.loss_mode": "bypass_mode",
                f"{ACTOR}.policy_loss.rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 0.55},
            },
            "correction-acts",
            "actor_rollout_ref.actor.policy_loss.rollout_correction.rollout_is_threshold=0.55",
        ),
    ],
)
def test_what_verl_would_refuse_minutes_later(
    plain: DictConfig, changes: dict[str, Any], rule: str, message: str
) -> None:
    found = broken(plain, changes)
    assert found is not None and found[0] == rule
    assert message in found[1] and "\n" not in found[1]


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {ESTIMATOR: name}
            for name in ("grpo", "grpo_passk", "grpo_vectorized", "gpg", "opo", "rloo", "rloo_vectorized")
        ),
        *({ESTIMATOR: name, N: 1} for name in ("grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")),
        *({ESTIMATOR: name, BY_STD: False} for name in ("grpo", "grpo_passk")),
        {ESTIMATOR: "gae", "critic.ppo_micro_batch_size_per_gpu": 2},
        {ESTIMATOR: "gdpo", "algorithm.gdpo_reward_keys": ["one", "two"]},
        {ESTIMATOR: "optimal_token_baseline", f"{ACTOR}.calculate_sum_pi_squared": True},
        *({f"{ACTOR}.policy_loss.loss_mode": name} for name in ("gspo", "clip_cov", "kl_cov", "cispo")),
        {f"{ACTOR}.policy_loss.loss_mode": "bypass_mode", f"{ACTOR}.policy_loss.rollout_correction": {}},
        {f"{ACTOR}.kl_loss_type": "low_var"},  # not read
        CORRECTED,
        {**CORRECTED, f"{CORRECTION}.rollout_is_threshold": "0.5_5.0"},
        {**CORRECTED, f"{CORRECTION}.rollout_rs": "token_k3", f"{CORRECTION}.rollout_rs_threshold": 0.01},
        BYPASSED,
        {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "k3+"},
        {"trainer.logger": "swanlab", "dry_run": True, "sizing.gpu_memory_gib": 80},  # of another machine
    ],
)
def test_what_verl_takes(plain: DictConfig, changes: dict[str, Any]) -> None:
    assert broken(plain, changes) is None


def test_names_of_a_module_of_the_users(plain: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_names_of_a_test.py").write_text(
        "from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss\n"
        "@register_adv_est('mine')\ndef advantage(**given):\n    raise KeyError('a column that only the run has')\n"
        "@register_policy_loss('mine')\ndef loss(**given):\n    raise KeyError('as above')\n"
    )
    changes = {ESTIMATOR: "mine", f"{ACTOR}.policy_loss.loss_mode": "mine"}
    found = broken(plain, changes)
    assert found is not None and found[0] == "names-are-verls"
    try:
        assert broken(plain, {"actor_rollout_ref.model.external_lib": "own_names_of_a_test"}) is None
    finally:
        names.core_algos.ADV_ESTIMATOR_REGISTRY.pop("mine", None)
        names.core_algos.POLICY_LOSS_REGISTRY.pop("mine", None)
        sys.modules.pop("own_names_of_a_test", None)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"algorithm.filter_groups": {"enable": True, "metric": "acc"}}, "DAPO's filter: groups whose acc is equal"),
        ({f"{ROLLOUT}.agent.default_agent_loop": "tool_agent"}, "agent loop tool_agent, at most any number of turns"),
        ({f"{ROLLOUT}.multi_turn.function_tool_path": "t.py"}, "tools: t.py"),
        ({f"{ACTOR}.use_kl_loss": True}, "static KL in the loss: actor_rollout_ref.actor.kl_loss_coef=0.001"),
        ({"algorithm.use_kl_in_reward": True}, "static KL in the reward"),
        ({N: 1}, "one response a prompt"),
        ({"refiner.max_refinements_per_group": 4}, "limits nothing: a prompt has 4 responses"),
        ({"refiner.max_refinements_per_group": 0}, "no response is refined"),
        ({"refiner.context": ["sibling"], N: 1}, "a prompt has one response"),
        ({}, "solved responses are refined too"),
        ({"refiner.skip_reward_at_least": -5.0}, "responses with a reward of -5 or more are not refined"),
    ],
)
def test_what_the_plan_says_of_a_choice(plain: DictConfig, changes: dict[str, Any], note: str) -> None:
    for key, value in changes.items():
        OmegaConf.update(plain, key, value)
    assert [one for one in notes(plain, load(plain)) if note in one]
    plain.constraint.update(mode="none", eta=0.5)  # nothing is refined then, and nothing is said of it
    found = notes(plain, load(plain))
    assert not [one for one in found if "refine" in one] and found[-1].startswith("constraint.eta=0.5 is not read")
    plain.constraint.eta = "small"  # whatever it is
    assert notes(plain, load(plain))[-1].startswith("constraint.eta=small is not read")


@pytest.mark.parametrize(
    ("mode", "target", "eta", "warning"),
    [
        (
            "sft",
            "rewrite",
            1000.0,
            "constraint.eta=1000 is far from all values that were tried in mode sft (0.01 to 1); set a value of this "
            "range, such as constraint.eta=0.01",
        ),
        (
            "penalty",
            "rewrite",
            1e-6,
            "constraint.eta=1e-06 is far from all values that were tried in mode penalty (0.0001 to 1); set a value of "
            "this range, such as constraint.eta=0.0001",
        ),
        (
            "penalty",
            "in_place",
            10.0,
            "constraint.eta=10 is far from all values that were tried in mode penalty with target in_place (",
        ),
        *((mode, "rewrite", eta, None) for mode in ("sft", "penalty", "lagrangian") for eta in (None, 0.0, 1.0)),
        ("none", "rewrite", 1000.0, None),
    ],
)
def test_an_eta_that_was_never_tried(
    config: DictConfig, mode: str, target: str, eta: float | None, warning: str | None
) -> None:
    config.constraint.update(mode=mode, target=target, eta=eta)
    run = PlannedRun(config=config, blocks=load(config))
    run.files = Files(config)
    found = cautions(run)
    assert found[0].startswith(warning) if warning else found == []


def test_a_data_sources_eta_that_was_never_tried(config: DictConfig) -> None:
    config.constraint.update(mode="sft", by_source={"mini_apps": {"eta": 0}, "x": {"eta": 1000}})
    run = PlannedRun(config=config, blocks=load(config))
    run.files = Files(config)
    assert cautions(run)[0].startswith("constraint.by_source.x.eta=1000 is far from all values that were tried in mode")


def test_a_chat_template_whose_end_of_turn_stops_no_engine(
    config: DictConfig, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny_llama, folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "eos_token": "<|endoftext|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    config.actor_rollout_ref.model.path = str(folder)
    found = cautions(checked(config))
    assert len(found) == 1 and found[0].startswith(
        "the chat template ends a reply with <|im_end|>, but engines stop only at "
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1, 2, 3]}))
    assert cautions(checked(config)) == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"train_max_samples": 1}, "data.train_max_samples"),
        ({"val_max_samples": 1}, "data.val_max_samples"),
        ({"train_max_samples": 1, "seed": 1}, None),
        ({"train_max_samples": 1, "shuffle": False}, None),
        ({"train_max_samples": 1000}, None),
        ({}, None),
    ],
)
def test_rows_of_a_limit_that_each_start_draws_anew(config: DictConfig, settings: dict, key: str | None) -> None:
    config.data.update(settings)
    run = PlannedRun(config=config, blocks=load(config))
    run.files = Files(config)
    found = cautions(run)
    assert found == [] if key is None else re.match(f"{re.escape(key)}=[0-9]+ without data.seed: ", found[0])


@pytest.mark.parametrize(("length", "is_heard"), [(64, False), (65, True), (None, True)])
def test_a_model_whose_frequencies_vllm_and_the_trainer_choose_apart(
    config: DictConfig, tiny_llama: Path, tmp_path: Path, length: int | None, is_heard: bool
) -> None:
    folder = tmp_path / "phi"
    shutil.copytree(tiny_llama, folder)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256}
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_theta": 10000.0}
    limit = {"original_max_position_embeddings": 64}
    rope = {"rope_type": "longrope", **factors, **limit}
    Phi3Config(**sizes, **limit, pad_token_id=0, rope_parameters=rope).save_pretrained(folder)
    config.actor_rollout_ref.model.path = str(folder)
    config.actor_rollout_ref.rollout.max_model_len = length
    run = PlannedRun(config=config, blocks=load(config))
    run.files = Files(config)
    heard = [line for line in cautions(run) if "longrope" in line]
    assert len(heard) == is_heard and all("max_model_len=64 or less" in line for line in heard)


@pytest.mark.parametrize(("strategy", "is_heard"), [("fsdp", False), ("megatron", True)])
def test_lines_of_packages_that_a_run_does_not_use(plain: DictConfig, strategy: str, is_heard: bool) -> None:
    plain.actor_rollout_ref.actor.strategy = strategy
    loggers = [logging.getLogger(name) for name in (*LOGGERS, *OF_MEGATRON)]
    before = [[*logger.filters] for logger in loggers]
    for logger in loggers:
        logger.filters = []  # a test that starts the command leaves some
    record = logging.makeLogRecord({"levelno": logging.INFO})
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            quieten(plain)
            for module in ("megatron.core.optimizer", "mine"):
                text = "Transformer Engine and Apex are not installed. Falling back"
                warnings.warn_explicit(text, UserWarning, f"{module}.py", 1, module=module)
        assert [Path(one.filename).stem for one in heard] == (["megatron.core.optimizer"] if is_heard else []) + [
            "mine"
        ]
        passes = [bool(logger.filter(record)) for logger in loggers]
        assert passes == [False] * len(LOGGERS) + [is_heard] * len(OF_MEGATRON)
    finally:
        for logger, filters in zip(loggers, before, strict=True):
            logger.filters = filters
