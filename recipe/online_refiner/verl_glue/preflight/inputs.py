"""Rules on the files and columns of models and data."""

from pathlib import Path

from omegaconf import OmegaConf
from verl.utils.import_utils import load_module

from recipe.online_refiner.verl_glue.preflight.files import one_line, wrong_with_extra_info
from recipe.online_refiner.verl_glue.preflight.models import ADAPTER_KEY, models_of
from recipe.preflight.rules import SET_A_MODEL, PlannedRun, has_critic, rule
from refiner_worker.config import ALIKE, External
from refiner_worker.keys import nearest
from refiner_worker.text.thoughts import read_thoughts

_NUMINA = ("aops_forum", "synthetic_math", "amc_aime", "synthetic_amc", "cn_k12", "olympiads")
RUN_BY_VERL = {f"numina_{name}" for name in _NUMINA}
"""Data sources whose answers verl's own grader evaluates as Python (``verl/utils/reward_score/prime_math``)."""


@rule("files")
def models_are_there(run: PlannedRun) -> str | None:
    """Each model path that is a folder is a model folder."""
    for model in models_of(run):
        if model.path is None:
            return f"{model.key}=null: {SET_A_MODEL}"
        if model.path.startswith(("/", ".", "~")) and not Path(model.path, "config.json").is_file():
            return f"{model.key}={model.path}: no model folder there (config.json is missing); {SET_A_MODEL}"
    adapter = run.config.actor_rollout_ref.model.lora_adapter_path
    if (
        adapter is not None
        and str(adapter).startswith(("/", ".", "~"))
        and not Path(adapter, "adapter_config.json").is_file()
    ):
        return (
            f"{ADAPTER_KEY}={adapter}: no adapter there (adapter_config.json is missing); set the folder of one, such "
            "as adapters/mine, or null"
        )
    reward = run.config.reward.reward_model
    if reward.enable and OmegaConf.is_missing(reward.rollout, "name"):
        return "reward.reward_model.rollout.name is not set; set the engine, such as vllm"
    return None


@rule("files")
def tokenizer_writes_chats(run: PlannedRun) -> str | None:
    """The policy's tokenizer has a chat template and an EOS token."""
    model, tokenizer = run.config.actor_rollout_ref.model, run.files.tokenizer
    name = "path" if model.tokenizer_path is None else "tokenizer_path"
    if not tokenizer.chat_template:
        what = "its tokenizer has no chat template; use an instruct model, or add one to it"
    elif tokenizer.eos_token_id is None:
        what = "its tokenizer has no EOS token; set eos_token in tokenizer_config.json"
    else:
        return None
    return f"actor_rollout_ref.model.{name}={model[name]}: {what}"


@rule("files")
def refiner_has_the_policys_tokens(run: PlannedRun) -> str | None:
    """Each hosted refiner has the policy's tokens."""
    policy = run.config.actor_rollout_ref.model.path
    for use in run.blocks.refiner.models if run.blocks.hosts_refiner else ():
        if use.path == policy:
            continue
        actor, refiner = run.files.tokenizer, run.files.load_tokenizer(use.path, use.path_key)
        if actor.get_vocab() != refiner.get_vocab() or actor.eos_token_id != refiner.eos_token_id:
            return (
                f"{use.path_key}={use.path}: its tokenizer differs from the policy's, but the policy imitates refined "
                f"token ids; set a model of the same family, or {policy}"
            )
    return None


@rule("files")
def external_servers_answer(run: PlannedRun) -> str | None:
    """Every external server answers a short chat: URL, model and key are right."""
    blocks = run.blocks
    asked = {f"refiner.by_source.{source}: ": one for source, one in blocks.refiner.own_servers.items()}
    asked = asked if blocks.refines else {}
    if blocks.hosts_refiner and isinstance(blocks.refiner, External):
        asked[""] = blocks.refiner
    if not asked:
        return None
    from refiner_worker.external import fault  # here: it imports openai

    return next((key + said for key, one in asked.items() if (said := fault(one))), None)


@rule("files")
def every_data_source_has_a_refiner(run: PlannedRun) -> str | None:
    """Each data source of ``data.train_files`` is in ``refiner.by_source``, where that is set."""
    known = run.blocks.refiner.by_source
    if not known or not run.blocks.refines:
        return None
    for source, name in _sources(run, "refiner.by_source").items():
        if source not in known:
            said = f"data.train_files: the data source {source} of {name} is not in refiner.by_source"
            return f"{said}, which has {', '.join(known)}; add it ({ALIKE}){nearest(source, known)}"
    return None


@rule("files")
def weights_are_of_data_sources(run: PlannedRun) -> str | None:
    """Each data source of ``constraint.by_source`` is in ``data.train_files``."""
    weights = run.blocks.constraint.by_source
    if not weights or not (known := _sources(run, "constraint.by_source")):
        return None
    for source in weights:
        if source not in known:
            said = f"constraint.by_source.{source}: no row of data.train_files has this data_source"
            return f"{said}; set one of {', '.join(known)}, or drop the key{nearest(source, known)}"
    return None


def _sources(run: PlannedRun, key: str) -> dict[str, str]:
    """Return the data sources of ``data.train_files``, each with a file that has it; ``key`` needs them.

    Raises:
        ValueError: If a file has no column for them.
    """
    found: dict[str, str] = {}
    for file, part in run.files.data("train_files").items():
        name = Path(file).name
        if "data_source" not in part.column_names:
            said = f"data.train_files: {name} has no column data_source, which {key} needs"
            raise ValueError(f"{said}; add the column, or set {key}=null")
        found |= dict.fromkeys(map(str, part.unique("data_source")), name)
    return found


@rule("files")
def data_have_rows(run: PlannedRun) -> str | None:
    """Data sets have rows, and enough prompts for a step."""
    data = run.config.data
    for key, num_rows in run.files.num_rows.items():
        if num_rows == 0:
            return f"data.{key}={data[key]}: the data set is empty; set a file that has rows"
    if run.files.num_prompts >= data.train_batch_size:
        return None
    return (
        f"data.train_files has {run.files.num_prompts} rows, fewer than one batch; lower data.train_batch_size="
        f"{data.train_batch_size}, add data or raise data.train_max_samples"
    )


@rule("files")
def queue_holds_a_step(run: PlannedRun) -> str | None:
    """The TransferQueue has room for the responses of a step, and for the responses of a validation."""
    config, rollout, key = run.config, run.config.actor_rollout_ref.rollout, "SimpleStorage.total_storage_size"
    room = OmegaConf.select(config, f"transfer_queue.backend.{key}")
    limits = [run.files.num_rows["val_files"], config.data.val_max_samples, config.data.val_batch_size]
    num_val = min(limit for limit in limits if limit and limit > 0)
    most = max(config.data.train_batch_size * rollout.n, num_val * rollout.val_kwargs.n)
    if config.transfer_queue.backend.storage_backend != "SimpleStorage" or room is None or room >= most:
        return None
    said = f"transfer_queue.backend.{key}={room}: a step or a validation has {most} responses"
    return f"{said}; set transfer_queue.backend.{key}={most}"


@rule("files")
def epochs_have_the_steps(run: PlannedRun) -> str | None:
    """``total_epochs`` have ``total_training_steps``: verl ends where they end, and does not save or validate then."""
    trainer, most = run.config.trainer, _steps_of_epochs(run)
    num_steps, num_epochs = trainer.total_training_steps, trainer.total_epochs
    if num_steps is None or num_steps <= most:
        return None
    return (
        f"trainer.total_training_steps={num_steps}: trainer.total_epochs={num_epochs} has only {most} steps, after "
        "which verl ends without saving the last one; raise trainer.total_epochs"
    )


@rule("files")
def actor_is_trained(run: PlannedRun) -> str | None:
    """The actor is trained: ``critic_warmup`` ends before the run and has a critic; ``val_only`` does validate."""
    trainer, warmup = run.config.trainer, run.config.trainer.critic_warmup
    if trainer.val_only and not trainer.val_before_train:
        return "trainer.val_only=true does nothing with trainer.val_before_train=false: set both to true, or neither"
    if warmup and not has_critic(run.config):
        return (
            f"trainer.critic_warmup={warmup}: the run has no critic, and its actor would not be trained in these "
            "steps; set trainer.critic_warmup=0"
        )
    num_steps = trainer.total_training_steps or _steps_of_epochs(run)
    if warmup <= num_steps:
        return None
    said = f"trainer.critic_warmup={warmup}: the actor is never trained, since the run has only {num_steps} steps"
    return f"{said}; lower trainer.critic_warmup"


@rule("files")
def no_grader_runs_answers(run: PlannedRun) -> str | None:
    """No grader of verl's runs the model's answers as code."""
    if run.config.reward.custom_reward_function.path is not None or run.config.reward.reward_model.enable:
        return None
    for key in run.files.num_rows:
        for part in run.files.data(key).values():
            sources = part.unique("data_source") if "data_source" in part.column_names else []
            if found := sorted(RUN_BY_VERL.intersection(sources)):
                return (
                    f"data.{key}: verl's grader of {', '.join(found)} runs the model's answers as code; set "
                    "reward.custom_reward_function.path=pkg://reward.math and "
                    "reward.custom_reward_function.name=compute_score"
                )
    return None


@rule("files")
def problems_can_be_rewarded(run: PlannedRun) -> str | None:
    """The reward function's ``validate_row(row, limits=None)``, if its module has one, accepts every row."""
    reward = run.config.reward.custom_reward_function
    if reward.path is None:
        return None
    try:
        validate = getattr(load_module(reward.path), "validate_row", None)
    except BaseException as error:  # a user's module may raise anything, and end
        return f"reward.custom_reward_function.path={reward.path}: {one_line(error)}"
    if validate is None:
        return None
    limits = OmegaConf.select(reward, "reward_kwargs.limits")
    for key in run.files.num_rows:
        for file, part in run.files.data(key).items():
            names = {"data_source", "reward_model", "extra_info"}.intersection(part.column_names)
            if "reward_model" not in names:
                continue  # another rule says so
            for index, row in enumerate(part.select_columns(sorted(names))):
                where = f"data.{key}: row {index} of {Path(file).name}"
                if not isinstance(row["reward_model"], dict) or "ground_truth" not in row["reward_model"]:
                    return f"{where} has no reward_model.ground_truth; write rows as online-refiner prepare does"
                if wrong := wrong_with_extra_info(row):
                    return f"{where}: {wrong}"
                try:
                    validate(row, limits=limits)
                except ValueError as error:
                    return f"{where}: {error}"
                except BaseException as error:  # as above
                    return f"reward.custom_reward_function.path={reward.path}: validate_row: {one_line(error)}"
    return None


def _steps_of_epochs(run: PlannedRun) -> int:
    """Return how many steps the epochs have, if no prompt is filtered away."""
    return int(run.files.num_prompts // run.config.data.train_batch_size * run.config.trainer.total_epochs)


@rule("files")
def thoughts_are_told_from_answers(run: PlannedRun) -> str | None:
    """``refiner.thoughts=false`` needs a chat template that opens no thought."""
    refiner, settings, tokenizer = run.blocks.refiner, run.config.data.apply_chat_template_kwargs, run.files.tokenizer
    if refiner.thoughts is False and (found := read_thoughts(tokenizer, settings)) and found.is_open:
        return (
            f"refiner.thoughts=false, but the chat template begins each reply with {found.opening}: no answer can be "
            "told from the thought; leave refiner.thoughts out"
        )
    return None
