"""Each finding is in the table, and asks for versions that the locks around it allow."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
FINDINGS = sorted(set((REPOSITORY / "findings").glob("*.sh")) - {REPOSITORY / "findings" / "with_packages.sh"})
LOCKED = {
    requirement.name: str(requirement.specifier).removeprefix("==")
    for name in ("cpu.txt", "puzzles.txt")
    for line in re.findall(r"^[a-zA-Z].*", (REPOSITORY / "requirements" / name).read_text(), flags=re.MULTILINE)
    if (requirement := Requirement(line.rstrip(" \\"))).marker is None
    or requirement.marker.evaluate({"python_version": "3.11", "python_full_version": "3.11.0"})
}
"""What ``with_packages.sh`` holds Python 3.11 to, by package."""


def test_the_table_has_all() -> None:
    table = (REPOSITORY / "findings" / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[\w+\]\((\w+\.sh)\)", table, flags=re.MULTILINE)) == [one.name for one in FINDINGS]


@pytest.mark.parametrize("script", FINDINGS, ids=lambda path: path.stem)
def test_versions_are_not_those_that_a_lock_excludes(script: Path) -> None:
    asked = [Requirement(pin) for pin in re.findall(r"(?<![\w-])[a-z][\w-]*==[\w.]+", script.read_text())]
    assert asked
    assert [str(one) for one in asked if one.name in LOCKED and LOCKED[one.name] not in one.specifier] == []
