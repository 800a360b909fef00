"""Access to a record's columns, with one definition of missing values and texts for all readers of rows."""

import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

Record = dict[str, Any]
NAME_QUESTION = "name the columns of the question, as in --question context,question"
NAME_ANSWER = "name the column of the answer, as in --answer target"

ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool", "developer")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt"), "assistant"),
}
"""The names that data sets give to speakers, each with the role that chat templates use."""
_CHAT = re.compile(r"""\s*(\[\s*\]\s*$|(array\()?[\[(]?\s*\{[^{}]*?["'](role|from|content)["']\s*:)""")
"""The beginning of messages that are stored as text: as JSON, or as Python or numpy print them."""


class TrackedRecord(dict[str, Any]):
    """A record that remembers the columns which ``[]`` and ``given`` have read; iteration and ``get`` read none."""

    def __init__(self, record: Record) -> None:
        """Copy a record; none of its columns counts as read."""
        super().__init__(record)
        self.read: set[str] = set()

    def __getitem__(self, column: str) -> Any:
        """Return what a column holds, and remember that it was read."""
        self.read.add(column)
        return super().__getitem__(column)


class Dropped(Exception):
    """A record that cannot be used.

    Args:
        reason: One of the reasons that the data card counts.
        detail: What is wrong with this record.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        """Keep the reason and the detail."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


def is_missing(value: Any) -> bool:
    """Return whether a value is null, not finite, or a text, list or object without content. 0 and false are values."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, (list, tuple, dict)):
        return all(map(is_missing, value.values() if isinstance(value, dict) else value))
    return value is None or _is_no_number(value)  # tables write "not a number" for null


def _is_no_number(value: Any) -> bool:
    """Return whether a value, or one within it, is a number that is not finite."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(_is_no_number, value.values() if isinstance(value, dict) else value))
    if isinstance(value, Decimal):
        return not value.is_finite()
    return not math.isfinite(value) if isinstance(value, float) else bool(value != value)  # a time may be none


def column_of(record: Record, name: str) -> str | None:
    """Return the column of this name that holds something, or None; case and surrounding blanks do not count.

    Raises:
        Dropped: ``ambiguous columns``: several columns have this name, none has it exactly, and they differ.
    """
    folded = name.strip().casefold()
    columns = [column for column in record if column.strip().casefold() == folded]
    columns = [column for column in columns if not is_missing(record.get(column))]
    if name in columns or not columns:
        return name if columns else None
    if any(record.get(column) != record.get(columns[0]) for column in columns):
        raise Dropped("ambiguous columns", f"{', '.join(map(repr, columns))} all mean {name}: rename all but one")
    return columns[0]


def given(record: Record, *names: str) -> Any:
    """Return the value of the first of these columns that is not empty, or None.

    A name such as ``reward_model.ground_truth`` means a value within an object, if no column has that name.
    """
    for name in names:
        if (column := column_of(record, name)) is not None:
            return record[column]
        outer, _, inner = name.partition(".")
        if inner and (column := column_of(record, outer)) is not None:
            value = given(record[column], inner) if isinstance(record.get(column), dict) else None
            if value is not None:
                return value
    return None


def wanted(record: Record, reason: str, *names: str, remedy: str = "") -> Dropped:
    """Return the error that a record lacks all of these columns, or that they are empty."""
    there = ", ".join(map(_shown, record)) or "none"
    return Dropped(reason, f"give a column {' or '.join(names)}; there are {there}{remedy and f'; {remedy}'}")


def _shown(column: str) -> str:
    return column if column == column.strip() != "" else repr(column)


def answer_in(record: Record, *names: str) -> Any:
    """Return the value of the first of these columns that is not empty, or None.

    Raises:
        Dropped: ``no answer``: a number within the value is not finite.
    """
    value = given(record, *names)
    if _is_no_number(value):
        raise Dropped("no answer", f"{str(value)[:80]} holds a number that is not finite: give a number or null")
    return value


def asked_in(record: Record, chosen: Sequence[str], *names: str) -> Any:
    """Return the texts of all chosen columns together, or, if none is chosen, the value of the first named column.

    Raises:
        Dropped: ``no question``: one of several chosen columns holds neither text nor a number.
    """
    if len(chosen) < 2:
        return given(record, *(chosen or names))
    for name in chosen:
        if not isinstance(value := given(record, name), str | int | float | None):
            what = f"column {name} holds {type(value).__name__}, and --question joins columns of text"
            raise Dropped("no question", f"{what}: write it into the question's text")
    return "\n\n".join(filter(None, (text_in(record, name) for name in chosen)))


def text_in(record: Record, *names: str) -> str:
    """Return the first of these columns as text if it holds text or a number, else an empty text."""
    value = given(record, *names)
    return str(value).strip() if isinstance(value, (str, int, float)) else ""


def question_in(record: Record, *names: str, chosen: Sequence[str] = ()) -> str:
    """Return the question that one of these columns asks, as text or as the only message of a chat.

    Args:
        record: The record.
        names: Names of columns, of which the first that is not empty is used.
        chosen: Names of columns that form the question together, in place of ``names``.

    Raises:
        Dropped: ``no question``.
    """
    value = asked_in(record, chosen, *names)
    if is_missing(value):
        raise wanted(record, "no question", *(chosen or names), remedy=NAME_QUESTION)
    messages = messages_in(value, "no question")
    if len(messages) != 1:
        raise Dropped("no question", f"it is a chat of {len(messages)} messages: give one of the user")
    return messages[0]["content"].strip()


def messages_in(value: Any, reason: str) -> list[dict[str, str]]:
    """Return chat messages up to the user's last one; a text becomes one message, unless it is JSON of messages.

    Raises:
        Dropped: ``reason``: the value is no list of messages with known roles and texts, there is no message of the
            user, or the user's last message is empty.
    """
    if isinstance(value, str) and _CHAT.match(value):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Dropped(reason, f"messages as text that is no JSON ({error}): give a list or its JSON") from error
    elif isinstance(value, str):
        value = {"role": "user", "content": value}
    speakers, contents = [], []
    for message in value if isinstance(value, list) else [value]:
        if not isinstance(message, dict):
            raise Dropped(reason, f"a message is {type(message).__name__}: give role and content")
        role = text_in(message, "role", "from").casefold()
        if role not in ROLES:
            raise Dropped(reason, f"a message's role is {role or 'missing'}: give one of {', '.join(ROLES)}")
        speakers.append(ROLES[role])
        contents.append(next((message[key] for key in ("content", "value") if key in message), None))
    while speakers and speakers[-1] != "user":
        speakers.pop()
    messages = [
        {"role": role, "content": _text_of(content, reason)}
        for role, content in zip(speakers, contents, strict=False)  # what stands after the user's last is left out
    ]
    if not messages or not messages[-1]["content"].strip():
        raise Dropped(reason, "it ends with no words of the user")
    return messages


def _text_of(content: Any, reason: str) -> str:
    """Return a message's content: text, or parts of text, which are joined."""
    texts = []
    for part in content if isinstance(content, list) else [{"text": content}]:
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None
        if not isinstance(text, str):
            raise Dropped(reason, f"a message's content is no text, but {str(content)[:60]}")
        texts.append(text)
    return "".join(texts)
