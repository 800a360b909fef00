"""What experiments/score_in_place.py says of a run's accepted pairs."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[3]


def test_the_table_is_the_difference_to_the_bare_prompt(tiny_llama: Path, tmp_path: Path) -> None:
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
    command = [sys.executable, "-m", "experiments.score_in_place", str(tmp_path), "--templates", "answer"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["pairs"], found["answer"]["of"]) == (2, 1), "one takes a token out"
    assert found["answer"]["taken_out"] == found["answer"]["departure"] != 0, "its only token"
