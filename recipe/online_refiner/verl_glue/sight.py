"""The pictures of prompts, as verl's agent loops give them to the policy."""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer import (
    build_multimodal_processor_inputs,
    get_processor_token_id,
    hf_processor,
    normalize_token_ids,
)

from refiner_worker.pictures import Pictures, Prompt, has_pictures

PACKAGES = "torchvision and qwen-vl-utils"
"""What transformers and verl read images with."""


def sight_of(model: str, named: str) -> "Sight":
    """Return what reads the images of prompts for a model, beside a run.

    Args:
        model: A folder or a hub id.
        named: The option with its value, for the error message.

    Raises:
        ValueError: If verl knows no processor for the model; the message begins with ``named``.
    """
    if (processor := hf_processor(model)) is None:
        said = f"{named}: the data has images, but verl knows no processor of this model"
        raise ValueError(f"{said}; give a model that sees, such as Qwen/Qwen2.5-VL-3B-Instruct, and install {PACKAGES}")
    return Sight(processor=processor, data=OmegaConf.create(), dataset_class=RLHFDataset)


@dataclass(slots=True, frozen=True, kw_only=True)
class Sight:
    """The policy's processor and data class, with which its prompts are read again for the reference model."""

    processor: Any
    """The processor of a model that sees."""
    data: DictConfig
    """verl's block ``data``."""
    dataset_class: Any
    """The class that reads the data, which finds the images in messages (``get_dataset_class`` of verl)."""

    async def look(self, messages: list[dict[str, Any]], prompt_ids: list[int]) -> list[int]:
        """Return a prompt of the policy with its pictures, which its messages hold; a text as it is.

        Raises:
            ValueError: If the prompt has other pictures than its messages.
        """
        return self._seen(prompt_ids, await self._images(messages)) if has_pictures(messages) else prompt_ids

    async def encode(self, messages: list[dict[str, Any]], **settings: Any) -> Prompt:
        """Return a prompt with its pictures as verl makes it for the policy.

        Source: ``VLContinuousTokenMixin.render_tokens_with_mm`` (``verl/utils/tokenizer/continuous_token.py``).
        """
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)
        images = await self._images(messages) if has_pictures(messages) else None
        made = build_multimodal_processor_inputs(
            self.processor, text=[text], images=images, mm_processor_kwargs=self._settings
        )
        ids = normalize_token_ids(made["input_ids"])
        return self._seen(ids, images) if images else Prompt(ids)

    def can_be_followed(self, prompt: Prompt, messages: list[dict[str, Any]], **settings: Any) -> bool:
        """Return whether the processor does no more to a prompt than to repeat the tokens of its images."""
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)
        ids = self.processor.tokenizer.encode(text, add_special_tokens=False)
        return prompt.pictures is None or prompt.pictures.expand(ids) == prompt

    async def _images(self, messages: list[dict[str, Any]]) -> list[Any]:
        """Return the images of some messages (PIL).

        Source: ``AgentLoopBase.process_multi_modal_info`` (``verl/experimental/agent_loop/agent_loop.py``).
        """
        images, *_ = await self.dataset_class.process_multi_modal_info(
            messages, image_patch_size=self.processor.image_processor.patch_size, config=self.data
        )
        return list(images)

    def _seen(self, ids: list[int], images: list[Any]) -> Prompt:
        token = get_processor_token_id(self.processor, "image")
        if token is None:
            raise ValueError(f"{type(self.processor).__name__} does not say which token stands for an image")
        return Prompt(ids, Pictures.in_prompt(ids, images, token, self._settings))

    @property
    def _settings(self) -> dict[str, Any]:
        return dict(self.data.get("mm_processor_kwargs") or {})
