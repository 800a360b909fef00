"""A server of verl's whose answer to a request for several samples has all of them."""

from typing import Any

from verl.workers.rollout.vllm_rollout import vllm_async_server
from verl.workers.rollout.vllm_rollout.utils import extract_prompt_logprobs
from vllm.sampling_params import RequestOutputKind

from refiner_worker.engines import SAMPLES


def extract(output: Any, num_prompt_logprobs: int | None, result_dict: dict[str, Any]) -> None:
    """Do what verl's function of that name does with an engine's output, and add all that was drawn."""
    extract_prompt_logprobs(output=output, num_prompt_logprobs=num_prompt_logprobs, result_dict=result_dict)
    if len(output.outputs) > 1:
        result_dict[SAMPLES] = [list(one.token_ids) for one in output.outputs]


class SamplingServer(vllm_async_server.vLLMHttpServer):
    """verl's vLLM server, which can also be asked for several samples (``n``) by one request.

    Reason: ``generate`` of verl returns the first output alone. vLLM sends the outputs one by one while it streams, and
    all of them at the end.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        vllm_async_server.extract_prompt_logprobs = extract
        super().__init__(*args, **kwargs)

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **request: Any) -> Any:
        """Return verl's ``TokenOutput``; of several samples ``extra_fields`` has all."""
        if sampling_params.get("n", 1) > 1:
            sampling_params["output_kind"] = RequestOutputKind.FINAL_ONLY
        return await super().generate(prompt_ids, sampling_params, **request)
