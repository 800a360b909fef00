"""Refiner prompts: what they hold, their length, and templates that are broken."""

import copy
from pathlib import Path
from typing import Any

import pytest

from refiner_worker.config import TEMPLATES
from refiner_worker.prompts import RefinerPrompt

TEMPLATES_OF_OURS = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 1 + 1?"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "Are you sure?"},
]


@pytest.mark.parametrize(
    ("name", "tags"), [("apps", False), ("apps_paper", False), ("dialogue", True), ("general", True)]
)
def test_packaged_templates_show_question_response_and_reward(tokenizer: Any, name: str, tags: bool) -> None:
    prompt = RefinerPrompt(TEMPLATES / f"{name}.jinja", tokenizer)
    text = tokenizer.decode(prompt.encode(MESSAGES, "It is {2}.", -0.6))
    assert "Are you sure?" in text and "It is {2}." in text and "-0.60" in text
    end = "<|im_start|>assistant\n" + ("<refined>\n" if tags else "")
    assert text.startswith("<|im_start|>user\n") and text.endswith(end)
    assert prompt.stop == (["</refined>"] if tags else [])


def test_the_dialogue_template_shows_every_turn(tokenizer: Any) -> None:
    text = tokenizer.decode(RefinerPrompt(TEMPLATES / "dialogue.jinja", tokenizer).encode(MESSAGES, "No.", 0.5))
    assert "system: Be brief." in text and "assistant: 3" in text


def test_a_template_of_ones_own_without_tags(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ question }} | {{ response }} | {{ reward }}")
    prompt = RefinerPrompt(path, tokenizer)
    assert prompt.stop == []
    assert "Are you sure? | yes | 1.0<|im_end|>" in tokenizer.decode(prompt.encode(MESSAGES, "yes", 1.0))


def test_the_chat_template_is_given_what_the_policys_is(tokenizer: Any) -> None:
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if not enable_thinking %}no thoughts{% endif %}"
    path = TEMPLATES / "apps.jinja"
    for enabled in (False, True):
        prompt = RefinerPrompt(path, tokenizer, {"enable_thinking": enabled})
        assert tokenizer.decode(prompt.encode(MESSAGES, "3", -0.6)).endswith("no thoughts") is not enabled


@pytest.mark.parametrize("source", ["{{ answer }}", "{% if %}"])
def test_a_broken_template_names_its_file(tokenizer: Any, tmp_path: Path, source: str) -> None:
    path = tmp_path / "broken.jinja"
    path.write_text(source)
    with pytest.raises(ValueError, match=r"refiner\.template: .*broken\.jinja"):
        RefinerPrompt(path, tokenizer)


@pytest.mark.parametrize("name", TEMPLATES_OF_OURS)
def test_templates_say_that_the_beginning_is_right_where_the_answer_is_begun(tokenizer: Any, name: str) -> None:
    prompt = RefinerPrompt(TEMPLATES / f"{name}.jinja", tokenizer)
    begun, whole = (tokenizer.decode(prompt.encode(MESSAGES, "3", -0.6, is_begun=one)) for one in (True, False))
    assert "Its beginning" in begun and "Its beginning" not in whole
    assert len(begun) <= len(whole), "the longest prompt is the same"


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("name", TEMPLATES_OF_OURS)
def test_the_longest_prompt_is_bounded(tokenizer: Any, name: str, is_begun: bool) -> None:
    prompt = RefinerPrompt(TEMPLATES / f"{name}.jinja", tokenizer)
    question, response = "q" * 300, "r" * 200
    chat = [{"role": "user", "content": question}]
    policy_prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    used = len(prompt.encode(chat, response, -0.3, is_begun=is_begun))
    assert used <= prompt.max_tokens(len(policy_prompt), len(response)) <= used + 60
