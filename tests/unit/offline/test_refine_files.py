"""Refined answers as files: what a journal keeps over kills, which rows which file has, and what is refused."""

import asyncio
import gc
import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from recipe.offline import run
from recipe.offline.bench import Bench, Engine
from recipe.offline.files import all_answers, formats, write
from recipe.offline.inputs import config_of, read_data, reward_of
from recipe.offline.journal import Journal
from recipe.offline.run import found_in, make_bench
from recipe.offline.shares import Found
from recipe.online_refiner.method.pairs import Refinement, Rollout, Verdict
from recipe.online_refiner.verl_glue.preflight.files import read_tokenizer
from refiner_worker.client import RefinerRequestError
from refiner_worker.text.turn_end import TurnEnd

SETTINGS = {"ways": ["general"], "data": ["0f", "1e"], "refiner": ["samples=2"]}
ROW = {"prompt": [{"role": "user", "content": "q"}], "data_source": "s", "reward_model": {"ground_truth": ""}}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama)


def rollout(row: int, sample: int, text: str, reward: float, tokenizer: Any) -> Rollout:
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
    return Rollout(
        key=f"{row}_{sample}_0",
        messages=[],
        prompt_ids=[],
        response_ids=ids,
        reward=reward,
        feedback="f",
        reward_columns={},
    )


def fill(journal: Journal, tokenizer: Any) -> None:
    """Write a row of a worse, a right and a better refined answer, and an answer of a row that is not finished."""
    group = [
        rollout(3, n, text, reward, tokenizer) for n, (text, reward) in enumerate([("a", 0.0), ("b", 1.0), ("c", 0.5)])
    ]
    for one in (*group, rollout(4, 0, "d", 0.25, tokenizer)):
        journal.add_answer(one)
    found = [
        Refinement(verdict=Verdict.NOT_BETTER, token_ids=[1], text="A", reward=0.0),
        Refinement(verdict=Verdict.MAX_REWARD),
        Refinement(verdict=Verdict.ACCEPTED, token_ids=[1], text="C\ud83d", reward=0.75, num_better=1),
    ]
    journal.add_problem(3, group, {"general": found})


@pytest.mark.parametrize("num_lost", [1, 20])
def test_a_line_that_a_kill_has_cut_is_written_again(tokenizer: Any, tmp_path: Path, num_lost: int) -> None:
    fill(Journal(tmp_path / "journal.jsonl", SETTINGS), tokenizer)
    file = tmp_path / "journal.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-num_lost])
    again = Journal(tmp_path / "journal.jsonl", SETTINGS)
    assert again.refined == {} and sorted(again.answers[3]) == [0, 1, 2] and again.answers[4][0]["reward"] == 0.25
    verdicts = [Verdict.LEAK, Verdict.MAX_REWARD, Verdict.ACCEPTED]
    group = [rollout(3, n, "", 0.0, tokenizer) for n in range(3)]
    again.add_problem(3, group, {"general": [Refinement(verdict=one) for one in verdicts]})
    del again
    _, found = Journal(tmp_path / "journal.jsonl", SETTINGS).problem(3)
    assert [one.verdict for one in found["general"]] == verdicts
    assert len(file.read_bytes().splitlines()) == len(whole.splitlines())


def test_a_folder_has_one_run(tokenizer: Any, tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal.jsonl", {**SETTINGS, "ways": ["genral"]})
    with pytest.raises(ValueError, match="another process writes there"):
        Journal(tmp_path / "journal.jsonl", SETTINGS)
    del first
    fill(
        Journal(tmp_path / "journal.jsonl", SETTINGS), tokenizer
    )  # nothing was done yet, so that a mistake may be mended
    with pytest.raises(ValueError, match="begun with other settings: ways, data; give another folder"):
        Journal(tmp_path / "journal.jsonl", {**SETTINGS, "ways": ["math"], "data": SETTINGS["data"][::-1]})
    assert Journal(tmp_path / "journal.jsonl", SETTINGS).is_finished(3, 3)
    anew = Journal(tmp_path / "journal.jsonl", {**SETTINGS, "ways": ["math"]}, goes_on=False)  # as check does
    assert not anew.answers and not anew.refined
    anew.add_answer(rollout(0, 0, "a", 0.0, tokenizer))
    first, second = map(json.loads, (tmp_path / "journal.jsonl").read_text().splitlines())
    assert first["ways"] == ["math"] and second["answer"]["reward"] == 0.0


def test_only_what_is_lost_is_asked_again(tokenizer: Any, tmp_path: Path) -> None:
    asked, lost, end = list[str](), {"ask b", "reward c"}, tokenizer.eos_token_id

    class Written(Engine):
        def __init__(self) -> None:
            self._slots = asyncio.Semaphore(9)

        async def generate(self, prompt_ids: list[int], *request: Any, **sampling: Any) -> list[list[int]]:
            (own,) = (one for one in texts if one in tokenizer.decode(prompt_ids))
            asked.append(own)
            if f"ask {own[-1]}" in lost:
                raise RefinerRequestError("the server is gone")
            return [[*tokenizer.encode("drawn"), end]]

    def reward(solution_str: str, **_: Any) -> float:
        if f"reward {solution_str[-1]}" in lost:
            raise KeyError(solution_str)
        return {"ans-right": sum([0.1] * 10), "drawn": 0.5}.get(solution_str, 0.0)

    texts = ["ans-right", "ans-a", "ans-b", "ans-c"]
    row = {**ROW, "responses": texts}

    def go_on() -> tuple[Journal, str]:
        journal = Journal(tmp_path / "journal.jsonl", SETTINGS)
        bench = Bench(
            engine=Written(),
            tokenizer=tokenizer,
            turn_end=TurnEnd(stops=frozenset({end}), written=end),
            reward=reward,
            max_response_tokens=9,
            max_model_len=999,
            on_answer=journal.add_answer,
        )
        way = Namespace(highest_reward=1.0, max_new_tokens=20, samples=4, refiner=[])

        async def work() -> None:
            refiners = {"general": bench.refiner(config_of("general", way))}
            async for number, group, refined in bench.problems([row], [0], refiners, 4, journal.known):
                journal.add_problem(number, group, refined)

        asked.clear()
        asyncio.run(work())
        return journal, found_in(journal).describe().splitlines()[0]

    journal, said = go_on()
    assert sorted(asked) == ["ans-a", "ans-b"] and not journal.is_finished(0, 4), "c has no reward, b's request is lost"
    assert said == "2 of 3 answers were refined (1 of 1 problems)", "a hair below the highest reward is right"
    lost.clear()
    journal.add_answer(rollout(0, 3, "ans-c", 0.0, tokenizer))
    assert found_in(journal).describe().startswith(said), "of c it is not known what becomes of it"
    assert len(list(all_answers(journal, [row], tokenizer))) == 3
    del journal
    gc.collect()  # the bench of the first command has it
    journal, said = go_on()
    assert sorted(asked) == ["ans-b", "ans-c"] and journal.is_finished(0, 4), "a is not refined again"
    assert said.startswith("3 of 4 answers")
    assert [one.verdict for one in journal.problem(0)[1]["general"]] == [Verdict.MAX_REWARD, *[Verdict.ACCEPTED] * 3]


def test_a_command_that_goes_on_draws_with_another_seed(
    tokenizer: Any, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would draw the known answers again if it had the seed of the first start."""
    monkeypatch.setattr(run, "Engine", lambda model, max_model_len, seed, dtype: seed)
    journal, seeds = Journal(tmp_path / "journal.jsonl", SETTINGS), list[Any]()
    sizes = {"max_model_len": 64, "max_response_tokens": 8}
    arguments = Namespace(model=str(tiny_llama), seed=7, dtype=None, **sizes)
    for _ in range(2):
        seeds.append(make_bench(arguments, float, journal, has_engine=True).engine)
        fill(journal, tokenizer)
    assert seeds == [7, 7 + 4], "four answers were drawn"


def test_the_shares_are_those_of_check(tokenizer: Any, tmp_path: Path) -> None:
    fill(Journal(tmp_path / "journal.jsonl", SETTINGS), tokenizer)
    journal, checked = Journal(tmp_path / "journal.jsonl", SETTINGS), Found()
    for row in (7, 5):  # check takes the quickest first
        group = [rollout(row, n, "a", reward, tokenizer) for n, reward in enumerate([0.0, 1.0, 0.5])]
        found = [
            Refinement(verdict=Verdict.ACCEPTED, text="b", reward=0.75, num_samples=2, num_better=1),
            Refinement(verdict=Verdict.MAX_REWARD),
            Refinement(verdict=Verdict.NOT_BETTER, text="a", reward=0.5, num_samples=2, is_repeated=True),
        ]
        for one in found:
            one.num_prompt_tokens, one.num_generated_tokens = 10 * row, row
        checked.add(group, {"general": found})
        for one in group:
            journal.add_answer(one)
        journal.add_problem(row, group, {"general": found})
    del journal.refined[3]
    said = checked.describe()
    assert found_in(journal).describe() == said and "best of 1: 25.0%" in said
    del journal
    again = Journal(tmp_path / "journal.jsonl", SETTINGS)
    del again.refined[3]
    assert found_in(again).describe() == said, "also as a run that goes on reads them"


def test_which_rows_and_columns_each_file_has(tokenizer: Any, tmp_path: Path) -> None:
    fill(Journal(tmp_path / "journal.jsonl", SETTINGS), tokenizer)
    journal = Journal(tmp_path / "journal.jsonl", SETTINGS)  # as a run that goes on reads it
    asked = [{"role": "user", "content": "q"}]
    rows = [{"prompt": asked, "data_source": "s"}] * 5
    found = formats([*all_answers(journal, rows, tokenizer)])
    told = [{"role": "assistant", "content": "C?"}]  # no half character
    assert found["sft"] == [{"prompt": asked, "completion": told, "messages": asked + told}]
    assert found["preference"] == [
        {"prompt": asked, "chosen": told, "rejected": [{"role": "assistant", "content": "c"}]}
    ]
    assert [(row["sample"], row["response"], row["verdict"], row["refined"]) for row in found["all"]] == [
        (0, "a", "not_better", "A"),
        (1, "b", "max_reward", None),
        (2, "c", "accepted", "C?"),
    ]
    for name, one in found.items():
        lines, table = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.parquet"
        write(lines, one)
        write(table, one)
        assert [json.loads(line) for line in lines.read_text().splitlines()] == pq.read_table(table).to_pylist() == one


def test_what_is_known_is_neither_asked_for_nor_rewarded_again(tokenizer: Any) -> None:
    asked, rewarded, progress = list[list[int]](), list[str](), list[int]()
    end = tokenizer.eos_token_id

    class Written(Engine):
        def __init__(self) -> None:
            self._slots = asyncio.Semaphore(9)

        async def generate(self, prompt_ids: list[int], *request: Any, **sampling: Any) -> list[list[int]]:
            asked.append(prompt_ids)
            return [[*tokenizer.encode("drawn"), end]]

    def reward(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
        rewarded.append(solution_str)
        return 0.5

    bench = Bench(
        engine=Written(),
        tokenizer=tokenizer,
        turn_end=TurnEnd(stops=frozenset({end}), written=end),
        reward=reward,
        max_response_tokens=9,
        max_model_len=99,
        on_progress=progress.append,
    )
    known = {1: {"response_ids": [*tokenizer.encode("known"), end], "reward": 0.25}}
    drawn = asyncio.run(bench.answer(ROW, 0, 3, known))
    assert [one.reward for one in drawn] == [0.5, 0.25, 0.5] and rewarded == ["drawn"] * 2 and len(asked) == 2
    assert sum(progress) == 3
    given = asyncio.run(bench.answer({**ROW, "responses": ["one", "two"]}, 0, 3, known))
    assert [tokenizer.decode(one.response_ids[:-1]) for one in given] == ["one", "known"] and len(asked) == 2
    for none in ([], None):
        assert asyncio.run(bench.answer({**ROW, "responses": none}, 0, 3, {})) == [] and len(asked) == 2
    bench.max_model_len = 2
    assert asyncio.run(bench.answer(ROW, 7, 1, {})) == [] and "raise --max-model-len" in bench.failed[-1]
    half = [{"role": "user", "content": "half a character: \ud83d"}]
    assert asyncio.run(bench.answer({**ROW, "prompt": half}, 7, 2, {})) == [] and "row 7: TypeError" in bench.failed[-1]
    for said in (math.nan, {"score": -math.inf}, None, {"acc": 1}):
        bench.reward = lambda said=said, **_: said
        assert asyncio.run(bench.answer({**ROW, "responses": ["one"]}, 0, 1, {})) == []
    assert len(bench.failed) == 7, "an answer without a reward is left out"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": ...}, "row 0, prompt: Field required"),
        ({"reward_model": {"style": "rule"}}, r"row 0, reward_model\.ground_truth: Field required"),
        ({"data_source": None}, "row 0, data_source: Input should be a valid string"),
        (
            {"prompt": [{"role": "user", "content": [{"text": "q"}]}]},
            r"prompt\.0\.content: Input should be a valid string",
        ),
        ({"responses": "one"}, "row 0, responses: Input should be a valid list"),
        ({"responses": ["one", None]}, r"row 0, responses\.1: Input should be a valid string"),
    ],
)
def test_data_that_nobody_could_answer_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    row = {name: value for name, value in {**ROW, **changes}.items() if value is not ...}
    good, bad = tmp_path / "[1] a.parquet", tmp_path / "b*.parquet"
    pq.write_table(pa.Table.from_pylist([ROW]), good)
    assert read_data([good, good]) == [ROW, ROW]
    pq.write_table(pa.Table.from_pylist([row]), bad)
    with pytest.raises(ValueError, match=said):
        read_data([good, bad])


@pytest.mark.parametrize("path", ["/nowhere", "too/many/parts"])
def test_a_model_that_is_not_there_is_one_line_with_the_option(path: str) -> None:
    said = f"--model {path}: no tokenizer there (.*); set a model folder or a hub id, such as Qwen/"
    with pytest.raises(ValueError, match=said):
        read_tokenizer(path, f"--model {path}")


def test_files_that_are_no_data_are_refused(tmp_path: Path) -> None:
    for missing, reason in (("none.parquet", "No such file or directory"), (".", "Is a directory")):
        said = f"{reason}; give a parquet file, as in --data data/train.parquet"
        with pytest.raises(ValueError, match=f"^--data .*: {said}$"):
            read_data([tmp_path / missing])
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW) + "\n")
    with pytest.raises(ValueError, match="is no parquet file; `online-refiner prepare rows`"):
        read_data([file])
    pq.write_table(pa.Table.from_pylist([ROW])[:0], file)
    with pytest.raises(ValueError, match="there are no rows"):
        read_data([file])
    for name in ("json", "json:", "json:nothing", "no_such:it", ":x"):
        with pytest.raises(ValueError, match=f"--reward {name}: .*give MODULE:NAME"):
            reward_of(name)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("num_replicas=1", r"refiner\.num_replicas has an effect in a run only; set only keys of: template, "),
        ("by_source={s: {template: math}}", r"refiner\.by_source has an effect in a run only"),
        ("extra_body={s:{a:b}}", "found unexpected"),
        ("model_path=m", r"refiner\.model_path has an effect in a run only"),
        ("samples=4", r"at refiner\.temperature=0 all are the same"),
        ("samples", "give KEY=VALUE"),
        ("api_key_env=KEY", r"refiner\.api_key_env is not a key of refiner\.placement=colocated"),
        ("placement=shared", r"refiner\.placement has an effect in a run only"),
        ("temprature=1", r"refiner\.temprature does not exist; .*did you mean temperature\?$"),
        ("skip_reward_at_least=0.5", "give --highest-reward"),  # ways that refine other answers cannot be compared
    ],
)
def test_what_has_no_part_without_a_run_is_refused(key: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config_of("general", Namespace(highest_reward=1.0, max_new_tokens=8, samples=4, refiner=[key]))
