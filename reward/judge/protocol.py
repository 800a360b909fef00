"""What judges and the trusted process say: a line of JSON, and behind it arguments, a result or the reply.

Every message bears the number of its question, so that nothing that comes late is taken for the answer to another. What
comes to a judge begins with a secret of the two: results hold bytes that a program chose, and must never be read as
anything else, whatever has happened to the stream before.
"""

import json
import pickle
from collections.abc import Callable
from typing import Any

SECRET_BYTES = 16
BROKEN_STATUS = 113
"""Exit status of a judge that was sent what it did not expect."""
MEMORY_STATUS = 114
"""Exit status of a judge whose memory did not do for a message."""
ENDED_STATUS = 115
"""Exit status of a judge whose test code ended its own process."""
READY = b"ready"
"""What a judge says ahead of its work on a question, when all is loaded: from there on the time is the question's."""
_QUESTION, _RESULT = b"?", b"="
MAX_BODY_BYTES = 1 << 28
MAX_MESSAGE_BYTES = MAX_BODY_BYTES + (1 << 12)

Call = Callable[[str, str], tuple[str, bytes, float]]
"""(function of the answer, arguments as text) -> (how the run ended, what it returned or raised as text, seconds)"""


class BrokenProtocolError(Exception):
    """A judge said what it may not."""


def call_message(number: int, fn_name: str, arguments: str) -> bytes:
    """A question's call of a function of the answer."""
    return _message({"question": number, "call": fn_name}, arguments.encode())


def question_message(secret: bytes, question: tuple) -> bytes:
    """A question, see `Judge.ask`."""
    return secret + _QUESTION + pickle.dumps(question)


def read_question(secret: bytes, message: bytes) -> tuple:
    """What `question_message` was given.

    Raises:
        BrokenProtocolError: it is no question, or of nobody who knows the secret.
    """
    return pickle.loads(_behind(secret + _QUESTION, message))


def result_message(secret: bytes, number: int, num_calls: int, outcome: str, result: bytes, seconds: float) -> bytes:
    """What the call of this rank (from 1) in its question came to; `result` is the answer's."""
    header = {"question": number, "call": num_calls, "outcome": outcome, "seconds": seconds}
    return secret + _RESULT + _message(header, result)


def read_result(secret: bytes, number: int, num_calls: int, message: bytes) -> tuple[str, bytes, float]:
    """How the run of this call ended, what it returned or raised as text, and the seconds that count as the answer's.

    Raises:
        BrokenProtocolError: it is of another call, or of nobody who knows the secret.
    """
    header, result = _header(number, _behind(secret + _RESULT, message))
    outcome, seconds = header.get("outcome"), header.get("seconds")
    if header.get("call") != num_calls or not isinstance(outcome, str) or not isinstance(seconds, (int, float)):
        raise BrokenProtocolError("the result of another call")
    return outcome, result, seconds


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


def _behind(start: bytes, message: bytes) -> bytes:
    if not message.startswith(start):
        raise BrokenProtocolError("what was not expected")
    return message[len(start) :]


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
