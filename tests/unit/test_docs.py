"""What a reader of README and docs follows is there."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(page for place in ("*.md", "examples/**/*.md", "experiments/**/*.md") for page in REPOSITORY.glob(place))
"""Those that the docs site (``tests/e2e/test_docs_site.py``) does not have."""
MAIN = "recipe.online_refiner.main"


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.replace("`", "").lower()).strip().replace(" ", "-") for one in found}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\[[^\]\[]*\]\(([^)\s]+)\)", page.read_text()):
            path, _, fragment = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert "://" in target or file.exists(), f"{page.name}: {target}"
            assert "://" in target or not fragment or fragment in headings(file), f"{page.name}: {target}"


CHANGED = re.sub(r"^ *-.*\n|^ *[+] ", "", (REPOSITORY / "README.md").read_text(), flags=re.MULTILINE)
"""The README with its diffs applied."""
COMMANDS = re.findall(rf"^ *python -m {MAIN} (.*)$", CHANGED.replace("\\\n", " "), flags=re.MULTILINE)
assert COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_compose(command: str) -> None:
    overrides = [word for word in shlex.split(command, comments=True) if "=" in word and "<" not in word]
    with initialize_config_module("recipe.online_refiner.config", version_base=None):
        assert compose("online_refiner", overrides=overrides).actor_rollout_ref
