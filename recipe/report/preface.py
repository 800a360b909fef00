"""What opens a report: Markdown of the reader's own, with tables and images."""

import base64
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup


def html(path: Path) -> Markup:
    """Return a file of Markdown as HTML, with the PNG images that it names beside it; HTML in it is shown as text.

    Raises:
        OSError: If the file or one of its images cannot be read.
    """
    parser = MarkdownIt("js-default", {"html": False})
    tokens = parser.parse(path.read_text(encoding="utf-8"))
    for image in (child for token in tokens for child in token.children or () if child.type == "image"):
        content = base64.b64encode((path.parent / str(image.attrs["src"])).read_bytes()).decode()
        image.attrs["src"] = f"data:image/png;base64,{content}"
    return Markup(parser.renderer.render(tokens, parser.options, {}))
