"""Doc strings are whole sentences in the field's words, as far as patterns can show it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("recipe", "refiner_worker", "reward", "experiments", "examples", "scripts", "tests")
FRAGMENT = re.compile(r"(Of|By|As|That|Those|In|With|On|To) ")
TWICE = re.compile(r"\bof\b[^.]*\bof\b[^.]*\bof\b|\bthat\b[^.]*\bthat\b[^.]*\bthat\b")
IDIOM = re.compile(r"\b(betters|bettered|mends?|mended|told from|tells? [^.]* from|likewise|things?)\b", re.IGNORECASE)


def doc_strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each doc string, including doc strings of attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, " ".join(node.value.value.split())


def faults(text: str) -> list[str]:
    """Return what is wrong with the first sentence of a doc string."""
    first = text.split(". ")[0]
    found = ["begins without its noun"] if FRAGMENT.match(text) else []
    found += ["has three 'of' or three 'that' in a sentence"] if TWICE.search(first) else []
    return found + [f"has the word {word[0]!r}" for word in [IDIOM.search(first)] if word]


@pytest.mark.parametrize("folder", FOLDERS)
def test_doc_strings_are_sentences(folder: str) -> None:
    said = [
        f"{file.relative_to(ROOT)}:{line}: {fault}: {text[:80]}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in doc_strings(file.read_text())
        for fault in faults(text)
    ]
    assert not said, "\n".join(said)


def test_faults_are_found() -> None:
    assert faults("Of its last turn.") and faults("Return how many refinements are bettered.")
    assert faults("The rows of the answers of the groups of a step.")
    assert not faults("The parts of the rollout's last turn. Of them, some are empty.")
