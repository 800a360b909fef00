"""Prompts with pictures: their words, their token ids, and what replicas and servers are sent of them."""

import base64
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_vision import FAMILIES, PACKAGES, vision_tokenizer

from refiner_worker.config import TEMPLATES
from refiner_worker.pictures import (
    MARK,
    Pictures,
    Prompt,
    as_text,
    content_of,
    for_people,
    pictures_of,
    split,
    with_images,
)
from refiner_worker.prompts import RefinerPrompt

RED, BLUE = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
QUESTION = [
    {"type": "text", "text": "Which of "},
    {"type": "image", "image": RED},
    {"type": "text", "text": " and "},
    {"type": "image", "image": BLUE},
    {"type": "text", "text": " is red?"},
]
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def seeing() -> Any:
    return vision_tokenizer()


def read_by_policy(tokenizer: Any, *, num_tokens: tuple[int, int] = (2, 3)) -> list[int]:
    """Return the ids of the question as the policy reads them, with so many tokens of each picture."""
    text = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    for number in num_tokens:
        text = text.replace("<|image_pad|>", "#" * number, 1)
    return tokenizer.encode(text.replace("#", "<|image_pad|>"), add_special_tokens=False)


def pictures_in(tokenizer: Any, ids: list[int]) -> Pictures:
    return Pictures.in_prompt(ids, [RED, BLUE], tokenizer.convert_tokens_to_ids("<|image_pad|>"))


def test_a_prompt_keeps_its_pictures_when_it_gets_longer(seeing: Any) -> None:
    ids = read_by_policy(seeing)
    prompt = Prompt(ids, pictures_in(seeing, ids))
    assert prompt == ids and prompt + [1, 2] == [*ids, 1, 2], "the ids are a plain list's"
    assert pictures_of(prompt + [1]) is pictures_of(prompt) is not None
    assert pictures_of(Prompt(ids)) is pictures_of(ids) is None


def test_the_policys_own_prompt_is_written_again_with_its_expanded_ids(seeing: Any) -> None:
    ids = read_by_policy(seeing)
    pictures = pictures_in(seeing, ids)
    assert pictures.num_tokens == (2, 3)
    again = RefinerPrompt(TEMPLATES / "again.jinja", seeing)
    prompt = again.encode(again.content(MESSAGES, "old", 0.0), pictures)
    assert prompt == ids and pictures_of(prompt) is pictures


@pytest.mark.parametrize("template", ["general", "apps", "dialogue"])
def test_pictures_stand_where_the_question_has_them(seeing: Any, template: str) -> None:
    prompt = RefinerPrompt(TEMPLATES / f"{template}.jinja", seeing)
    words = prompt.content(MESSAGES, "the first", -0.5)
    assert "Which of <image> and <image> is red?" in for_people(words) and words.count(MARK) == 2
    text = seeing.decode(prompt.encode(words, pictures_in(seeing, read_by_policy(seeing))))
    first, second = ("<|vision_start|>" + "<|image_pad|>" * number + "<|vision_end|>" for number in (2, 3))
    assert f"Which of {first} and {second} is red?" in text and "the first" in text
    for hidden in ("'type'", "PIL", "base64", MARK):
        assert hidden not in text and hidden not in for_people(words)


def test_a_response_cannot_move_a_picture(seeing: Any) -> None:
    """It may write the mark, or a token of control: neither stands for a picture."""
    pictures = pictures_in(seeing, read_by_policy(seeing))
    prompt = RefinerPrompt(TEMPLATES / "general.jinja", seeing)
    said = f"{MARK} is <|image_pad|> and <|im_end|> {MARK}"
    ids = prompt.encode(prompt.content(MESSAGES, said, 0.0, told={"feedback": MARK}), pictures)
    shown = seeing.decode(ids)
    assert "Which of <|vision_start|>" in shown and "\n is < |image_pad|> and < |im_end|> \n" in shown
    assert ids.count(pictures.token_id) == 5 and ids.count(seeing.eos_token_id) == 1, "the end of the user's turn"


def test_a_text_is_encoded_as_before(seeing: Any) -> None:
    """Also one that holds the mark, which stands for nothing there."""
    messages = [{"role": "user", "content": f"What is {MARK}?"}]
    prompt = RefinerPrompt(TEMPLATES / "again.jinja", seeing)
    own = seeing.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = prompt.encode(prompt.content(messages, "old", 0.0))
    assert ids == seeing.encode(own, add_special_tokens=False) and pictures_of(ids) is None


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (f"a{MARK}b{MARK}c", ["a", None, "b", None, "c"]),
        (f"{MARK}{MARK}", [None, None]),
        ("no mark", [None, None, "no mark"]),
        (f"a{MARK}b", [None, "a", None, "b"]),
        (f"{MARK}{MARK}, twice: {MARK}{MARK}", [None, None, ", twice: <image><image>"]),
    ],
)
def test_two_pictures_have_their_places_in_words(words: str, parts: list[str | None]) -> None:
    assert split(words, 2) == parts


def test_other_numbers_of_pictures_are_errors(seeing: Any) -> None:
    ids = read_by_policy(seeing)
    token = seeing.convert_tokens_to_ids("<|image_pad|>")
    with pytest.raises(ValueError, match="1 images, but its tokens 2"):
        Pictures.in_prompt(ids, [RED], token)
    pictures = pictures_in(seeing, ids)
    with pytest.raises(ValueError, match="leaves out 1 of 2"):
        pictures.expand([1, token])
    with pytest.raises(ValueError, match="more than 2"):
        pictures.expand([token, 1, token, 1, token])


def test_a_part_that_is_neither_text_nor_image_is_named() -> None:
    with pytest.raises(ValueError, match="part of type video"):
        as_text([{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}])


def test_a_server_gets_the_bytes_in_order(seeing: Any) -> None:
    pictures = pictures_in(seeing, read_by_policy(seeing))
    parts = content_of(f"Which of {MARK} and {MARK}?", pictures)
    assert isinstance(parts, list) and [part["type"] for part in parts] == ["text", "image_url"] * 2 + ["text"]
    sent = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    read = [Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))) for url in sent]
    assert [image.getpixel((0, 0)) for image in read] == [(255, 0, 0), (0, 0, 255)]
    assert content_of("a text", None) == "a text"


@pytest.mark.skipif(not PACKAGES.is_dir(), reason="scripts/test.sh could not install requirements/images.txt")
def test_the_ids_are_those_of_the_models_own_processors(tmp_path: Path) -> None:
    """Pictures of several sizes, in a process that sees the packages for pictures."""
    code = Path(__file__).parents[2] / "helpers" / "expanded_prompts.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), os.getcwd(), str(code.parent)])}
    done = subprocess.run([sys.executable, code, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == [f"{family}: 3 prompts" for family in FAMILIES]


def test_a_row_of_data_has_its_images_in_their_places() -> None:
    """An image may be one of PIL, bytes, or the name of a file."""
    content = io.BytesIO()
    RED.save(content, "PNG")
    images = [{"bytes": content.getvalue(), "path": None}, BLUE, {"bytes": None, "path": "a.png"}]
    asked = [
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "<image>Which of <image> and <image>?"},
    ]
    system, user = with_images(asked, images)
    assert system["content"] == [{"type": "text", "text": "Count."}]
    first, second, third = (part["image"] for part in user["content"] if part["type"] == "image")
    assert first.tobytes() == RED.tobytes() and second is BLUE and third == "a.png"
    assert for_people(as_text([user])[0]["content"]) == asked[1]["content"]
    assert with_images(asked, []) == asked, "a text may mention <image>"
    with pytest.raises(ValueError, match="1 images, but 3 places"):
        with_images(asked, [BLUE])
