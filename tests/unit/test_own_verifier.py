"""The example of a reward function of one's own takes JSON objects and nothing that looks alike."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_verifier" / "verifier.py"
compute_score = runpy.run_path(str(EXAMPLE))["compute_score"]


@pytest.mark.parametrize(
    ("response", "score", "feedback"),
    [
        ('{"name": 1, "age": 2}', 1.0, ""),
        ('```json\n{"name": 1, "age": 2}\n```', 1.0, ""),
        ('{"age": 2}', 0.5, "The keys name are missing."),
        ('"name, age"', -1.0, "This is no JSON object: it is a str"),
        ('["name", "age"]', -1.0, "This is no JSON object: it is a list"),
        ("null", -1.0, "This is no JSON object: it is a NoneType"),
        ("name", -1.0, "This is no JSON object: Expecting value"),
        ("[" * 100_000, -1.0, "This is no JSON object: maximum recursion depth exceeded"),
    ],
)
def test_only_objects_have_keys(response: str, score: float, feedback: str) -> None:
    found = compute_score("json_keys", response, "name,age")
    assert found["score"] == score
    assert found["feedback"].startswith(feedback) and bool(found["feedback"]) == bool(feedback)
