"""The refiner's output becomes token ids that the policy could have written."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from refiner_worker.text.answer import Answer, Place, parse_answer
from refiner_worker.text.tokens import decode

EOS = 2


def parse(tokenizer: Any, output: str, *, ended: bool = True, tags: bool = True, response: str = "x") -> Answer:
    ids = tokenizer.encode(output, add_special_tokens=False) + ([EOS] if ended else [])
    place = Place(response=response, stop="</refined>" if tags else None)
    return parse_answer(ids, place, eos_token_id=EOS, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("output", "ended", "tags", "text"),
    [
        ("print(1)\n</refined>", False, True, "print(1)"),
        ("print(1)\n</refined> I hope this helps", False, True, "print(1)"),
        ("print(1)", True, True, "print(1)"),
        ("  \nprint(1)  \n", True, False, "print(1)"),
        ("a = 1\n\n    b = 'ü'", True, False, "a = 1\n\n    b = 'ü'"),
        ("keeps </refined> without tags", True, False, "keeps </refined> without tags"),
    ],
)
def test_the_answer_is_what_stands_before_the_end(
    tokenizer: Any, output: str, ended: bool, tags: bool, text: str
) -> None:
    answer = parse(tokenizer, output, ended=ended, tags=tags)
    assert answer.failure is None
    assert answer.text == text
    assert answer.token_ids == [*tokenizer.encode(text, add_special_tokens=False), EOS]


@pytest.mark.parametrize(
    ("output", "ended", "text", "failure"),
    [
        ("```py\nb\n```\n", False, "```py\nb\n```", None),
        ("Here:\n```py\nb\n```\nIt works", False, "Here:\n```py\nb\n```", None),
        ("```py\nb\n```", True, "```py\nb\n```", None),
        ("```py\nb\n", False, "```py\nb", "truncated"),
        ("Here:\n```\n", False, "Here:\n```", "truncated"),  # it opens the block
        ("\n```\nb", False, "```\nb", "truncated"),
        ("```\nb\n```\n", False, "```\nb\n```", None),
    ],
)
def test_a_stop_that_is_part_of_the_answer_ends_it(
    tokenizer: Any, output: str, ended: bool, text: str, failure: str | None
) -> None:
    ids = tokenizer.encode(output, add_special_tokens=False) + ([EOS] if ended else [])
    answer = parse_answer(ids, Place(response="x", stop="\n```\n"), eos_token_id=EOS, tokenizer=tokenizer)
    assert (answer.text, answer.failure) == (text, failure)
    assert answer.token_ids == ([] if failure else [*tokenizer.encode(text, add_special_tokens=False), EOS])


def test_what_stands_behind_the_end_is_not_decoded_again_and_again(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that waits for the end of a thought first writes on behind a program."""
    lengths: list[int] = []

    def counted(tokenizer: Any, ids: list[int]) -> str:
        lengths.append(len(ids))
        return decode(tokenizer, ids)

    monkeypatch.setattr("refiner_worker.text.answer.decode", counted)
    ids = tokenizer.encode("```py\nü✓\n```\n" + "It works ✓. " * 500, add_special_tokens=False)
    answer = parse_answer([*ids, EOS], Place(response="x", stop="\n```\n"), eos_token_id=EOS, tokenizer=tokenizer)
    assert answer.token_ids == [*tokenizer.encode("```py\nü✓\n```", add_special_tokens=False), EOS]
    assert sum(lengths) < 20 * len(ids)


def test_a_token_that_straddles_the_end_is_cut(tokenizer: Any) -> None:
    straddling = tokenizer.convert_tokens_to_ids("Ċ<")
    ids = tokenizer.encode("ab\n</refined>", add_special_tokens=False)
    assert straddling in ids
    answer = parse_answer(ids, Place(response="x", stop="</refined>"), eos_token_id=EOS, tokenizer=tokenizer)
    assert tokenizer.decode(answer.token_ids, skip_special_tokens=True) == "ab"
    assert straddling not in answer.token_ids


def test_generated_ids_are_kept_where_they_are_not_the_tokenizers_choice(tokenizer: Any) -> None:
    line_break, less = tokenizer.convert_tokens_to_ids(["Ċ", "<"])
    a = tokenizer.convert_tokens_to_ids("a")
    ids = [a, line_break, less, a, EOS]
    answer = parse_answer(ids, Place(response="x", stop="</refined>"), eos_token_id=EOS, tokenizer=tokenizer)
    assert answer.token_ids == [a, line_break, less, a, EOS], "the tokenizer itself would merge the middle two"


@pytest.mark.parametrize(
    ("output", "ended", "failure"),
    [("print(", False, "truncated"), ("", True, "empty"), (" \n ", True, "empty"), ("\n</refined>", False, "empty")],
)
def test_failures_have_a_reason_and_no_tokens(tokenizer: Any, output: str, ended: bool, failure: str) -> None:
    answer = parse(tokenizer, output, ended=ended)
    assert answer.failure == failure
    assert answer.token_ids == []


@pytest.mark.parametrize(
    ("response", "output", "tags", "text"),
    [
        ("\nb <ü", "\nb < ü", False, "\nb < ü"),  # one edit, and no token moves
        ("b\n", "b c\n\n</refined>", True, "b c\n"),  # what a lacks is stripped
        ("\n b\n", "c", False, "c"),  # nothing is added that the refiner did not write
        (" b", "\n b", False, " b"),
        ("\n\nb", "\nb", False, "\nb"),
        ("\nb", "\n\nb", False, "\nb"),
        (" \n ", " \n </refined>", True, ""),  # white space alone is no answer
    ],
)
def test_white_space_that_the_response_has_stays(
    tokenizer: Any, response: str, output: str, tags: bool, text: str
) -> None:
    answer = parse(tokenizer, output, tags=tags, response=response)
    assert answer.text == text
    assert answer.token_ids == ([*tokenizer.encode(text, add_special_tokens=False), EOS] if text else [])


@pytest.mark.parametrize("response", ["a\nb", "\na", " \n\n  a\n \n", "a  ", "\ta\n"])
def test_a_response_that_is_repeated_is_repeated_token_by_token(tokenizer: Any, response: str) -> None:
    ids = tokenizer.encode(response, add_special_tokens=False)
    assert parse(tokenizer, response, response=response, tags=False).token_ids == [*ids, EOS]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("ab<|im_start|>", None),  # cut: no end, whatever token was the last one
        ("ab<|endoftext|>", None),
        ("ab<|im_start|>c<|im_end|>", "abc"),
        ("<|im_start|>ab<|endoftext|><|im_end|>", "ab"),
        ("ab<|im_end|>c<|im_end|>", "ab"),
    ],
)
def test_control_tokens_are_no_part_of_the_answer(tokenizer: Any, output: str, text: str | None) -> None:
    answer = parse(tokenizer, output, ended=False, tags=False)
    assert answer.failure == (None if text else "truncated")
    assert answer.token_ids == ([*tokenizer.encode(text, add_special_tokens=False), EOS] if text else [])


@pytest.mark.parametrize("output", [" ✓ x", " ∑x", "  你好"])
def test_a_character_of_several_tokens_after_white_space_stays_whole(output: str, smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = [*tokenizer.encode(output), tokenizer.eos_token_id]
    for response, kept in (("x", ""), (" x", " ")):
        answer = parse_answer(ids, Place(response=response, stop=None), eos_token_id=ids[-1], tokenizer=tokenizer)
        assert answer.text == kept + output.strip() == tokenizer.decode(answer.token_ids[:-1])


def test_an_answer_that_ends_within_a_thought_is_cut(tokenizer: Any) -> None:
    thought = "<think>\nMaybe:\n```py\nb\n```\n"
    ids = tokenizer.encode(thought, add_special_tokens=False)
    place = Place(response="x", stop="\n```\n")
    assert parse_answer(ids, place, eos_token_id=EOS, tokenizer=tokenizer).failure == "truncated"
    ids = tokenizer.encode(f"<think>\nMaybe\n</think>{thought[7:]}", add_special_tokens=False)
    assert parse_answer(ids, place, eos_token_id=EOS, tokenizer=tokenizer).failure is None


REFINED = "The hare runs."


@pytest.mark.parametrize(
    ("output", "ended", "text"),
    [
        (f"<refined>\n{REFINED}\n</refined>", False, REFINED),  # begun with the tag, a model may write it again
        (f" \n<refined>{REFINED}</refined>", False, REFINED),
        (f"<refined>{REFINED}", True, REFINED),  # it forgot the closing one
        (f"{REFINED}</refined></refined>", False, REFINED),
        (f"<refined>\n{REFINED}\n</refined>\n<refined>\nMore.", True, REFINED),
        ("<refined>\nü ✓", True, "ü ✓"),
        (f"<refined>\n<refined>\n{REFINED}</refined>", False, None),
        (f"{REFINED}</refined", True, None),
        (f"{REFINED}\n</ref", True, None),
        (f"{REFINED}\n<refined>", True, None),
        (f"{REFINED}\n<refin", True, None),
        (f"The <refined> {REFINED}</refined>", False, None),
        ("if a <re and b </r", True, "if a <re and b </r"),
        (f"<refined>\n{REFINED}", False, None),
        ("<refined>\n</refined>", False, ""),
    ],
)
def test_tags_are_no_part_of_an_answer(tokenizer: Any, output: str, ended: bool, text: str | None) -> None:
    """The policy would learn to write them. What is left with one is not whole."""
    answer = parse(tokenizer, output, ended=ended)
    assert answer.failure == ("truncated" if text is None else None if text else "empty")
    assert answer.token_ids == ([*tokenizer.encode(text, add_special_tokens=False), EOS] if text else [])
    if text:
        assert answer.text == text


@pytest.mark.parametrize(
    ("output", "ended", "failure"),
    [
        ("Use </refined> to close.\n</refined>", False, "truncated"),  # the engine stops at the first
        ("Use </refined> to", False, "truncated"),
        ("Use a closing tag.</refined>", False, "truncated"),  # which of both it is nobody knows
        ("Use a closing tag.", True, None),
    ],
)
def test_a_closing_tag_that_the_response_quotes_is_no_end(
    tokenizer: Any, output: str, ended: bool, failure: str | None
) -> None:
    response = "Use </refined> too close."
    answer = parse(tokenizer, output, ended=ended, response=response)
    assert answer.failure == failure
    assert parse(tokenizer, output, ended=True, response=response, tags=False).text.startswith("Use")


def test_a_first_space_that_a_tokenizer_does_not_show_is_stripped() -> None:
    """SentencePiece's tokenizers leave out the first space: the text is the same with and without its token."""
    vocabulary = {"</s>": 0, "▁": 1, "a": 2, "b": 3}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert decode(tokenizer, [1, 2]) == decode(tokenizer, [2]) == "a"
    answer = parse_answer([1, 2, 0], Place(response="b"), eos_token_id=0, tokenizer=tokenizer)
    assert answer.token_ids == [2, 0]
