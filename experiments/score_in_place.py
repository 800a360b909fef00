"""Can this reference model teach in place? To be asked before training with `constraint.target=in_place`.

    python -m experiments.score_in_place RUN_DIR [--model DIR] [--templates answer MINE.jinja] [--max-pairs 64]

Reads the accepted pairs of a run (its records; any run that refines, the quickstart's too) and lets the reference model
score the responses' own tokens given each template, which shows it the better answer, and given the bare prompt.
Prints a Markdown table of the differences, in nats a token: tokens that the refinement keeps should become likelier,
those that it takes out less likely, the first one most of all. Ends with the same as a line of JSON. Needs no vLLM: the
model runs in Hugging Face.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.online_refiner.method.eq6 import NONE, diff
from recipe.runs.files import Records
from refiner_worker.config import TEMPLATES, template_path
from refiner_worker.prompts import InPlacePrompt

COLUMNS = ("kept", "taken_out", "departure")


@torch.no_grad()
def log_probs(model: Any, prompt_ids: list[int], token_ids: list[int]) -> torch.Tensor:
    """Return the log-probs of tokens given a prompt, (number of tokens,)."""
    ids = torch.tensor([prompt_ids + token_ids], device=model.device)
    table = model(ids, logits_to_keep=len(token_ids) + 1).logits[0, :-1].float().log_softmax(-1)
    return table.gather(-1, ids[0, len(prompt_ids) :, None])[:, 0].cpu()


def differences(
    model: Any, tokenizer: Any, prompt: InPlacePrompt, pair: dict[str, Any], settings: dict[str, Any]
) -> dict[str, list[float]] | None:
    """Return how a template changes the log-probs of a response's tokens, by whether the refinement keeps a token."""
    chat = pair["prompt"]
    own = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False, **settings)
    response, refined = (tokenizer.encode(pair[name], add_special_tokens=False) for name in ("response", "refined"))
    shown = prompt.encode(chat, {"refined": pair["refined"]})
    if not response or shown is None:
        return None
    change = (log_probs(model, shown, response) - log_probs(model, own, response)).tolist()
    is_out = [place != NONE for place in diff(response, refined)]
    found: dict[str, list[float]] = {"kept": [], "taken_out": [], "departure": []}
    for value, out in zip(change, is_out, strict=True):
        found["taken_out" if out else "kept"].append(value)
    if any(is_out):
        found["departure"].append(change[is_out.index(True)])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--model", help="the reference model; default: the run's")
    parser.add_argument("--templates", nargs="+", default=["answer"], help="as constraint.in_place_template")
    parser.add_argument("--max-pairs", type=int, default=64)
    arguments = parser.parse_args()
    config = OmegaConf.load(arguments.run_dir / "config.yaml")
    folder = arguments.model or config.refiner.model_path
    records = map(json.loads, Records(f"{arguments.run_dir}/refinements").lines())
    pairs = [row for row in records if row["verdict"] == "accepted"][: arguments.max_pairs]
    if not pairs:
        raise SystemExit(f"{arguments.run_dir} has no accepted refinement: nothing can be said")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    model = model.to(device).eval()
    print(f"{len(pairs)} accepted pairs\n")
    print("| template | kept | taken out | first taken out | less likely in |\n|---|---|---|---|---|")
    result: dict[str, Any] = {"pairs": len(pairs)}
    for template in arguments.templates:
        path = template_path("--templates", template, TEMPLATES / "in_place")
        settings, limit = {**(config.data.apply_chat_template_kwargs or {})}, config.refiner.response_length
        prompt = InPlacePrompt(path, tokenizer, settings, limit)
        found = [differences(model, tokenizer, prompt, pair, settings) for pair in pairs]
        values = {name: [one for each in found if each for one in each[name]] for name in COLUMNS}
        means = {name: statistics.mean(ones) if ones else float("nan") for name, ones in values.items()}
        less = sum(one < 0 for one in values["departure"])
        cells = " | ".join(f"{means[name]:+.2f}" for name in COLUMNS)
        print(f"| `{template}` | {cells} | {less} of {len(values['departure'])} |", flush=True)
        result[template] = {**means, "less_likely": less, "of": len(values["departure"])}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
