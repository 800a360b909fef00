"""Compare refiner prompts with what models' own processors make of the same chats: ``FOLDER``."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from tiny_vision import FAMILIES, save_vision_model
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer import build_multimodal_processor_inputs

from recipe.offline.bench import asked
from recipe.online_refiner.verl_glue.sight import Sight, sight_of
from refiner_worker.config import TEMPLATES
from refiner_worker.pictures import pictures_of
from refiner_worker.prompts import RefinerPrompt

SIZES = [(64, 64), (40, 90), (200, 30)]


async def compare(sight: Sight, again: RefinerPrompt, images: list[Any]) -> None:
    """Let the policy's prompt be expanded by the processor, and ours from its runs of tokens."""
    parts = [{"type": "image", "image": image} for image in images]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "How many?"}]}]
    text = sight.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    patch = sight.processor.image_processor.patch_size
    resized, *_ = await RLHFDataset.process_multi_modal_info(messages, image_patch_size=patch, config=None)
    seen = build_multimodal_processor_inputs(sight.processor, text=[text], images=resized)
    own = seen["input_ids"][0].tolist()
    prompt = await sight.look(messages, own)
    pictures = pictures_of(prompt)
    assert pictures is not None and len(pictures.images) == len(images)
    grids = (seen["image_grid_thw"].prod(-1) // 4).tolist()
    assert list(pictures.num_tokens) == grids, (pictures.num_tokens, grids)
    assert await sight.encode(messages) == own and sight.can_be_followed(prompt, messages)
    request = asked(prompt)  # of which vLLM expands the images again
    assert (
        request["prompt_token_ids"].count(pictures.token_id) == len(images) == len(request["multi_modal_data"]["image"])
    )
    written = again.encode(again.content(messages, "old", 0.0), pictures)
    assert written == own and pictures_of(written) is pictures


def main(folder: str) -> None:
    """Compare prompts with one picture, two and three."""
    images = [Image.effect_noise(size, 60).convert("RGB") for size in SIZES]
    for family in FAMILIES:
        tokenizer = AutoTokenizer.from_pretrained(save_vision_model(Path(folder, family), family))
        sight = sight_of(f"{folder}/{family}", "the model")
        again = RefinerPrompt(TEMPLATES / "again.jinja", tokenizer)
        for number in range(1, len(images) + 1):
            asyncio.run(compare(sight, again, images[:number]))
        print(f"{family}: {len(images)} prompts")


if __name__ == "__main__":
    main(*sys.argv[1:])
