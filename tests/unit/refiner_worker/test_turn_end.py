"""A turn ends in any token at which engines stop, and a refinement as its response did."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from refiner_worker.text.answer import Place, parse_answer
from refiner_worker.text.turn_end import TurnEnd, read_turn_end

END_OF_TEXT, IM_END = 0, 2
BOTH = {"eos_token_id": [END_OF_TEXT, IM_END]}


def read(tokenizer: Any, eos_token: str, folder: Path, **files: dict[str, Any]) -> TurnEnd:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": None}))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = eos_token
    return read_turn_end(str(folder), tokenizer)


@pytest.mark.parametrize(
    ("eos_token", "files", "stops", "written"),
    [
        ("<|im_end|>", {"generation_config": {}}, {IM_END}, IM_END),
        ("<|endoftext|>", {"config": {"model_type": "llama", **BOTH}}, {END_OF_TEXT, IM_END}, IM_END),
        ("<|endoftext|>", {"generation_config": BOTH}, {END_OF_TEXT, IM_END}, IM_END),
        ("<|endoftext|>", {"generation_config": {"eos_token_id": IM_END}}, {END_OF_TEXT, IM_END}, IM_END),
        ("<|endoftext|>", {"generation_config": {"eos_token_id": END_OF_TEXT}}, {END_OF_TEXT}, END_OF_TEXT),
    ],
)
def test_a_turn_ends_as_the_chat_template_writes_it_if_engines_stop_there(
    tokenizer: Any, tmp_path: Path, eos_token: str, files: dict[str, Any], stops: set[int], written: int
) -> None:
    expected = TurnEnd(stops=frozenset(stops), written=written)
    assert read(tokenizer, eos_token, tmp_path, **files) == expected


@pytest.mark.parametrize(
    ("turn", "is_whole", "end"), [([7, 0], True, 0), ([7, 2], True, 2), ([7], False, 2), ([], False, 2)]
)
def test_a_refinement_ends_as_its_response(turn: list[int], is_whole: bool, end: int) -> None:
    turn_end = TurnEnd(stops=frozenset({0, 2}), written=2)
    assert turn_end.is_whole(turn) == is_whole and turn_end.of(turn) == end


def test_a_stop_that_the_tokenizer_does_not_call_special_ends_an_answer(tokenizer: Any) -> None:
    ids, stop = tokenizer.encode("ab", add_special_tokens=False), tokenizer.convert_tokens_to_ids("Z")
    answer = parse_answer(
        [*ids, stop], Place(response="x"), eos_token_id=IM_END, stop_token_ids={stop}, tokenizer=tokenizer
    )
    assert answer.failure is None and answer.token_ids == [*ids, IM_END]
