"""Questions that need a picture, a film or a sound: rows hold only the pictures of a column that is named for it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recipe.data_preparation.fields import Dropped, Record, is_missing

_NAME = re.compile(
    r"(?:\w+_)?(?:image|img|picture|photo|pixel_value|video|audio)s?(?:_?(?:path|file|filename|url|byte|base64|\d+)s?)?",
    re.I,
)
"""The names of columns that hold media, such as decoded_image, image_7 or video_path."""
_MARK = re.compile(r"<(image|video|audio)(?:[ _]?\d+)?>(?!.*</\1>)", re.S)
"""The mark of a picture's place in a text, such as ``<image>``; ``<video>`` with its closing tag is HTML."""
_LINK = re.compile(r"!\[[^\]]*\]\(|<img\s[^>]*src|\\includegraphics\b")
_FILE = re.compile(
    r"\S+\.(?:png|jpe?g|gif|webp|bmp|svg|mp4|webm|avi|mov|mkv|wav|mp3|flac|ogg)|data:(?:image|video|audio)/\S+", re.I
)
_PARTS = ({"bytes", "path"}, {"array", "sampling_rate", "path"}, {"array", "sampling_rate"})
"""The keys of a picture, film or sound in a table of the package datasets."""


PLACE = "<image>"
"""The mark of a picture's place in a prompt, as verl's data class reads it."""


def add_images(row: dict[str, Any], images: Any) -> None:
    """Give a row the pictures of its record, in verl's column ``images``.

    If the prompt has no places for them, they stand before its last message of the user.

    Args:
        row: The row, which is changed.
        images: One picture, or a list of them: bytes, an object with ``bytes`` or ``path``, or a file's name.

    Raises:
        Dropped: ``images do not fit``: a picture cannot be read, or the prompt has another number of places.
    """
    row["images"] = [{"bytes": _content(one)} for one in (images if isinstance(images, (list, tuple)) else [images])]
    number, places = len(row["images"]), sum(one["content"].count(PLACE) for one in row["prompt"])
    if not places:
        last = [message for message in row["prompt"] if message["role"] == "user"][-1]
        last["content"] = PLACE * number + last["content"]
    elif places != number:
        raise Dropped("images do not fit", f"the prompt has {places} places ({PLACE}) for {number} images")


def _content(image: Any) -> bytes:
    """Return the bytes of a picture."""
    value: Any = (image.get("bytes") or image.get("path")) if isinstance(image, dict) else image
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    try:
        return Path(value).expanduser().read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise Dropped("images do not fit", f"an image is neither bytes nor a file that can be read: {error}") from error


def refuse_media(record: Record, prompt: Iterable[dict[str, Any]], *, with_links: bool, has_images: bool) -> None:
    r"""Refuse a record whose question needs a picture, a film or a sound.

    Args:
        record: The record, whose columns may hold pictures.
        prompt: The row's messages, which may say where a picture stands.
        with_links: Whether a link to a picture (``![](a.png)``, ``<img src=``, ``\includegraphics``) counts; a task
            for a program, or a chat, may be about such text.
        has_images: Whether the row has the pictures of a column that was read for it, and their places in its prompt.

    Raises:
        Dropped: ``not text alone``.
    """
    for column, value in record.items():
        is_left = column not in getattr(record, "read", ())  # an answer may be the name of a file
        if has_images and not is_left:
            continue
        if (
            _is_media(value)
            or (_NAME.fullmatch(column.strip()) and _is_reference(value))
            or is_left
            and _is_file(value)
        ):
            what = f"column {column} holds a picture, film, sound or other bytes"
            raise Dropped("not text alone", f"{what}, and rows are text: remove it if the question does not need it")
    for message in prompt:
        content = message["content"].replace(PLACE, "") if has_images else message["content"]
        found = _MARK.search(content) or (_LINK.search(content) if with_links else None)
        if found:
            raise Dropped("not text alone", f"the question shows a picture, film or sound: {found[0][:60]}")


def _is_reference(value: Any) -> bool:
    """Return whether a value may name or hold a picture: numbers count them or say whether there is one."""
    return not is_missing(value) and not isinstance(value, (bool, int, float))


def _is_file(value: Any) -> bool:
    """Return whether a text, or one of a list, is the name of a picture's file, or a picture as text."""
    texts = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(text, str) and _FILE.fullmatch(text.strip()) is not None for text in texts)


def _is_media(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_media, value))
    if isinstance(value, dict):
        return (value.keys() in _PARTS and not is_missing(value)) or any(map(_is_media, value.values()))
    return isinstance(value, (bytes, bytearray)) or type(value).__module__.partition(".")[0] in ("PIL", "torchcodec")
