"""A reward model trained from preference pairs ranks pairs that it has not seen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

REPOSITORY = Path(__file__).parents[3]


def train(model: Path, pairs: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/train_reward_model.py", "--model", str(model), "--pairs", str(pairs)]
    command += ["--output", str(output), "--num-held-out", "16", *options]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


@pytest.mark.e2e
@pytest.mark.slow
def test_it_learns_to_rank_and_trains_only_the_layers_it_is_told_to(tiny_llama: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    dialogue = "\n\nHuman: Say something about {n}.\n\nAssistant: {answer}"
    rows = [
        {side: dialogue.format(n=n, answer=answer) for side, answer in (("chosen", "abcd"), ("rejected", "ABCD"))}
        for n in range(64)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = train(tiny_llama, pairs, tmp_path / "model", "--num-trained-layers", "1", "--learning-rate", "1e-2")
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["num_pairs"], report["num_held_out"]) == (48, 16)
    assert report["accuracy"] == 1.0

    trained = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").state_dict()
    before = AutoModelForSequenceClassification.from_pretrained(tiny_llama, num_labels=1).state_dict()
    name = "model.layers.{}.self_attn.q_proj.weight"
    assert torch.equal(trained[name.format(0)], before[name.format(0)])
    assert not torch.equal(trained[name.format(1)], before[name.format(1)])

    refused = train(tiny_llama, pairs, tmp_path / "none", "--max-length", "8")
    assert refused.returncode == 2 and "only 0 usable pairs; lower --num-held-out" in refused.stderr
