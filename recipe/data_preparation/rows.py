"""Raw records to rows in verl's schema; what cannot be used is dropped with its reason, never silently."""

import json
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from recipe.data_preparation.sources import Record
from reward.judge import JudgeLostError
from reward.problem import Problem

Row = dict[str, Any]
ANSWER_FORMAT = {
    True: "Write a Python function or method with the given name and arguments.",
    False: "Write a Python program that reads standard input and prints to standard output.",
}


class Dropped(Exception):
    """A record that cannot be used.

    Args:
        reason: One of the reasons that the data card counts.
        detail: What is wrong with this record.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        """Keep both."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def apps_row(record: Record, index: int, name: str) -> Row:
    """Build a row from an APPS record, its tests checked.

    Args:
        record: ``question``, ``input_output`` (JSON text or object; also with ``test_code``), and where there are any
            ``problem_id``, ``starter_code``, ``difficulty``, ``solutions``.
        index: Position in the source.
        name: ``data_source`` of the row.

    Raises:
        Dropped: ``no question``, ``no tests``, ``broken JSON``, ``unequal lengths``, ``malformed tests`` or
            ``tests not tried``.
    """
    problem_id = str(record.get("problem_id") or index)
    question = (record.get("question") or "").strip()
    if not question:
        raise Dropped("no question")
    tests = _tests(record.get("input_output"))
    starter = (record.get("starter_code") or "").strip("\n")
    try:
        problem = Problem.from_input_output(tests, problem_id=problem_id, starter_code=starter)
    except ValueError as error:
        raise Dropped("malformed tests", str(error)) from error
    except JudgeLostError as error:
        raise Dropped("tests not tried", str(error)) from error
    tests["examples"] = _examples(question, problem)
    parts = [question, ANSWER_FORMAT[problem.kind != "stdin"]]
    if starter:
        parts.append(f"Start from this code:\n```python\n{starter}\n```")
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
            "difficulty": record.get("difficulty") or "",
            "num_tests": problem.num_tests,
            "solution": next((solution for solution, fault in solutions_of(record) if not fault), ""),
            "index": index,
        },
    }


def _examples(question: str, problem: Problem) -> list[int]:
    """Return the tests that a question shows: standard input and output stand in it, as whole lines."""

    def lines(text: str) -> str:
        return "\n".join(["", *(line.strip() for line in text.strip().splitlines()), ""])

    if problem.kind != "stdin":
        return []
    shown = lines(question)
    tests = enumerate(zip(problem.inputs, problem.outputs, strict=True))
    return [index for index, test in tests if all(text.strip() and lines(text) in shown for text in test)]


def _tests(value: Any) -> dict[str, Any]:
    if not value:
        raise Dropped("no tests")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise Dropped("broken JSON", str(error)) from error
    if isinstance(value, dict) and value.get("test_code"):
        return {key: value[key] for key in ("test_code", "fn_name") if value.get(key) is not None}
    if not isinstance(value, dict) or not value.get("inputs") or not value.get("outputs"):
        raise Dropped("no tests")
    if len(value["inputs"]) != len(value["outputs"]):
        raise Dropped("unequal lengths", f"{len(value['inputs'])} inputs, {len(value['outputs'])} outputs")
    return {key: value[key] for key in ("inputs", "outputs", "fn_name") if value.get(key) is not None}


def dialogue_row(record: Record, index: int, name: str) -> Row:
    """Build a row from a record with a dialogue prompt, whose reward is a model's.

    Args:
        record: One of ``context_messages``, ``messages`` (role and content), ``prompt`` (text or messages), ``turns``
            (texts, the first is taken) or ``instruction`` (with an ``input`` where there is one). Answers behind the
            last user message are left out.
        index: Position in the source.
        name: ``data_source`` of the row.

    Raises:
        Dropped: ``no prompt``.
    """
    messages = _messages(record)
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages or not messages[-1]["content"].strip():
        raise Dropped("no prompt")
    return {
        "data_source": name,
        "prompt": messages,
        "ability": "dialogue",
        "reward_model": {"style": "model", "ground_truth": ""},
        "extra_info": {"index": index},
    }


def _messages(record: Record) -> list[dict[str, str]]:
    for key in ("context_messages", "messages", "prompt"):
        value = record.get(key)
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if value:
            return [{"role": str(message["role"]), "content": str(message["content"])} for message in value]
    if record.get("turns"):
        return [{"role": "user", "content": str(record["turns"][0])}]
    if record.get("instruction"):
        extra = record.get("input") or (record.get("instances") or [{}])[0].get("input") or ""
        return [{"role": "user", "content": "\n\n".join(filter(None, [record["instruction"], extra]))}]
    return []


def solutions_of(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the reference solutions of an APPS record, each with why it does not compile, if so."""
    try:
        solutions = json.loads(record.get("solutions") or "[]")
    except ValueError:
        return
    for solution in solutions:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes and comparisons in other people's code
                compile(solution, "solution.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            yield solution, str(error)
        else:
            yield solution, ""


def words_of(text: str) -> list[str]:
    """Return a text's words, lower case and without punctuation: what duplicates and overlaps are found by."""
    return "".join(c.lower() if c.isalnum() else " " for c in text).split()


class Screen:
    """Drops what stood in the data before, and what overlaps with a benchmark.

    Prompts that are too long are verl's to drop (``data.filter_overlong_prompts``).

    Args:
        benchmarks: Texts of evaluation problems.
    """

    NGRAM = 13  # words in a row; the usual length for contamination checks since GPT-3 (arXiv 2005.14165, appendix C)

    def __init__(self, benchmarks: Iterable[str]) -> None:
        """Index the benchmarks."""
        self.benchmark_ngrams = {ngram for text in benchmarks for ngram in self._ngrams(words_of(text))}
        self._seen: set[int] = set()

    def check(self, row: Row) -> None:
        """Check one row.

        Raises:
            Dropped: ``duplicate`` or ``overlaps with a benchmark``.
        """
        words = words_of("\n".join(message["content"] for message in row["prompt"]))
        fingerprint = hash(tuple(words))
        if fingerprint in self._seen:
            raise Dropped("duplicate")
        self._seen.add(fingerprint)
        if not self.benchmark_ngrams.isdisjoint(self._ngrams(words)):
            raise Dropped("overlaps with a benchmark")

    def _ngrams(self, words: list[str]) -> Iterator[int]:
        for start in range(max(1, len(words) - self.NGRAM + 1)):
            yield hash(tuple(words[start : start + self.NGRAM]))
