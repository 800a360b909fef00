"""Rules on what checkpoints contain."""

from omegaconf import DictConfig, ListConfig, OmegaConf

from recipe.online_refiner.config.rules import ACTOR
from recipe.preflight.rules import PlannedRun, has_critic, rule
from recipe.preflight.spelling import unknown

CONTENTS = ("model", "optimizer", "extra", "hf_model")
"""The parts of a checkpoint by verl's words (``CheckpointConfig`` in ``verl/trainer/config/config.py``)."""


@rule("config")
def checkpoints_have_the_state(run: PlannedRun) -> str | None:
    """Checkpoints are lists of verl's words, and what a resumed run loads is saved, the model among it."""
    blocks = {ACTOR: run.config.actor_rollout_ref.actor}
    if has_critic(run.config):
        blocks["critic"] = run.config.critic
    for key, block in blocks.items():
        if wrong := _wrong_with_contents(block, f"{key}.checkpoint", run.config.trainer.resume_mode):
            return wrong
    return None


def _wrong_with_contents(block: DictConfig, key: str, resume_mode: str) -> str | None:
    contents = {name: OmegaConf.select(block, f"checkpoint.{name}") for name in ("save_contents", "load_contents")}
    for name, words in contents.items():
        if words is None:  # then they are verl's default
            contents[name] = CONTENTS[:3]
        elif not isinstance(words, ListConfig):
            return f"{key}.{name}={words}: set a list, such as [{','.join(CONTENTS[:3])}]"
        for word in contents[name]:
            if word not in CONTENTS:
                return unknown(f"{key}.{name}", word, CONTENTS)
    saved, loaded = contents.values()
    if resume_mode == "disable":  # what is not resumed may be an export
        return None
    models = {"model", "hf_model"} if block.strategy == "megatron" else {"model"}
    if not models.intersection(loaded):
        return (
            f"{key}.load_contents=[{','.join(loaded)}]: a resumed run would go on at its step with the first weights; "
            f"add model to it and to {key}.save_contents, or set trainer.resume_mode=disable to never resume"
        )
    lacks = [word for word in loaded if word not in saved and not (word in models and models.intersection(saved))]
    if lacks:
        return (
            f"{key}.load_contents has {lacks[0]}, which {key}.save_contents=[{','.join(saved)}] does not save: no "
            "checkpoint of this run could be resumed; make them alike"
        )
    return None
