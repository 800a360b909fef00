"""What judges say to the trusted process: a line of JSON, and behind it a call's arguments or the reply.

Every message bears the number of its question, so that nothing that comes late is taken for the answer to another.
"""

import json
from collections.abc import Callable
from typing import Any

MAX_BODY_BYTES = 1 << 28
MAX_MESSAGE_BYTES = MAX_BODY_BYTES + (1 << 12)

Call = Callable[[str, str], tuple[str, bytes]]
"""(function of the answer, arguments as text) -> (how the run ended, what it returned or raised as text)"""


class BrokenProtocolError(Exception):
    """A judge said what it may not."""


def call_message(number: int, fn_name: str, arguments: str) -> bytes:
    """A question's call of a function of the answer."""
    return _message({"question": number, "call": fn_name}, arguments.encode())


def reply_message(number: int, seconds: float, body: bytes) -> bytes:
    """The end of a question; `body` is JSON with `value` or `error`, `seconds` the CPU seconds that it took."""
    return _message({"question": number, "seconds": seconds}, body)


def read_call(number: int, message: bytes) -> tuple[str, str] | None:
    """The function's name and the arguments if this is a call of the question; None: it is the reply.

    Raises:
        BrokenProtocolError: it is neither.
    """
    header, body = _header(number, message)
    if "call" not in header:
        return None
    fn_name = header["call"]
    if not isinstance(fn_name, str):
        raise BrokenProtocolError(f"a call of {fn_name!r}")
    try:
        return fn_name, body.decode()
    except UnicodeDecodeError as error:
        raise BrokenProtocolError(f"arguments that are no text ({error})") from error


def read_reply(number: int, message: bytes, is_value: Callable[[Any], bool]) -> tuple[Any, float, str]:
    """Value, CPU seconds, and the error because of which there is no value, or "".

    Raises:
        BrokenProtocolError: it is no reply to this question, or its value is none of the task's.
    """
    header, body = _header(number, message)
    reply, seconds = _object(body), header.get("seconds")
    if not isinstance(seconds, float):
        raise BrokenProtocolError("a reply without seconds")
    if isinstance(error := reply.get("error"), str) and error:
        return None, seconds, error
    if "value" not in reply or not is_value(reply["value"]):
        raise BrokenProtocolError("a reply that the task does not have")
    return reply["value"], seconds, ""


def _message(header: dict[str, Any], body: bytes) -> bytes:
    return json.dumps(header).encode() + b"\n" + body


def _header(number: int, message: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, body = message.partition(b"\n")
    header = _object(line)
    if header.get("question") != number:
        raise BrokenProtocolError("an answer to another question")
    return header, body


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenProtocolError(f"no JSON ({error})") from error
    if not isinstance(value, dict):
        raise BrokenProtocolError("no JSON object")
    return value
