"""What is written from the classes of the config is up to date, and has every class and key."""

import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from recipe.online_refiner.method.modes import CONSTRAINTS

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_configuration.py"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


def test_the_files_are_up_to_date(script: dict) -> None:
    for file, write in (("DEFAULTS", "defaults"), ("PAGE", "page"), ("METRICS_PAGE", "metrics_page")):
        text = script[file].read_text(encoding="utf-8")
        assert text == script[write](), "run `python scripts/write_configuration.py`"


@pytest.mark.parametrize(("mode", "target"), CONSTRAINTS)
def test_every_constraint_is_there(script: dict, mode: str, target: str) -> None:
    page, defaults, one = script["page"](), script["defaults"](), CONSTRAINTS[mode, target]
    assert f"`mode={mode}`" in page
    if one.refines:
        assert " ".join(one.__doc__.split()) in page
        for field in fields(one):
            assert f"`constraint.{field.name}`" in page
            assert f"\n  {field.name}: " in defaults
