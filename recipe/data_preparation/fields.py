"""What a record's columns hold: one definition of what is missing, and of what is text, for every reader of rows."""

import json
import re
from typing import Any

Record = dict[str, Any]

ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool", "developer")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt"), "assistant"),
}
"""Names of who speaks, and what chat templates call them."""
_CHAT = re.compile(r"""\s*(\[\s*\]\s*$|(array\()?[\[(]?\s*\{[^{}]*?["'](role|from|content)["']\s*:)""")
"""How messages begin that are written as text: as JSON, or as Python or numpy print them."""


class Dropped(Exception):
    """A record that cannot be used.

    Args:
        reason: One of the reasons that the data card counts.
        detail: What is wrong with this record.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        """Keep both."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


def is_missing(value: Any) -> bool:
    """Whether a column holds nothing: null, or a text, list or object without content. 0 and false are values."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, (list, tuple, dict)):
        return all(map(is_missing, value))
    return value is None or value != value  # tables write "not a number" for null


def given(record: Record, *names: str) -> Any:
    """Return what the first of these columns that holds something holds, or None; the case of names does not count."""
    columns = {name.casefold(): value for name, value in record.items() if not is_missing(value)}
    return next((columns[name] for name in names if name in columns), None)


def wanted(record: Record, reason: str, *names: str) -> Dropped:
    """Return that a record has none of these columns, or nothing in them."""
    return Dropped(reason, f"give a column {' or '.join(names)}; there are {', '.join(map(str, record)) or 'none'}")


def text_in(record: Record, *names: str) -> str:
    """Return a column that is text or a number as text, or nothing."""
    value = given(record, *names)
    return str(value).strip() if isinstance(value, (str, int, float)) else ""


def question_in(record: Record, *names: str) -> str:
    """Return the question that one of these columns asks, as text or as the only message of a chat.

    Raises:
        Dropped: ``no question``.
    """
    value = given(record, *names)
    if value is None:
        raise wanted(record, "no question", *names)
    messages = messages_in(value, "no question")
    if len(messages) != 1:
        raise Dropped("no question", f"it is a chat of {len(messages)} messages: give one of the user")
    return messages[0]["content"].strip()


def messages_in(value: Any, reason: str) -> list[dict[str, str]]:
    """Return chat messages up to the last one of the user: a text is one, unless it is JSON of messages.

    Raises:
        Dropped: For this reason: there is no such message, an empty one, or one that is no text.
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
