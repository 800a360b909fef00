"""Pictures in prompts: token ids that carry the pictures for which some of them stand, and their place in words.

In words a picture is MARK. Nothing else of it is ever text: a template that shows the question shows the mark, and the
pictures stand where the marks are, in order.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""The character that stands for a picture in the words of a prompt. Other texts lose it where there are pictures."""
PLACEHOLDER = "<image>"
"""What people read in the place of a picture. verl's data sets write it as well."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """The pictures of a prompt, as the policy has read them."""

    images: tuple[Any, ...]
    """The images (PIL), in order."""
    num_tokens: tuple[int, ...]
    """The number of tokens of each image in a prompt."""
    token_id: int
    """The token that stands for an image; as often as the image has tokens."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the processor is given beside text and images (``data.mm_processor_kwargs``)."""

    @classmethod
    def in_prompt(
        cls, ids: Sequence[int], images: Iterable[Any], token_id: int, settings: Mapping[str, Any] | None = None
    ) -> "Pictures":
        """Return the pictures of a prompt that the model's processor has expanded.

        Raises:
            ValueError: If the prompt has another number of pictures.
        """
        images = tuple(images)
        num_tokens = tuple(len([*run]) for token, run in groupby(ids) if token == token_id)
        if len(num_tokens) != len(images):
            raise ValueError(f"the messages of a prompt have {len(images)} images, but its tokens {len(num_tokens)}")
        return cls(images=images, num_tokens=num_tokens, token_id=token_id, settings=dict(settings or {}))

    @property
    def request(self) -> dict[str, Any]:
        """What verl's server is given of them."""
        request: dict[str, Any] = {"image_data": list(self.images)}
        return {**request, "mm_processor_kwargs": dict(self.settings)} if self.settings else request

    @cached_property
    def urls(self) -> list[str]:
        """The images as data URLs, without loss."""
        return [f"data:image/png;base64,{base64.b64encode(_png(image)).decode()}" for image in self.images]

    def expand(self, ids: Sequence[int]) -> "Prompt":
        """Return a prompt in which each image has one token as the processor expands it.

        Raises:
            ValueError: If the prompt has another number of pictures.
        """
        found, left = list[int](), list(self.num_tokens)
        for one in ids:
            if one != self.token_id:
                found.append(one)
            elif left:
                found += [one] * left.pop(0)
            else:
                raise ValueError(f"the chat template writes more than {len(self.images)} images")
        if left:
            raise ValueError(f"the chat template leaves out {len(left)} of {len(self.images)} images")
        return Prompt(found, self)

    def collapse(self, ids: Sequence[int]) -> list[int]:
        """Return a prompt in which each image has one token."""
        return [token for token, run in groupby(ids) for _ in ([0] if token == self.token_id else run)]

    def described(self) -> str:
        """Return how many images there are, and how many tokens they have, in words."""
        number, tokens = len(self.images), sum(self.num_tokens)
        return f", with {number} image{'s' * (number != 1)} ({tokens} token{'s' * (tokens != 1)})"


class Prompt(list[int]):
    """The token ids that a model reads, with the pictures for which some of them stand; a text has none."""

    def __init__(self, ids: Iterable[int] = (), pictures: Pictures | None = None) -> None:
        super().__init__(ids)
        self.pictures = pictures

    def __add__(self, more: list[int]) -> "Prompt":  # type: ignore[override]
        """Return a longer prompt with the same pictures."""
        return Prompt([*self, *more], self.pictures)


def pictures_of(ids: Sequence[int]) -> Pictures | None:
    """Return the pictures in a prompt; None if it is a text."""
    return ids.pictures if isinstance(ids, Prompt) else None


def has_pictures(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a chat has pictures."""
    return any(_is_image(part) for message in messages for part in parts_of(message))


def with_images(messages: Iterable[Mapping[str, Any]], images: Iterable[Any]) -> list[dict[str, Any]]:
    """Return a chat with an image in the place of each ``<image>``, in order, as verl's data class makes it.

    Without images, texts stay as they are. An image is one of PIL, a file's name, or an object with its ``bytes``.

    Raises:
        ValueError: If the texts have another number of places.
    """
    images = [_opened(image) for image in images]
    chat = [dict(message) for message in messages]
    places = sum(str(message["content"] or "").count(PLACEHOLDER) for message in chat)
    if not images:
        return chat
    if places != len(images):
        raise ValueError(f"a row has {len(images)} images, but {places} places ({PLACEHOLDER}) in its prompt")
    left = iter(images)
    for message in chat:
        parts: list[dict[str, Any]] = []
        for number, text in enumerate(str(message["content"] or "").split(PLACEHOLDER)):
            if number:
                parts.append({"type": "image", "image": next(left)})
            if text:
                parts.append({"type": "text", "text": text})
        message["content"] = parts
    return chat


def _opened(image: Any) -> Any:
    if isinstance(image, Mapping) and image.get("bytes"):
        from PIL import Image

        return Image.open(io.BytesIO(image["bytes"]))
    return image["path"] if isinstance(image, Mapping) else image


def images_in(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the images of a chat (PIL); those that it names by a file or an address are left out."""
    parts = (part for message in messages for part in parts_of(message) if _is_image(part))
    return [part["image"] for part in parts if hasattr(part.get("image"), "tobytes")]


def parts_of(message: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a message; none if its content is one text."""
    content = message.get("content")
    return [] if content is None or isinstance(content, str) else list(content)


def as_text(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat whose contents are texts: each picture is a mark. Contents that are texts stay as they are.

    Raises:
        ValueError: If a part of a message is neither a text nor an image.
    """
    return [
        {**message, "content": "".join(map(_words, parts_of(message)))} if parts_of(message) else dict(message)
        for message in messages
    ]


def for_people(text: str) -> str:
    """Return a text as people read it."""
    return text.replace(MARK, PLACEHOLDER)


def split(words: str, num_images: int) -> list[str | None]:
    """Return the parts of a user's message in order: texts, and None for the next image.

    A mark beyond the last image is its text for people, as in a template that shows the question twice. Images for
    which there is no mark come first.
    """
    texts = words.split(MARK, num_images)
    num_marks = len(texts) - 1
    parts: list[str | None] = [None] * (num_images - num_marks)
    for index, text in enumerate(texts):
        parts += [None] * (index > 0) + [for_people(text)] * bool(text)
    return parts


def content_of(words: str, pictures: Pictures | None) -> str | list[dict[str, Any]]:
    """Return the content of a user's message to a server by URL: a text, or texts and images in parts."""
    if pictures is None:
        return words
    urls = iter(pictures.urls)
    return [
        {"type": "image_url", "image_url": {"url": next(urls)}} if part is None else {"type": "text", "text": part}
        for part in split(words, len(pictures.images))
    ]


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def _words(part: Any) -> str:
    if _is_image(part):
        return MARK
    if isinstance(part, str):
        return part.replace(MARK, "")
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise ValueError(f"a message has a part of type {kind}; the refiner reads texts and images")
    return str(part["text"]).replace(MARK, "")


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
