"""Links, keys and commands of README and docs are real."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml

from recipe.online_refiner import configuration
from recipe.online_refiner.rules import (
    RULES,
    of_blocks,
    of_files,
    of_machine,
    of_megatron,
    of_memory,
    of_sizes,
    of_trainers,
    of_verl,
)

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("examples/**/*.md")])
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
BLOCKS = yaml.safe_load((REPOSITORY / "recipe/online_refiner/config/refinement/online.yaml").read_text())
KEY = re.compile(r"\b(refiner|constraint|measure|records|sizing)\.((?!(?:md|py|json)\b)[a-z_]+)\b")


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return text.strip().replace(" ", "-")


def headings(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if fragment:
            assert fragment in headings(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_exist(page: Path) -> None:
    for block, key in KEY.findall(page.read_text()):
        assert key in BLOCKS[block], f"{page.name}: {block}.{key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_files_and_modules_that_exist(page: Path) -> None:
    for block in re.findall(r"^```(?:bash|shell|sh)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for word in words:
                if word.startswith("scripts/"):
                    assert (REPOSITORY / word).exists(), f"{page.name}: {line}"
            if "-m" in words[:-1]:
                module = words[words.index("-m") + 1]
                if module.split(".")[0] in ("recipe", "refiner_worker", "reward"):
                    path = REPOSITORY / module.replace(".", "/")
                    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page.name}: {line}"


def test_defaults_and_page_are_those_of_the_fields() -> None:
    command = "run python -m recipe.online_refiner.configuration"
    assert configuration.DEFAULTS.read_text() == configuration.defaults(), command
    assert configuration.PAGE.read_text() == configuration.page(), command
    for name, block in configuration.BLOCKS.items():
        fields = list(configuration.fields_of(block))
        assert [key for key, _, _ in fields] == list(BLOCKS[name])
        assert all(meaning for _, _, meaning in fields), "each field has its sentence"
    assert all(one.__doc__ for kind in RULES.values() for one in kind), "each rule has one"


def test_every_rule_is_in_the_list() -> None:
    listed = [rule for kind in RULES.values() for rule in kind]
    modules = (of_blocks, of_verl, of_trainers, of_megatron, of_machine, of_files, of_memory, of_sizes)
    there = {
        function
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }
    assert len(listed) == len(set(listed)) and set(listed) == there


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text()
    for page in REPOSITORY.glob("docs/*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
