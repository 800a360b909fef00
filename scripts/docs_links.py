"""A hook of mkdocs: links that leave ``docs/`` lead to the repository, and must exist there."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return a page whose links to other parts of the repository are links to its host.

    Raises:
        FileNotFoundError: A link leads nowhere.
    """
    folder = Path(page.file.abs_src_path).parent
    host = (config.repo_url or "").rstrip("/") + "/blob/main/"

    def to_host(match: re.Match[str]) -> str:
        path, _, fragment = match[1].partition("#")
        target = (folder / path).resolve()
        if "://" in path or not path or target.is_relative_to(config.docs_dir):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path}: {match[1]}")
        raw = "?raw=true" if target.suffix == ".png" else ""
        return f"]({host}{target.relative_to(ROOT)}{raw}{'#' + fragment if fragment else ''})"

    return re.sub(r"\]\(([^)\s]+)\)", to_host, markdown)
