"""Rules on images in prompts: who reads them, and where they are refined."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

from recipe.online_refiner.method.in_place import InPlace
from recipe.online_refiner.verl_glue.preflight.files import one_line
from recipe.preflight.rules import PlannedRun, rule
from refiner_worker.pictures import has_pictures

PACKAGES = {"torchvision": "torchvision", "qwen_vl_utils": "qwen-vl-utils"}
"""What verl and transformers import to read images, with the names to install."""
ENGINES = ("fsdp", "fsdp2")
"""Training engines whose rows with a refinement carry the images of their prompt."""


@rule("files")
def prompts_have_texts_and_images_alone(run: PlannedRun) -> str | None:
    """Prompts that are refined have neither videos nor sounds."""
    others = [name for name in run.files.media if name != run.config.data.get("image_key", "images")]
    if not run.blocks.hosts_refiner or not others:
        return None
    said = f"data.train_files: the column {others[0]} would not reach the refiner, which reads texts and images"
    return f"{said}; drop the column, or set constraint.mode=none and measure.num_kl_rollouts=0"


@rule("files")
def images_are_refined_where_they_are_trained_on(run: PlannedRun) -> str | None:
    """The training engine, the refiner's placement and the constraint's target take images, if there are some."""
    if not run.blocks.hosts_refiner or not run.files.media:
        return None
    strategy, placement = run.config.actor_rollout_ref.actor.strategy, run.blocks.refiner.placement
    said = f"data.train_files has images (column {run.files.media[0]}), which are not"
    if strategy not in ENGINES:
        return f"actor_rollout_ref.actor.strategy={strategy}: {said} refined on this engine; set model_engine=dp"
    if isinstance(run.blocks.constraint, InPlace):
        return f"constraint.target=in_place: {said} scored in place; set constraint.target=rewrite"
    if placement == "shared":
        return f"refiner.placement=shared: {said} refined by the rollout's own servers; set refiner.placement=colocated"
    return None


@rule("files")
def models_read_images(run: PlannedRun) -> str | None:
    """The policy, and a refiner with weights of its own, read images, and what they need is installed."""
    blocks, model = run.blocks, run.config.actor_rollout_ref.model
    if not blocks.hosts_refiner or not run.files.media:
        return None
    paths = {"actor_rollout_ref.model.path": model.path}
    if blocks.refiner.has_replicas:
        paths["refiner.model_path"] = blocks.refiner.model_path
    for key, path in paths.items():
        if not run.files.reads_images(path):
            said = f"{key}={path} reads text, but data.train_files has images (column {run.files.media[0]})"
            return f"{said}; set a model that sees, such as Qwen/Qwen2.5-VL-3B-Instruct, or drop the column"
    if missing := [name for module, name in PACKAGES.items() if find_spec(module) is None]:
        return f"data.train_files has images, which {' and '.join(missing)} read; run: pip install {' '.join(missing)}"
    if run.files.processor is None:
        said = f"actor_rollout_ref.model.path={model.path}: verl cannot load its processor"
        return f"{said} ({run.files.wrong_with_processor}); set a model such as Qwen/Qwen2.5-VL-3B-Instruct"
    return None


@rule("files")
def positions_of_images_are_verls(run: PlannedRun) -> str | None:
    """The positions of images are computed by verl, as for Qwen-VL; another model has columns by token in each row."""
    if not run.blocks.hosts_refiner or run.files.processor is None or hasattr(run.files.processor, "get_rope_index"):
        return None
    return (
        f"actor_rollout_ref.model.path={run.config.actor_rollout_ref.model.path}: verl computes no positions of images "
        f"for its processor ({type(run.files.processor).__name__}), so a refinement's row would not fit the model; set "
        "a model such as Qwen/Qwen2.5-VL-3B-Instruct"
    )


@rule("files")
def processor_repeats_the_tokens_of_images(run: PlannedRun) -> str | None:
    """The policy's processor does no more to a prompt than to repeat the tokens of its images."""
    sight, settings = run.files.sight, dict(run.config.data.apply_chat_template_kwargs)
    if sight is None or not run.blocks.hosts_refiner:
        return None
    rows = run.files.dataset("train_files")
    for index in range(min(1, len(rows))):
        messages = list(rows[index]["raw_prompt"])
        file = Path(str(run.config.data.train_files)).name
        try:
            prompt = asyncio.run(sight.encode(messages, **settings))
            follows = not has_pictures(messages) or sight.can_be_followed(prompt, messages, **settings)
        except Exception as error:  # a picture or a chat template may raise anything
            return f"data.train_files: row {index} of {file}: its images cannot be read ({one_line(error)})"
        if not follows:
            return (
                f"actor_rollout_ref.model.path={run.config.actor_rollout_ref.model.path}: its processor "
                f"({type(sight.processor).__name__}) does more than repeat the tokens of images, which the refiner's "
                "prompts cannot follow; set a model such as Qwen/Qwen2.5-VL-3B-Instruct"
            )
    return None
