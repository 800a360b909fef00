"""Update a vLLM-CPU engine through verl's bucketed transfer and compare its log-probs with Hugging Face's.

Run by test_weight_sync.py in a process of its own: ``python weight_sync_probe.py MODEL_FOLDER``. One line of the
output is a JSON object with the largest absolute difference of prompt log-probs (nats) at each stage.
"""

import asyncio
import json
import os
import sys
import threading
from typing import Any

import torch
import verl  # noqa: F401  (loads the CPU platform)
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from vllm import LLM, SamplingParams

from recipe.cpu_platform.patches import of_this_cluster
from recipe.cpu_platform.vllm_extension import CpuWorkerExtension

TEXT = (
    "The refiner reads a response, names what is wrong with it, and writes a better one. A rule then decides whether "
    "the new response may pull on the policy: it must be rewarded more than the old one. "
)


class ProbeExtension(CpuWorkerExtension):
    """The extension under test, with a second update that leaves out the LM head."""

    def update_without_repack(self, **arguments: Any) -> None:
        """Update the weights as if no one had thought of the tied head."""
        self._repack_lm_head = lambda: None  # type: ignore[method-assign]
        try:
            self.update_weights_from_ipc(**arguments)
        finally:
            del self._repack_lm_head


def perturb(model: PreTrainedModel, seed: int) -> None:
    """Add noise with a tenth of each matrix's standard deviation; for norm vectors, a tenth of their mean."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter.std() if parameter.ndim > 1 else parameter.abs().mean()
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1 * scale.item())


def send(llm: LLM, model: PreTrainedModel, method: str) -> None:
    """Send all weights as verl's ``ServerAdapter.update_weights`` does: the receiver runs inside the vLLM worker."""
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            llm.collective_rpc(method, kwargs={"use_shm": True})
        except BaseException as error:  # handed to the main thread, which raises it
            errors.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    handle = of_this_cluster(f"ipc:///tmp/rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock")
    # The embedding of SmolLM2 takes 113 MB; the other weights then come in several buckets.
    sender = BucketedWeightSender(zmq_handle=handle, bucket_size_mb=128, use_shm=True)
    asyncio.run(sender.async_send_weights(iter(model.state_dict().items())))
    receiver.join()
    if errors:
        raise errors[0]


@torch.no_grad()
def compare_prompt(llm: LLM, model: PreTrainedModel, ids: list[int]) -> float:
    """Return max |log p_vLLM - log p_HF| over the tokens of the prompt."""
    output = llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)[0]
    vllm = torch.tensor(
        [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]
    )
    logits = model(torch.tensor([ids])).logits[0, :-1]
    hugging_face = logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    return (vllm - hugging_face).abs().max().item()


def main() -> None:
    """Load, update twice, update once without the LM head; print the differences."""
    folder = sys.argv[1]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    ids = AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    llm = LLM(
        model=folder,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=4,
        kv_cache_memory_bytes=1 << 28,
        worker_extension_cls="weight_sync_probe.ProbeExtension",
        distributed_executor_backend="uni",
    )
    result: dict[str, float] = {"num_tokens": len(ids), "loaded": compare_prompt(llm, model, ids)}
    perturb(model, seed=1)
    result["before_update"] = compare_prompt(llm, model, ids)
    send(llm, model, "update_weights_from_ipc")
    result["first_update"] = compare_prompt(llm, model, ids)
    perturb(model, seed=2)
    send(llm, model, "update_weights_from_ipc")
    result["second_update"] = compare_prompt(llm, model, ids)
    perturb(model, seed=3)
    send(llm, model, "update_without_repack")
    result["without_repack"] = compare_prompt(llm, model, ids)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
