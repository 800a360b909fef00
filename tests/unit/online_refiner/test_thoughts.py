"""Models that think: what their chat templates say of it, and what of an output becomes a'."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from written_model import Engine, WrittenServer, group_refined, refined, with_template

from recipe.online_refiner.method.constraint import row_columns
from recipe.online_refiner.method.eq6 import NONE
from recipe.online_refiner.method.modes import read_constraint
from recipe.online_refiner.method.pairs import Rollout, Turn, Verdict
from recipe.online_refiner.refine.language import Language
from refiner_worker.config import TEMPLATES
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.thoughts import Thoughts, read_thoughts
from refiner_worker.text.turn_end import TurnEnd

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
    "one that knows no thoughts": (CHATML % ("", ""), {}, None, False),
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
    plain = with_template(tokenizer, KNOWN["one that knows no thoughts"][0])
    assert read_thoughts(plain, {}, ["[THINK]", "[/THINK]"]) == Thoughts("[THINK]", "[/THINK]", is_open=False)


OPEN, CLOSED = KNOWN["an R1 distillate"][0], KNOWN["Qwen3"][0]
OWN = "mine</think>\n\n"


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
    refined(thinker, f"<think>{OWN}old", engine, companion=constraint.companion(thinker, None, {}, 64))
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
    assert engine.asked == [(None, 64), (None, 96 - found.num_kept_tokens)]


def test_a_thought_may_end_where_a_program_begins(tokenizer: Any) -> None:
    """So the fence that ends the program is the answer's first one."""
    thinker = with_template(tokenizer, CHATML % ("", "Plan: "))
    engine = Engine(thinker, "it got 0.25\n```python\nx = 2\n```\nx is 2", thoughts=["Plan:", "```python"])
    found = refined(thinker, "mine\n```python\nx = 1\n```\n", engine, template="apps")
    assert found.verdict is Verdict.ACCEPTED
    assert thinker.decode(found.token_ids[:-1]) == "mine\n```python\nx = 2\n```\n"


def test_the_refiner_sees_answers_alone_and_nothing_of_a_thought_is_charged_or_imitated(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    engine = Engine(thinker, "<think>hm</think>\n\nbetter")
    found = refined(thinker, f"<think>{OWN}old", engine)
    shown = thinker.decode(found.prompt_ids)
    assert "old" in shown and "mine" not in shown
    ids, kept = [*thinker.encode(f"<think>{OWN}old"), thinker.eos_token_id], found.num_kept_tokens
    turn = Turn(response_length=len(ids), start=0, ids=ids, refinement=found, is_used=True, reward=0.0)
    for mode in ("penalty", "lagrangian", "sft"):
        columns = row_columns(read_constraint({"mode": mode}), turn)
        if mode != "sft":
            assert set(columns["refine_counterparts"][:kept]) == {NONE} != set(columns["refine_counterparts"][kept:])
        if mode != "penalty":
            assert not any(columns["refine_weights"][:kept]) and any(columns["refine_weights"][kept:])


def test_several_thoughts_are_drawn_by_one_request_and_each_is_answered(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    engines = [Engine(thinker, "<think>hm</think>\n\nbetter", samples=num, temperature=1.0) for num in (1, 2)]
    one, two = (refined(thinker, f"<think>{OWN}old", engine) for engine in engines)
    assert two.verdict is Verdict.ACCEPTED and two.token_ids == one.token_ids
    assert (two.num_samples, two.num_better) == (2, 2)
    for found, engine in zip((one, two), engines, strict=True):
        assert found.num_prompt_tokens == sum(engine.read), "each request is sent with its prompt"
    for name in ("num_generated_tokens", "num_thought_tokens"):
        assert getattr(two, name) == 2 * getattr(one, name) > 0
    thought, answer = engines[0].asked
    assert engines[1].asked == [thought, answer, answer]


@pytest.mark.parametrize("template", ["an R1 distillate", "Qwen3"])
def test_a_thought_that_responses_share_is_counted_once(tokenizer: Any, template: str) -> None:
    """Their answers are not shared: the one behind a longer thought of the policy has less room."""
    thinker, begin = with_template(tokenizer, KNOWN[template][0]), "<think>" * (template == "Qwen3")
    engine = Engine(thinker, f"{begin}hm, it got 0.25</think>\n\nbetter", temperature=0.0)
    responses = [f"{begin}{thought}</think>\n\nold" for thought in ("mine", "mine, longer", "mine", "another one")]
    found = group_refined(thinker, responses, engine)
    assert {one.verdict for one in found} == {Verdict.ACCEPTED}
    num_thoughts = sum(stop == "</think>" for stop, _ in engine.asked)
    assert num_thoughts == (1 if template == "an R1 distillate" else 3)
    assert sum(one.num_thought_tokens for one in found) == num_thoughts * len(
        thinker.encode(f"{begin}hm, it got 0.25</think>")
    )
    assert all(one.num_thought_tokens <= one.num_generated_tokens for one in found)


def test_the_refiner_writes_thought_and_answer_again(tokenizer: Any) -> None:
    """``refiner.rewrites=response``: they are asked for apart and joined by the policy's own marks."""
    for template, begin in ((OPEN, ""), (CLOSED, "<think>")):
        thinker = with_template(tokenizer, template)
        output = f"{begin}it got 0.25</think>\n<refined>\nsounder\n</refined>better"
        engine = Engine(thinker, output, rewrites="response")
        found = refined(thinker, f"{begin}{OWN}old", engine)
        assert found.verdict is Verdict.ACCEPTED
        assert thinker.decode(found.token_ids[:-1]) == f"{begin}sounder</think>\n\nbetter"
        assert (found.num_kept_tokens, found.num_thought_tokens) == (
            0,
            len(thinker.encode(f"{begin}it got 0.25</think>")),
        )
        shown = thinker.decode(found.prompt_ids)
        assert "Reasoning:\nmine\n\nAnswer:\nold" in shown
        assert "between <refined> and </refined>" in shown
        assert [stop for stop, _ in engine.asked] == ["</think>", "</refined>", "</refined>"]
        (_, room_for_both), (_, room_for_the_answer) = engine.asked[1:]
        assert room_for_both - room_for_the_answer == len(thinker.encode("sounder\n</refined>"))


REASONED: dict[str, tuple[Verdict, str]] = {
    "a</think>\n<refined>\nsounder": (Verdict.TRUNCATED, ""),
    "a</think>\n<refined>\nb</think>c</refined>better": (Verdict.TRUNCATED, ""),
    "a</think>\n<refined>\n<refined>b</refined>better": (Verdict.ACCEPTED, "b</think>\n\nbetter"),
    "a</think>\n<refined>\nmine</refined>old": (Verdict.NOT_BETTER, "mine</think>\n\nold"),
    "a</think>\n<refined>\nThis answer got 0.25 points</refined>better": (Verdict.LEAK, ""),
    "a</think>\n<refined>\n</refined>better": (Verdict.EMPTY, ""),
    "a</think>\n<refined>\nb</refined>\n<refined>\nbetter\n</refined>": (Verdict.ACCEPTED, "b</think>\n\nbetter"),
    "a</think>\n<refined>\nb</refined>better <refined": (Verdict.TRUNCATED, ""),
}


@pytest.mark.parametrize("output", REASONED)
def test_what_becomes_of_a_reasoning_that_is_written_again(tokenizer: Any, output: str) -> None:
    verdict, expected = REASONED[output]
    thinker = with_template(tokenizer, OPEN)
    found = refined(thinker, f"{OWN}old", Engine(thinker, output, rewrites="response"))
    assert (found.verdict, thinker.decode(found.token_ids[:-1])) == (verdict, expected)
    _, _, text = output.partition("</think>\n")
    if "</think>" in text:
        return
    server = WrittenServer(thinker, "a", text, rewrites="response")
    found = refined(thinker, f"{OWN}old", server)
    assert (found.verdict, thinker.decode(found.token_ids[:-1])) == (verdict, expected)
    assert found.num_thought_tokens == 1


def test_a_thought_that_is_cut_gets_an_end_and_an_answer(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    engine = Engine(thinker, "<think>a</think>\n<refined>\nsounder</refined>better", rewrites="response")
    found = refined(thinker, "<think>on and on", engine, is_whole=False)
    assert found.verdict is Verdict.ACCEPTED
    assert thinker.decode(found.token_ids[:-1]) == "<think>sounder</think>\n\nbetter"
    assert (
        refined(thinker, "<think>", Engine(thinker, "x", rewrites="response"), is_whole=False).verdict
        is Verdict.NO_ANSWER
    )


@pytest.mark.parametrize("rewrites", ["answer", "response"])
@pytest.mark.parametrize(
    ("response", "output", "expected"),
    [
        ("3+4 is 8</think><answer>8</answer>", "hm</think>{}<answer>7</answer>", "3+4 is {}</think><answer>7</answer>"),
        ("3+4 is 8</think>\n<b>8</b>", "hm</think>{}<b>7</b>", "3+4 is {}</think>\n<b>7</b>"),
        ("a <b>x</b></think>8", "<i>y</i></think>{}7", "a <b>x</b></think>7"),
        ("三加四等于八麤</think>八", "麤</think>{}七", "三加四等于八麤</think>七"),
    ],
)
def test_a_mark_may_share_a_token_with_what_stands_beside_it(
    smollm2: Path, response: str, output: str, expected: str, rewrites: str
) -> None:
    """SmolLM2's tokenizer has ``><`` and ``></``, and writes rare characters as several tokens."""
    thinker = with_template(AutoTokenizer.from_pretrained(smollm2), OPEN)
    reasoning = response.partition("</think>")[0].replace("is 8", "is 7")
    written = output.format(f"\n<refined>\n{reasoning}</refined>\n<refined>\n" if rewrites == "response" else "")
    if rewrites == "response":
        written += "</refined>"
    found = refined(thinker, response, Engine(thinker, written, rewrites=rewrites))
    assert found.verdict is Verdict.ACCEPTED
    text = thinker.decode(found.token_ids[:-1])
    assert text == expected.format(7 if rewrites == "response" else 8).replace(
        "a <b>x</b>", reasoning if "<b>x" in response else ""
    )
    kept = found.num_kept_tokens
    assert found.token_ids[:kept] == thinker.encode(response)[:kept], "what is kept is the policy's own"
    assert "</think" in thinker.decode(found.token_ids[:kept]) or rewrites == "response"


def test_a_server_may_think_where_the_policy_does_not(tokenizer: Any) -> None:
    plain = with_template(tokenizer, KNOWN["one that knows no thoughts"][0])
    text = "<think>The earlier one got 0.25, so\n</think>\n\nbetter"
    found = refined(plain, "old", WrittenServer(plain, "", text))
    assert (found.verdict, plain.decode(found.token_ids[:-1])) == (Verdict.ACCEPTED, "better")
    assert found.num_thought_tokens > 0
    off = with_template(tokenizer, CLOSED)
    told = read_thoughts(off, {"enable_thinking": False}, ["<think>", "</think>"])
    assert told == Thoughts(*NAMED, is_open=False), "who says so is believed"


def test_every_placement_takes_what_stands_behind_the_last_mark(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    for output, answer in (("hm it got</think>\n\nbetter", "better"), ("Sure.<think>a</think>better", "better")):
        for engine in (Engine(thinker, output), WrittenServer(thinker, "", output)):
            found = refined(thinker, f"<think>{OWN}old", engine)
            assert thinker.decode(found.token_ids[:-1]) == f"<think>{OWN}{answer}"


def test_a_later_turn_may_open_no_thought(tokenizer: Any) -> None:
    """Behind the output of a tool some templates open none, though the generation prompt does."""
    thoughts = Thoughts(*NAMED, is_open=True)
    before = tokenizer.encode("x<tool>8</tool>")
    assert thoughts.in_turn(before, tokenizer).split(tokenizer.encode("It is 8."), tokenizer).answer == "It is 8."
    assert thoughts.in_turn([*before, *tokenizer.encode("<think>\n")], tokenizer).is_open


def test_a_thought_without_a_length_takes_what_the_context_leaves(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    engine = Engine(thinker, "<think>hm</think>better", thought_length=None, response_length=1500)
    assert refined(thinker, f"<think>{OWN}old", engine).verdict is Verdict.ACCEPTED
    engine = Engine(thinker, "<think>hm</think>better", thought_length=1500, response_length=1500)
    assert refined(thinker, f"<think>{OWN}old", engine).verdict is Verdict.TOO_LONG


def test_a_thought_leaves_room_for_the_answer(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, OPEN)
    engine = Engine(thinker, "hm</think>better", thought_length=None, response_length=1500)
    found = refined(thinker, f"{OWN}old", engine)
    num_left = 1500 - found.num_kept_tokens
    assert found.verdict is Verdict.ACCEPTED and len(found.prompt_ids) + num_left > 2048 - 1500
    assert [limit for _, limit in engine.asked] == [2048 - len(found.prompt_ids) - num_left, num_left]


def test_leaks_may_be_let_through(tokenizer: Any) -> None:
    thinker = with_template(tokenizer, CLOSED)
    for rejects, verdict in ((True, Verdict.LEAK), (False, Verdict.ACCEPTED)):
        engine = Engine(thinker, "It got 0.25 points: better", reject_leaks=rejects)
        assert refined(thinker, "old", engine).verdict is verdict


@pytest.mark.parametrize(("scores_leaks", "reward"), [(False, None), (True, 0.5)])
def test_a_leak_is_rewarded_only_for_who_counts_what_the_rule_costs(
    tokenizer: Any, scores_leaks: bool, reward: float | None
) -> None:
    engine = Engine(tokenizer, "It got 0.25 points: better")
    found = refined(
        with_template(tokenizer, KNOWN["one that knows no thoughts"][0]), "old", engine, scores_leaks=scores_leaks
    )
    assert (found.verdict, found.reward, found.token_ids) == (Verdict.LEAK, reward, [])
    assert found.text == "It got 0.25 points: better"


MENTIONS = {
    "Write it between the <think> tags.": (Verdict.ACCEPTED, Verdict.ACCEPTED),
    "The tag `<think>` opens a thought.": (Verdict.ACCEPTED, Verdict.ACCEPTED),
    "if '<think>' in text: print(1)": (Verdict.ACCEPTED, Verdict.ACCEPTED),
    "<think> opens a thought.": (Verdict.TRUNCATED, Verdict.ACCEPTED),
    "<think>a</think>b": (Verdict.ACCEPTED, Verdict.ACCEPTED),
    "</think> closes it": (Verdict.ACCEPTED, Verdict.ACCEPTED),
}
"""The verdicts on an answer: if the chat template knows no thoughts, and if the model is said not to think."""


@pytest.mark.parametrize("output", MENTIONS)
@pytest.mark.parametrize("thoughts", [None, False])
def test_an_answer_may_mention_a_mark_where_nobody_thinks(tokenizer: Any, output: str, thoughts: Any) -> None:
    plain = with_template(tokenizer, KNOWN["one that knows no thoughts"][0])
    expected = MENTIONS[output][thoughts is False]
    for engine in (Engine(plain, output, thoughts=thoughts), WrittenServer(plain, "", output, thoughts=thoughts)):
        found = refined(plain, "Write it.", engine)
        assert found.verdict is expected
        if expected is Verdict.ACCEPTED and (thoughts is False or "<think>a" not in output):
            assert plain.decode(found.token_ids[:-1]) == output


def test_a_thought_ends_at_its_last_closing_mark() -> None:
    text = "<think>first</think>second</think>"
    assert Thoughts("<think>", "</think>", is_open=False).end(f"{text}answer") == len(text)


def test_no_answer_is_asked_for_behind_a_reasoning_that_leaves_no_room(tokenizer: Any) -> None:
    thinker, reasoning = with_template(tokenizer, OPEN), "sounder</refined>"
    length = len(thinker.encode(reasoning))
    engine = Engine(thinker, f"hm</think>\n<refined>\n{reasoning}better", rewrites="response", response_length=length)
    assert refined(thinker, f"{OWN}old", engine).verdict is Verdict.TRUNCATED
    assert [limit for _, limit in engine.asked] == [64, length]


@pytest.mark.parametrize(
    ("text", "verdict"), [("bett", Verdict.TRUNCATED), ("", Verdict.THOUGHT), (" \n", Verdict.THOUGHT)]
)
def test_a_server_may_be_cut_off_within_its_thought_or_behind_it(tokenizer: Any, text: str, verdict: Verdict) -> None:
    thinker = with_template(tokenizer, OPEN)
    assert refined(thinker, f"{OWN}old", WrittenServer(thinker, "hm", text, is_whole=False)).verdict is verdict


def test_the_last_turn_is_split_by_what_stands_before_it(tokenizer: Any) -> None:
    before, turn = tokenizer.encode("x<tool>8</tool>"), tokenizer.encode("It is 8.")
    common: dict[str, Any] = {"key": "u_0_0", "messages": [], "prompt_ids": [1], "reward_columns": {}, "reward": 0.0}
    one = Rollout(response_ids=[*before, *turn], start=len(before), **common)
    end = TurnEnd(stops=frozenset({2}), written=2)
    thoughts = Thoughts(*NAMED, is_open=True)
    language = Language(
        tokenizer=tokenizer, thoughts=thoughts, turn_end=end, may_think=True, thread=ThreadPoolExecutor(1)
    )
    assert language.answer_in(one, turn) == "It is 8."
    assert language.answer_in(Rollout(response_ids=turn, **common), turn) == "", "the generation prompt opens a thought"


def test_a_thought_that_is_kept_takes_no_room_behind_the_prompt(tokenizer: Any) -> None:
    """2,048 tokens hold the prompt, the answer and the refiner's own thought; the kept thought is not read again."""
    thinker = with_template(tokenizer, CLOSED)
    response, written = f"<think>{'mine ' * 20}</think>\n\nold", "<think>hm</think>better"
    prompt = refined(thinker, response, Engine(thinker, written, response_length=512)).prompt_ids
    kept, room = len(thinker.encode(response.removesuffix("old"))), 2048 - len(prompt)
    for num_left, verdict in ((room - 24, Verdict.ACCEPTED), (room, Verdict.TOO_LONG)):
        engine = Engine(thinker, written, thought_length=None, response_length=kept + num_left)
        assert refined(thinker, response, engine).verdict is verdict


def test_a_header_alone_is_no_thought(tokenizer: Any) -> None:
    header = "<|channel|>final<|message|>"
    parts = Thoughts(*CHANNELS, is_open=False, header=header).split(tokenizer.encode(f"{header}old"), tokenizer)
    assert (parts.opening, parts.thought, parts.closing, parts.answer) == ("", "", header, "old")
