"""Models that think: what their chat templates say of it, and what of an output becomes a'."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from recipe.online_refiner.constraints import read_constraint
from recipe.online_refiner.constraints.base import Turn
from recipe.online_refiner.constraints.eq6 import NONE
from recipe.online_refiner.pairs import Refinement, Rollout, Verdict
from recipe.online_refiner.refine import Refiner
from refiner_worker.config import TEMPLATES, read_refiner
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.thoughts import Thoughts, read_thoughts
from refiner_worker.turn_end import TurnEnd

TURN = "<|im_start|>{{ m.role }}\n%s{{ m.content }}<|im_end|>\n"
CHATML = (
    "{%% for m in messages %%}"
    + TURN
    + "{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant\n%s{%% endif %%}"
)
THINK = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
NOT_NOW = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
HIDES = (
    "{% for m in messages %}{% if m.role == 'user' %}<User>{{ m.content }}{% else %}<Assistant>"
    "{{ m.content.split('</think>')[-1] }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<Assistant>%s{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
NAMED = ("<think>", "</think>")
CHANNELS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
KNOWN: dict[str, tuple[str, dict[str, Any], tuple[str, str] | None, bool]] = {
    # Written from what their authors say of them: marks, what the generation prompt ends with, what a reply keeps.
    "SmolLM2, Qwen2.5": (CHATML % ("", ""), {}, None, False),
    "Qwen3": (CHATML % (THINK, NOT_NOW), {}, NAMED, False),
    "Qwen3, thinking off": (CHATML % (THINK, NOT_NOW), {"enable_thinking": False}, None, False),
    "SmolLM3, which shows no thought": (CHATML % ("", NOT_NOW), {}, NAMED, False),
    "SmolLM3, thinking off": (CHATML % ("", NOT_NOW), {"enable_thinking": False}, None, False),
    "an R1 distillate": (HIDES.replace("%s", "<think>\n"), {}, NAMED, True),
    "an R1 distillate, first edition": (HIDES.replace("%s", ""), {}, NAMED, False),
    "gpt-oss": (HARMONY, {}, CHANNELS, False),
    "Mistral, alternating roles": (ALTERNATING, {}, None, False),
}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama)


def with_template(tokenizer: Any, template: str) -> Any:
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


@pytest.mark.parametrize("name", KNOWN)
def test_a_chat_template_says_whether_a_model_thinks(tokenizer: Any, name: str) -> None:
    template, settings, marks, is_open = KNOWN[name]
    found = read_thoughts(with_template(tokenizer, template), settings)
    header = "<|channel|>final<|message|>" if marks == CHANNELS else ""
    assert found == (marks and Thoughts(opening=marks[0], closing=marks[1], is_open=is_open, header=header))


def test_a_template_as_it_is_released(tokenizer: Any) -> None:
    """MiniCPM-V 4.5's, in vLLM's package: it thinks where it is told to, and the prompt then opens the thought."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    file = Path(spec.origin).parent / "transformers_utils" / "chat_templates" / "template_minicpmv45.jinja"
    thinker = with_template(tokenizer, file.read_text())
    assert read_thoughts(thinker, {"enable_thinking": True}) == Thoughts(*NAMED, is_open=True)
    assert read_thoughts(thinker) is None


def test_the_marks_may_be_told(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, KNOWN["Qwen3"][0])
    assert read_thoughts(thinker, {}, False) is None
    plain = with_template(tokenizer, KNOWN["SmolLM2, Qwen2.5"][0])
    assert read_thoughts(plain, {}, ["[THINK]", "[/THINK]"]) == Thoughts("[THINK]", "[/THINK]", is_open=False)


class Engine:
    """A model that writes a text, whatever it reads, and goes on with it behind what of it is in its prompt."""

    def __init__(self, tokenizer: Any, text: str, **keys: Any) -> None:
        """Write nothing yet."""
        self.tokenizer, self.ids = tokenizer, [*tokenizer.encode(text), tokenizer.eos_token_id]
        values = {"model_path": "m", "response_length": 64, "thought_length": 48, **keys}
        self.config = read_refiner(values)
        self.first: list[int] | None = None
        self.asked: list[tuple[str | None, int]] = []
        self.scored: list[list[int]] = []

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for nothing."""
        yield

    async def log_probs(self, prompt_ids: list[int], response_ids: list[int]) -> list[float]:
        """Score."""
        self.scored.append(prompt_ids)
        return [-1.0] * len(response_ids)

    async def generate(
        self, prompt_ids: list[int], stop: str | None, limit: int, stop_ids: Sequence[int] = ()
    ) -> list[int]:
        """Write up to what ends it."""
        self.first = self.first or prompt_ids
        self.asked.append((stop, limit))
        written = prompt_ids[len(self.first) :]
        place = next(n for n in range(len(written), -1, -1) if self.ids[:n] == written[:n])
        ids: list[int] = []
        for token in self.ids[place : place + limit]:
            ids.append(token)
            if token in (*stop_ids, self.tokenizer.eos_token_id) or (stop and stop in self.tokenizer.decode(ids)):
                break
        return ids


def refined(tokenizer: Any, response: str, engine: Engine, *, template: str = "general", **more: Any) -> Refinement:
    """Refine one response, which has the reward 0.25 and an end; a' gets 0.5."""
    seen: list[list[int]] = []

    async def score(rollout: Rollout, ids: list[int]) -> float:
        seen.append(ids)
        return 0.5

    thoughts = read_thoughts(tokenizer)
    ids = [*tokenizer.encode(response), tokenizer.eos_token_id]
    messages = [{"role": "user", "content": "q"}]
    refiner = Refiner(
        config=engine.config,
        client=engine,  # type: ignore[arg-type]
        prompt=RefinerPrompt(TEMPLATES / f"{template}.jinja", tokenizer, {}, {}, thoughts),
        turn_end=TurnEnd(stops=frozenset({tokenizer.eos_token_id}), written=tokenizer.eos_token_id),
        score=score,
        max_model_len=2048,
        max_response_tokens=128,
        **more,
    )
    one = Rollout(key="u_0_0", messages=messages, prompt_ids=[1], response_ids=ids, reward=0.25, request={})
    (found,) = asyncio.run(refiner.refine_group([one]))
    assert not seen or seen == [found.token_ids]
    return found


OPEN, CLOSED = KNOWN["an R1 distillate"][0], KNOWN["Qwen3"][0]
PROGRAM = "```python\nprint({})\n```\n"
OWN = "mine</think>\n\n"
OUTPUTS: dict[str, tuple[str, str, Verdict, str]] = {
    # template, what the refiner writes, verdict, answer behind the response's own thought
    "a closed thought": ("general", "the old one got 0.25</think>\n\nbetter", Verdict.ACCEPTED, "better"),
    "a thought that is cut": ("general", "on and on " * 9, Verdict.THOUGHT, ""),
    "a thought that ends without an answer": ("general", "hm</think>\n\n", Verdict.EMPTY, ""),
    "code in the thought": (
        "apps",
        PROGRAM.format(1) + "</think>\n" + PROGRAM.format(2),
        Verdict.ACCEPTED,
        PROGRAM.format(2),
    ),
    "white space that tags strip": ("dialogue", "a</think>\n<refined>better</refined>", Verdict.ACCEPTED, "better"),
    "the answer as it was, in tags": ("dialogue", "a</think>\n<refined>\nold</refined>", Verdict.NOT_BETTER, "old"),
    "tags in the thought": ("dialogue", "</refined></think>\n<refined>\nx</refined>", Verdict.ACCEPTED, "x"),
    "two marks": ("general", "a</think>b</think>c", Verdict.ACCEPTED, "c"),
    "a second thought that is not closed": ("general", "a</think><think>b", Verdict.TRUNCATED, ""),
    "an answer that is cut": ("general", "a</think>" + "b" * 70, Verdict.TRUNCATED, ""),
    "the answer as it was": ("general", "fine</think>\n\nold", Verdict.NOT_BETTER, "old"),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("is_open", [True, False])
def test_what_an_output_becomes(tokenizer: Any, name: str, is_open: bool) -> None:
    template, output, verdict, answer = OUTPUTS[name]
    thinker, begin = with_template(tokenizer, OPEN if is_open else CLOSED), "" if is_open else "<think>"
    found = refined(thinker, f"{begin}{OWN}old", Engine(thinker, begin + output), template=template)
    assert found.verdict is verdict
    assert found.num_generated_tokens >= found.num_thought_tokens
    assert found.num_generated_tokens > 0
    if verdict.is_scored:
        thought = len(thinker.encode(f"{begin}mine</think>"))
        before, mark, behind = thinker.decode(found.token_ids[:-1]).partition("</think>")
        assert (before, mark, behind) == (f"{begin}mine", "</think>", f"\n\n{answer.rstrip()}"), "its form is a's"
        assert found.num_kept_tokens == thought
        assert found.num_thought_tokens == len(thinker.encode((begin + output).rpartition("</think>")[0] + "</think>"))
        assert found.is_repeated is name.startswith("the answer as it was")


def test_a_model_that_does_not_think_this_time(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    found = refined(thinker, "old", Engine(thinker, "better"))
    assert (found.verdict, thinker.decode(found.token_ids[:-1])) == (Verdict.ACCEPTED, "better")
    assert (found.num_kept_tokens, found.num_thought_tokens) == (0, 0)


def test_a_response_that_ends_in_its_thought_is_not_refined(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    engine = Engine(thinker, "better")
    assert refined(thinker, "<think>on and on", engine).verdict is Verdict.NO_ANSWER
    assert not engine.asked


def test_a_thought_has_a_length_of_its_own(tokenizer: Any) -> None:
    for template, begin in ((OPEN, ""), (CLOSED, "<think>")):
        thinker = with_template(tokenizer, template)
        engine = Engine(thinker, f"{begin}{'a' * 30}</think>better", thought_length=16)
        assert refined(thinker, f"{begin}{OWN}old", engine).verdict is Verdict.THOUGHT


def test_an_answer_in_its_channel_without_a_thought(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, HARMONY)
    thinker.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]})
    final, thought = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>hm" + CHANNELS[1]
    for response in (f"{final}old", f"{thought}old"):
        for output in (f"{final}better", f"{thought}better"):
            found = refined(thinker, response, Engine(thinker, output))
            assert found.verdict is Verdict.ACCEPTED
            assert thinker.decode(found.token_ids[:-1]) == response.replace("old", "better")
            assert "old" in thinker.decode(found.prompt_ids) and "final" not in thinker.decode(found.prompt_ids)


def test_earlier_replies_are_shown_without_their_thoughts(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    prompt = RefinerPrompt(TEMPLATES / "general.jinja", thinker, thoughts=read_thoughts(thinker))
    replies = ["<think>hm</think>\n\nfirst", "second"]
    chat = [{"role": "assistant", "content": one} for one in replies]
    question = {"role": "user", "content": "what does <think>x</think> mean?"}
    shown = prompt.content([question, *chat, question], "old", 0.5)
    assert "assistant: first\nassistant: second\nuser: what does <think>x</think> mean?" in shown


def test_a_prompt_may_speak_of_marks_where_nothing_begins_a_reply(tokenizer: Any) -> None:
    """Such a template ends a chat, and not a prompt, with its end of text: neither begins with the other."""
    template = "{{ messages[0]['content'] }} <think> </think>{% if add_generation_prompt %}!{% else %}.{% endif %}"
    thinker = with_template(tokenizer, template)
    assert read_thoughts(thinker, {}, ["<think>", "</think>"]) == Thoughts(*NAMED, is_open=False)


def test_in_place_a_teacher_reads_the_answer_alone(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    constraint = read_constraint({"mode": "penalty", "target": "in_place"})
    engine = Engine(thinker, "<think>hm</think>\n\nbetter")
    refined(thinker, f"<think>{OWN}old", engine, companion=constraint.companion(thinker, {}, 64))
    (read,) = engine.scored
    assert "better" in thinker.decode(read) and "mine" not in thinker.decode(read)


def test_channels_end_at_a_token_that_no_text_shows(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, HARMONY)
    thinker.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]})
    thought, final = "<|channel|>analysis<|message|>{}", CHANNELS[1]
    engine = Engine(thinker, thought.format("it got 0.25") + final + "better")
    found = refined(thinker, thought.format("mine") + final + "old", engine)
    assert found.verdict is Verdict.ACCEPTED
    assert thinker.decode(found.token_ids[:-1]) == thought.format("mine") + final + "better"
    assert engine.asked == [(None, 48), (None, 64 - found.num_kept_tokens)]


def test_the_refiner_sees_answers_alone_and_nothing_of_a_thought_is_charged_or_imitated(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    engine = Engine(thinker, "<think>hm</think>\n\nbetter")
    found = refined(thinker, f"<think>{OWN}old", engine)
    shown = thinker.decode(found.prompt_ids)
    assert "old" in shown and "mine" not in shown
    ids, kept = [*thinker.encode(f"<think>{OWN}old"), thinker.eos_token_id], found.num_kept_tokens
    turn = Turn(response_length=len(ids), start=0, ids=ids, refinement=found, is_used=True)
    for mode in ("penalty", "lagrangian", "sft"):
        columns = read_constraint({"mode": mode}).columns(turn)
        if mode != "sft":
            assert set(columns["refine_counterparts"][:kept]) == {NONE} != set(columns["refine_counterparts"][kept:])
        if mode != "penalty":
            assert not any(columns["refine_weights"][:kept]) and any(columns["refine_weights"][kept:])
