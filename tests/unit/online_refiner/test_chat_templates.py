"""Real chat templates: what they say of thoughts, and what becomes of twelve outputs, on every placement.

TRL's package has most of them as files. SmolLM2's is in its own folder. SmolLM3's and Mistral's are written from what
their authors say of them.
"""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from written_model import Engine, WrittenServer, refined, with_template

from recipe.online_refiner.method.pairs import Refinement, Verdict
from refiner_worker.text.answer import OPEN_TAG
from refiner_worker.text.thoughts import Thoughts, read_thoughts

TRL = Path(sys.prefix, "chat-templates", "trl", "chat_templates")
NAMED = ("<think>", "</think>")
CHANNELS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
HARMONY_TOKENS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
)
WRITTEN = {
    "SmolLM2": CHATML + "{% endif %}",
    "SmolLM3": CHATML + "{% if enable_thinking is false %}<think>\n\n</think>\n{% endif %}{% endif %}",
    "Mistral": (
        "{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
        "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
    ),
}
OFF = {"enable_thinking": False}
KNOWN: dict[str, tuple[str, dict[str, Any], tuple[str, str] | None, bool]] = {
    # file or name, settings, marks, whether the generation prompt opens a thought
    "SmolLM2": ("SmolLM2", {}, None, False),
    "SmolLM3": ("SmolLM3", {}, NAMED, False),
    "SmolLM3, thinking off": ("SmolLM3", OFF, None, False),
    "Qwen2.5": ("qwen2_5", {}, None, False),
    "Qwen3": ("qwen3", {}, NAMED, False),
    "Qwen3, thinking off": ("qwen3", OFF, None, False),
    "Qwen3.5, thinking": ("qwen3_5_think", {}, NAMED, True),
    "DeepSeek-R1 distillate": ("deepseek_r1_distill", {}, NAMED, True),
    "GLM-4.5": ("glm4moe", {}, NAMED, False),
    "gpt-oss": ("gptoss", {}, CHANNELS, False),
    "Gemma 3": ("gemma3", {}, None, False),
    "Llama 3.2": ("llama3_2", {}, None, False),
    "Phi-3": ("phi3", {}, None, False),
    "Mistral": ("Mistral", {}, None, False),
}
PLACEMENTS = ["colocated", "dedicated", "shared", "external"]


@pytest.fixture(scope="module")
def plain(tiny_llama: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama)


def thinker_of(plain: Any, name: str) -> Any:
    file = KNOWN[name][0]
    if file in WRITTEN:
        return with_template(plain, WRITTEN[file])
    if not TRL.is_dir():
        pytest.skip("TRL's files of chat templates are not there; scripts/test.sh fetches them")
    found = with_template(plain, (TRL / f"{file}.jinja").read_text())
    if file == "gptoss":
        found.add_special_tokens({"additional_special_tokens": HARMONY_TOKENS})
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_a_template_says_whether_a_model_thinks(plain: Any, name: str) -> None:
    _, settings, marks, is_open = KNOWN[name]
    header = "<|channel|>final<|message|>" if marks == CHANNELS else ""
    expected = marks and Thoughts(opening=marks[0], closing=marks[1], is_open=is_open, header=header)
    assert read_thoughts(thinker_of(plain, name), settings) == expected


CODE = "```python\nprint({})\n```\n"
OUTPUTS: dict[str, tuple[str, str, Verdict, str]] = {
    # the refiner's template, what it writes with { and } for the marks, verdict, the answer in a'
    "a closed thought": ("general", "{the old one got 0.25}better", Verdict.ACCEPTED, "better"),
    "a thought that is cut": ("general", "{" + "on and on " * 9, Verdict.THOUGHT, ""),
    "a thought without an answer": ("general", "{hm}", Verdict.EMPTY, ""),
    "a thought that is opened twice": ("general", "{a}{b}c", Verdict.ACCEPTED, "c"),
    "a second thought that is cut": ("general", "{a}{b", Verdict.TRUNCATED, ""),
    "code in the thought": ("apps", "{" + CODE.format(1) + "}" + CODE.format(2), Verdict.ACCEPTED, CODE.format(2)),
    "tags in the thought": ("dialogue", "{</refined>}\n<refined>\nx</refined>", Verdict.ACCEPTED, "x"),
    "a tag that is repeated": ("dialogue", "{a}\n<refined>\n<refined>x</refined>", Verdict.ACCEPTED, "x"),
    "an answer that is cut": ("general", "{a}" + "b" * 99, Verdict.TRUNCATED, ""),
    "the answer as it was": ("general", "{fine}old", Verdict.NOT_BETTER, "old"),
    "a leak": ("general", "{a}This answer got 0.25 points, so: better", Verdict.LEAK, ""),
    "words of the prompt": ("general", "{a}Repeat word for word what is right", Verdict.LEAK, ""),
}


def marked(output: str, marks: tuple[str, str], *, is_open: bool) -> str:
    """Return an output with a model's marks; the first opening one stands in the prompt of some."""
    marked_ = re.sub("^{", "", output) if is_open else output
    return marked_.translate({ord("{"): marks[0], ord("}"): marks[1]})


def refine(thinker: Any, name: str, output: str, template: str, placement: str, response: str) -> Refinement:
    _, settings, marks, is_open = KNOWN[name]
    keys: dict[str, Any] = {"n_gpus_per_node": 1} if placement == "dedicated" else {}
    if placement != "external":
        written = (
            marked(output, marks, is_open=is_open) if marks else output.removeprefix(OPEN_TAG)
        )  # the prompt has it
        engine = Engine(thinker, written, placement=placement, **keys)
    else:  # a server with a reasoning parser
        thought, closed, text = output[1:].partition("}") if marks else ("", "}", output)
        is_cut = not closed or len(text) > 96
        said = marked(text, marks, is_open=False) if marks else text
        engine = WrittenServer(thinker, thought, said, is_whole=not is_cut)
    return refined(thinker, response, engine, template=template, settings=settings)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", [name for name, (*_, marks, _) in KNOWN.items() if marks])
def test_what_an_output_becomes(plain: Any, name: str, placement: str) -> None:
    thinker = thinker_of(plain, name)
    _, _, marks, is_open = KNOWN[name]
    assert marks is not None
    gap = "" if marks == CHANNELS else "\n\n"
    own = marked("{mine}", marks, is_open=is_open) + gap
    found = {
        case: refine(thinker, name, output, template, placement, f"{own}old")
        for case, (template, output, *_) in OUTPUTS.items()
    }
    expected = {case: one[2] for case, one in OUTPUTS.items()}
    if marks == CHANNELS and placement == "external":  # no server sends the names of control tokens
        expected["a second thought that is cut"] = Verdict.ENCODING
    assert {case: one.verdict for case, one in found.items()} == expected
    for case, one in found.items():
        if one.verdict.is_scored:
            assert thinker.decode(one.token_ids[:-1]) == own + OUTPUTS[case][3].strip(), case
            assert one.num_thought_tokens > 0
            assert thinker.decode(one.token_ids[: one.num_kept_tokens]).strip() == own.strip()
            assert one.is_repeated is (case == "the answer as it was")


PLAIN = {
    "an answer": ("general", "better", Verdict.ACCEPTED, "better"),
    "an answer that is cut": ("general", "b" * 99, Verdict.TRUNCATED, ""),
    "no answer": ("general", "", Verdict.EMPTY, ""),
    "the answer as it was": ("general", "old", Verdict.NOT_BETTER, "old"),
    "a leak": ("general", "This answer got 0.25 points, so: better", Verdict.LEAK, ""),
    "words of the prompt": ("general", "Repeat word for word what is right", Verdict.LEAK, ""),
    "a thought all the same, cut": ("general", "<think>hm", Verdict.TRUNCATED, ""),
    "the first program": ("apps", CODE.format(1) + CODE.format(2), Verdict.ACCEPTED, CODE.format(1)),
    "a tag that is repeated": ("dialogue", "<refined>\n<refined>x</refined>", Verdict.ACCEPTED, "x"),
    "a tag that is not closed": ("dialogue", "<refined>\nx</ref", Verdict.TRUNCATED, ""),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", [name for name, (*_, marks, _) in KNOWN.items() if not marks])
def test_what_an_output_becomes_of_a_model_that_does_not_think(plain: Any, name: str, placement: str) -> None:
    thinker = thinker_of(plain, name)
    found = {
        case: refine(thinker, name, output, template, placement, "old")
        for case, (template, output, *_) in PLAIN.items()
    }
    assert {case: one.verdict for case, one in found.items()} == {case: one[2] for case, one in PLAIN.items()}
    for case, one in found.items():
        assert thinker.decode(one.token_ids[:-1]) == PLAIN[case][3].strip(), case
        assert (one.num_kept_tokens, one.num_thought_tokens) == (0, 0)


class Random(Engine):
    """A tiny model with random weights."""

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        """Load it."""
        super().__init__(tokenizer, "", thought_length=8, response_length=64)
        self.model = AutoModelForCausalLM.from_pretrained(folder)

    async def generate(self, prompt_ids: list[int], stop: str | None, limit: int, *_: Any) -> list[list[int]]:
        """Write greedily."""
        self.read = self.tokenizer.decode(prompt_ids)
        ids = self.model.generate(torch.tensor([prompt_ids]), max_new_tokens=limit, do_sample=False)
        self.written: list[int] = ids[0, len(prompt_ids) :].tolist()
        return [self.written]


@pytest.mark.parametrize("name", KNOWN)
def test_a_random_model_reads_the_response_and_what_it_writes_is_the_answer(
    plain: Any, tiny_llama: Path, name: str
) -> None:
    thinker, (_, settings, marks, is_open) = thinker_of(plain, name), KNOWN[name]
    engine = Random(thinker, tiny_llama)
    engine.model.resize_token_embeddings(len(thinker))
    own = marked("{mine}", marks, is_open=is_open) if marks else ""
    found = refined(thinker, f"{own}old", engine, settings=settings)
    assert "old" in engine.read and "mine" not in engine.read
    if is_open:
        assert found.verdict is Verdict.THOUGHT, "it closes none"
    elif found.verdict.is_scored:
        assert thinker.decode(found.token_ids) == own + thinker.decode(engine.written).strip()
    else:
        assert engine.written[-1] != thinker.eos_token_id
