"""Small copies of the images in a run's prompts, which records name by a hash of their pixels."""

import hashlib
import io
import re
from typing import Any

import fsspec

FOLDER = "images"
"""The folder, below the records' folder, with the small copies."""
SIDE = 320
"""The longest side of a small copy, in pixels: in this form it takes far less than MAX_BYTES."""
MAX_BYTES = 200_000
"""The largest size of a small copy that a page takes."""
_NAME = re.compile(r"[0-9a-f]{16}")


class Thumbnails:
    """The small copies of one run's images.

    Args:
        path: A folder, or the URL of one; made with the first image.
    """

    def __init__(self, path: str) -> None:
        """Open nothing yet."""
        self._system, self.path = fsspec.core.url_to_fs(path)
        self._kept: set[str] = set()

    def keep(self, image: Any) -> str:
        """Write a small copy of an image (PIL) unless it is there, and return the image's name."""
        whole = image.convert("RGB")
        name = hashlib.blake2b(repr(whole.size).encode() + whole.tobytes(), digest_size=8).hexdigest()
        if name not in self._kept and not self._system.exists(self._file(name)):
            whole.thumbnail((SIDE, SIDE))
            content = io.BytesIO()
            whole.save(content, "JPEG", quality=85)
            self._system.makedirs(self.path, exist_ok=True)
            self._system.pipe_file(self._file(name), content.getvalue())
        self._kept.add(name)
        return name

    def read(self, name: str) -> bytes | None:
        """Return the small copy of an image, as JPEG; None if there is none, or one that is too large."""
        if not _NAME.fullmatch(name) or not self._system.exists(self._file(name)):
            return None
        content: bytes = self._system.cat_file(self._file(name))
        return content if len(content) <= MAX_BYTES else None

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}.jpg"
