"""The pictures of prompts, as verl's agent loops give them to the policy."""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from verl.utils.tokenizer import get_processor_token_id

from refiner_worker.pictures import Pictures, Prompt, has_pictures


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

        Source: ``AgentLoopBase.process_multi_modal_info`` (``verl/experimental/agent_loop/agent_loop.py``).

        Raises:
            ValueError: If the prompt has other pictures than its messages.
        """
        if not has_pictures(messages):
            return prompt_ids
        images, *_ = await self.dataset_class.process_multi_modal_info(
            messages, image_patch_size=self.processor.image_processor.patch_size, config=self.data
        )
        token = get_processor_token_id(self.processor, "image")
        if token is None:
            raise ValueError(f"{type(self.processor).__name__} does not say which token stands for an image")
        settings = self.data.get("mm_processor_kwargs")
        return Prompt(prompt_ids, Pictures.in_prompt(prompt_ids, images, token, settings))
