"""Conversion of raw records to rows in verl's schema; unusable records are dropped with a reason, never silently."""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from recipe.data_preparation.fields import (
    NAME_ANSWER,
    NAME_QUESTION,
    Dropped,
    Record,
    answer_in,
    asked_in,
    given,
    is_missing,
    messages_in,
    question_in,
    text_in,
    wanted,
)
from recipe.data_preparation.media import PLACE, add_images
from reward.judge import JudgeLostError
from reward.math import MathProblem
from reward.problem import Problem

Row = dict[str, Any]
Build = Callable[[Record, int, str], Row]
"""A function that makes a row from a record, its position in the source, and the row's ``data_source``."""
Lines = Callable[[Record, Row], Iterable[dict[str, Any]]]
"""A function that returns the objects which a kept record adds to a file of JSON lines."""
ANSWER_FORMAT = {
    True: "Write a Python function or method with the given name and arguments.",
    False: "Write a Python program that reads standard input and prints to standard output.",
}


QUESTION = ("question", "problem", "prompt")


def apps_row(record: Record, index: int, name: str) -> Row:
    """Build a row from an APPS record, its tests checked.

    The record has ``question``, ``input_output`` (JSON text or object; also with ``test_code``), and optionally
    ``problem_id``, ``starter_code``, ``difficulty``, ``solutions`` (a list, or its JSON).

    Raises:
        Dropped: ``no question``, ``no tests``, ``broken JSON``, ``unequal lengths``, ``malformed tests`` or
            ``tests not tried``.
    """
    problem_id = text_in(record, "problem_id") or str(index)
    question = question_in(record, *QUESTION)
    tests = _tests(record)
    try:
        problem = Problem.from_input_output(tests, problem_id=problem_id)
    except ValueError as error:
        raise Dropped("malformed tests", str(error).removeprefix(f"problem {problem_id}: ")) from error
    except JudgeLostError as error:
        raise Dropped("tests not tried", str(error)) from error
    tests["examples"] = _examples(question, problem)
    parts = [question, ANSWER_FORMAT[problem.kind != "stdin"]]
    if isinstance(starter := given(record, "starter_code"), str):
        code = starter.strip("\n")
        parts.append(f"Start from this code:\n```python\n{code}\n```")
    elif problem.fn_name:
        parts.append(f"Its name is `{problem.fn_name}`.")
    parts.append("Answer with one Python code block.")
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": "\n\n".join(parts)}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps({**tests, "problem_id": problem_id})},
        "extra_info": {
            "problem_id": problem_id,
            "question": question,
            "difficulty": text_in(record, "difficulty"),
            "num_tests": problem.num_tests,
            "solution": next(iter(solutions_of(record)), ""),
            "index": index,
        },
    }


def _examples(question: str, problem: Problem) -> list[int]:
    """Return the tests that a question shows: those whose input and output it holds as whole lines."""

    def lines(text: str) -> str:
        return "\n".join(["", *(line.strip() for line in text.strip().splitlines()), ""])

    if problem.kind != "stdin":
        return []
    shown = lines(question)
    tests = enumerate(zip(problem.inputs, problem.outputs, strict=True))
    return [index for index, test in tests if all(text.strip() and lines(text) in shown for text in test)]


def _tests(record: Record) -> dict[str, Any]:
    value = given(record, "input_output")
    if value is None:
        raise wanted(record, "no tests", "input_output")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise Dropped("broken JSON", f"input_output: {error}") from error
    if not isinstance(value, dict):
        raise Dropped("malformed tests", f"input_output is {type(value).__name__}: give an object")
    names = ("test_code",) if value.get("test_code") else ("inputs", "outputs")
    if not all(value.get(name) for name in names):
        raise Dropped("no tests")
    tests = {key: value[key] for key in (*names, "fn_name") if value.get(key) is not None}
    if any(not isinstance(tests[name], list) for name in names):
        raise Dropped("malformed tests", f"{' or '.join(names)} is no list")
    if len({len(tests[name]) for name in names}) > 1:
        raise Dropped("unequal lengths", f"{len(tests['inputs'])} inputs, {len(tests['outputs'])} outputs")
    return tests


def _instruction_in(record: Record) -> str:
    """Return a record's instruction, followed by its ``input`` if the record has one."""
    return "\n\n".join(filter(None, (text_in(record, "instruction"), text_in(record, "input"))))


VERLS_ANSWER = "reward_model.ground_truth"
ANSWER = ("answer", "final_answer", "expected_answer", "ground_truth", "label", VERLS_ANSWER)
"""The columns of the right answer; the first one that is not empty is used."""


def is_verls(record: Record) -> bool:
    """Return whether a record is a row in verl's schema: its prompt is a chat, and it has ``reward_model``."""
    return isinstance(record.get("prompt"), list) and isinstance(record.get("reward_model"), dict)


def own_row(
    record: Record,
    index: int,
    name: str,
    *,
    question: Sequence[str] = (),
    answer: Sequence[str] = ANSWER,
    images: str | None = None,
) -> Row:
    """Build a row for the user's own reward, which gets the answer as text (a list or an object as JSON).

    Args:
        record: The record, which has ``QUESTION``, ``instruction`` (with an optional ``input``) or ``messages``.
        index: The record's position in the source.
        name: The row's ``data_source``.
        question: The columns of the question, in place of these.
        answer: Columns of the answer, of which the first that is not empty is used; none if the reward needs none.
        images: The column of the question's pictures; None if it has none.

    Raises:
        Dropped: ``no question``, ``no answer`` or ``images do not fit``.
    """
    value = asked_in(record, question, *QUESTION)
    if not question:
        value = value or _instruction_in(record) or given(record, "messages")
    if not value:
        names = question or (*QUESTION, "instruction", "messages")
        raise wanted(record, "no question", *names, remedy=NAME_QUESTION)
    right = answer_in(record, *answer)
    if right is None and answer:
        remedy = f"{NAME_ANSWER}, or set --no-answers if your reward needs none"
        raise wanted(record, "no answer", *answer, remedy=remedy)
    text = right if isinstance(right, str) else json.dumps(right, ensure_ascii=False, default=str)
    row: Row = {
        "data_source": name,
        "prompt": messages_in(value, "no question"),
        "ability": "own",
        "reward_model": {"style": "rule", "ground_truth": "" if right is None else text},
        "extra_info": {"index": index},
    }
    if images is not None and (shown := given(record, images)) is not None:
        add_images(row, shown)
    return row


MESSAGES = ("context_messages", "messages", "conversations", "prompt")
"""The columns of a chat; the first one that holds a chat is used."""


def dialogue_row(record: Record, index: int, name: str) -> Row:
    """Build a row from a record with a dialogue prompt, which a reward model scores.

    The record has one of ``MESSAGES`` (text, or messages with role and content, which is text or parts of text) or
    ``instruction`` (with an optional ``input``). Answers after the last user message are left out.

    Raises:
        Dropped: ``no prompt``.
    """
    value = given(record, *MESSAGES) or _instruction_in(record)
    if not value:
        raise wanted(record, "no prompt", *MESSAGES, "instruction")
    return {
        "data_source": name,
        "prompt": messages_in(value, "no prompt"),
        "ability": "dialogue",
        "reward_model": {"style": "model", "ground_truth": ""},
        "extra_info": {"index": index},
    }


def solutions_of(record: Record) -> list[str]:
    """Return the reference solutions of an APPS record that compile."""
    solutions = given(record, "solutions")
    if isinstance(solutions, str):
        try:
            solutions = json.loads(solutions)
        except ValueError:
            solutions = [solutions]  # the code itself
    return list(filter(_compiles, solutions if isinstance(solutions, list) else ()))


def _compiles(solution: Any) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes and comparisons in other people's code
            compile(solution, "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return False
    return not is_missing(solution)


_FORMAL = re.compile(r"[^\w\s.,!?]|[\d_]|\b(?!a\b)\w\b")  # a sign, a number or a name


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case and without punctuation, by which overlaps are found."""
    return "".join(c.lower() if c.isalnum() else " " for c in text).split()


def identity_of(text: str) -> int:
    """Return a hash of a problem that ignores white space and, in plain prose, case and punctuation."""
    return hash(tuple(text.split() if _FORMAL.search(text) else words_of(text)))


def _asked(row: Row) -> list[str]:
    """Return a row's question without its source's standard text, or else its whole chat and then each message."""
    said = [message["content"] for message in row["prompt"]]
    question = row["extra_info"].get("question") if row["ability"] in ("math", "code") else None  # else the record's
    return [question] if question else ["\n".join(said), *said]


def _agree(first: Row, second: Row) -> bool:
    """Return whether the labels of two rows with the same question can both be right."""
    labels = [row["reward_model"]["ground_truth"] for row in (first, second)]
    kind = second["ability"]
    if labels[0] == labels[1] or kind not in _AGREE:
        return True
    return _AGREE[kind](*labels)


def _same_text(first: str, second: str) -> bool:
    return first.split() == second.split()


def _same_number(first: str, second: str) -> bool:
    return MathProblem.from_answer(first, problem_id="").score(f"\\boxed{{{second}}}").outcome == "pass"


def _same_outputs(first: str, second: str) -> bool:
    outputs, others = _outputs(json.loads(first)), _outputs(json.loads(second))
    return all(outputs[given] == others[given] for given in outputs.keys() & others.keys())


def _outputs(tests: Mapping[str, Any]) -> dict[str, str]:
    """Return the expected output of each input, both as comparable text; test code has no inputs."""
    pairs = zip(tests.get("inputs", ()), tests.get("outputs", ()), strict=True)
    return {" ".join(json.dumps(given).split()): " ".join(json.dumps(right).split()) for given, right in pairs}


_AGREE: dict[str, Callable[[str, str], bool]] = {
    "math": _same_number,
    "own": _same_text,
    "code": _same_outputs,
}
"""Functions that return whether two labels of one question agree, by ``ability``; a puzzle may have several answers."""


def contradiction(row: Row) -> Dropped:
    """Return why a row is dropped whose question has another label in another row: one of the labels is wrong."""
    return Dropped("contradictory labels", f"{row['reward_model']['ground_truth'][:80]}")


class Screen:
    """A filter that drops duplicates of earlier rows, and rows that overlap with a benchmark.

    Prompts that are too long are left to verl (``data.filter_overlong_prompts``).

    Args:
        benchmarks: Texts of evaluation problems.
    """

    NGRAM = 13  # words in a row; the usual length for contamination checks since GPT-3 (arXiv 2005.14165, appendix C)

    def __init__(self, benchmarks: Iterable[str]) -> None:
        """Index the benchmarks."""
        self.benchmark_parts = {part for text in benchmarks for part in self._parts(text)}
        self._first: dict[int, Row] = {}
        self.contradicted: set[int] = set()
        """The identities of questions that have several labels, also of questions whose rows were kept before."""

    def check(self, row: Row) -> int:
        """Check one row, and return the identity of its question.

        Raises:
            Dropped: ``duplicate``, ``contradictory labels`` or ``overlaps with a benchmark``.
        """
        texts = _asked(row)
        identity = identity_of(texts[0])
        if "images" in row:  # others may be asked about in the same words
            words = identity_of(texts[0].replace(PLACE, " "))
            identity = hash((words, *(image["bytes"] for image in row["images"])))
        if identity in self._first:
            if identity in self.contradicted or not _agree(self._first[identity], row):
                self.contradicted.add(identity)
                raise contradiction(row)
            raise Dropped("duplicate")
        self._first[identity] = row
        if any(not self.benchmark_parts.isdisjoint(self._parts(text)) for text in texts):
            raise Dropped("overlaps with a benchmark")
        return identity

    def _parts(self, text: str) -> set[int]:
        """Return the hashes of all runs of words with a fixed length in a text; a shorter text is one run."""
        words = words_of(text)
        runs = {hash(tuple(words[start : start + self.NGRAM])) for start in range(len(words) - self.NGRAM + 1)}
        return runs or {identity_of(text)}
