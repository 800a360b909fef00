"""What a reader of README and docs follows is there."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from packaging.version import Version

from recipe.online_refiner import __version__

REPOSITORY = Path(__file__).parents[2]
PLACES = ["*.md", "examples/**/*.md", "experiments/**/*.md", "findings/*.md"]
PAGES = sorted(page for place in PLACES for page in REPOSITORY.glob(place))
"""The pages that the docs site (``tests/e2e/test_docs_site.py``) does not have."""


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
COMMANDS = re.findall(r"^ *online-refiner train (.*)$", CHANGED.replace("\\\n", " "), flags=re.MULTILINE)
assert COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_compose(command: str) -> None:
    overrides = [word for word in shlex.split(command, comments=True) if "=" in word and "<" not in word]
    with initialize_config_module("recipe.online_refiner.config", version_base=None):
        assert compose("online_refiner", overrides=overrides).actor_rollout_ref


def test_one_release_is_named() -> None:
    newest = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0]
    cited = re.findall(r"^version: (\S+)$", (REPOSITORY / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited == [newest] == [__version__]


def test_the_readme_names_this_release_and_docs_no_later_one() -> None:
    pages = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md")]
    named = [re.findall(r"\brelease (\d[\w.]*\w)", page.read_text()) for page in pages]
    assert named[0] == [__version__]
    assert all(Version(one) <= Version(__version__) for names in named for one in names)


def test_the_readme_installs_by_one_line() -> None:
    """Its requirements exclude nothing that verl asks for: ``test_package.py``."""
    text = (REPOSITORY / "README.md").read_text()
    assert re.findall(r"^ *(pip install [^#]*?) *(?:#.*)?$", text, flags=re.MULTILINE) == ["pip install ."]
