"""What experiments/score_in_place.py says of a run's accepted pairs."""

import json
from pathlib import Path

import pytest
import yaml

from experiments import score_in_place


def test_the_table_is_the_difference_to_the_bare_prompt(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "refiner": {"model_path": str(tiny_llama), "response_length": 32},
        "data": {"apply_chat_template_kwargs": {}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    chat, another = ([{"role": "user", "content": f"Say {what}."}] for what in ("abc", "ab"))
    pairs = [("abx", "abc", "accepted", chat), ("ab", "ab", "accepted", another), ("no", "", "empty", chat)]
    lines = [
        {"prompt": prompt, "response": response, "refined": refined, "verdict": verdict, "step": 1, "key": f"u_{n}_0"}
        for n, (response, refined, verdict, prompt) in enumerate(pairs)
    ]
    (tmp_path / "refinements").mkdir()
    (tmp_path / "refinements" / "000001.w0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("sys.argv", ["score_in_place", str(tmp_path), "--templates", "answer"])
    score_in_place.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["pairs"], found["answer"]["of"]) == (2, 1), "one takes a token out"
    assert found["answer"]["taken_out"] == found["answer"]["departure"] != 0, "its only token"
