"""A refiner that somebody else hosts: servers that speak OpenAI's protocol, asked by URL.

What is sent of a rollout is one user message, the words of the prompt's template; how many tokens and which temperature
is asked for; and what ``refiner.extra_body`` adds. The key is read from the environment of the process that asks. It
stands in no line, log or exception: servers repeat it in theirs, so these are cleared of it.
"""

import asyncio
import functools
import json
import logging
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

import openai
from ray.actor import ActorHandle

from refiner_worker.client import HostedRefiner, RefinerClient, RefinerRequestError, RunEndedError
from refiner_worker.config import External, secret

logger = logging.getLogger(__name__)

GONE_AFTER_S = 30.0
MIN_RETRIES = 3
"""A server that nobody has heard of for so long, while a request was repeated so often, is gone for this step; and so
is one that was silent for all the time of a request."""
PROBE_TIMEOUT_S = 10.0
TRIAL_TIMEOUT_S = 60.0
TRIAL_TOKENS = 16
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
MAX_ANSWER_BYTES = 4 << 20
Choice = tuple[str, str, bool] | RefinerRequestError
"""One choice of a server's answer: its thought, its text, and whether the text came to its end; or why it has none."""
MAX_TOKENS = 1 << 31
"""More of them in a bill is a mistake."""
MAX_WORDS = 300
MAX_READ = 2000
"""Characters of a server's error message: shown in one line, and read to make that line."""
END_REASONS = ("stop", "eos", "eos_token", "end_turn")
"""Reasons for which an answer ends of itself; some servers have their own words."""
BUSY_STATUSES = (408, 409, 425, 429)
"""Statuses below 500 after which the same request may be answered."""
KEY_STATUSES = (401, 403, 407)
"""Statuses of a key that is wrong; what a server says beside them may hold a part of it."""
PROXY_STATUSES = (403, 407, 500, 502, 503, 504)
"""Statuses with which a proxy answers in the place of a server that it does not reach, or may not."""


KEEP_STOP: dict[str, dict[str, Any]] = {
    "vllm": {"include_stop_str_in_output": True},
    "sglang": {"no_stop_trim": True},
}
"""How a server is asked to keep the text at which it ends, by the owner that its list of models names. Others leave it
out, and do not say whether they ended there."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Served:
    """What a server is asked for."""

    model: str
    keep_stop: dict[str, Any] = field(default_factory=dict)
    """An entry of KEEP_STOP; empty if it has none."""


@dataclass(slots=True, kw_only=True)
class ExternalClient(RefinerClient):
    """Sends words to the server with the fewest of its requests in flight.

    Picklable until its first request, as its parent. A server that is gone is taken out of this client; the next one,
    of the next step, has it again if it answers then.
    """

    config: External
    servers: dict[str, Served]
    """What each server is asked for, by URL."""
    _heard_at: dict[str, float] = field(default_factory=dict)
    _served_at: dict[str, float] = field(default_factory=dict)
    _doubted: set[str] = field(default_factory=set)

    @property
    def handles(self) -> list[ActorHandle]:
        """None: no server is an actor of this run, and each gives up what nobody waits for any more."""
        return []

    async def write(
        self, content: str, stop: str | None, is_part: bool, max_new_tokens: int, bill: Any
    ) -> list[Choice]:
        """Ask for ``refiner.samples`` refinements by one request; a busy or lost server is asked again, after pauses.

        Where the text at which an answer may end (``stop``) is a part of it, a server that would leave it out is not
        told of it. ``bill`` counts retries, and gets the numbers of tokens that the server tells.

        Returns:
            So many: the thought that the server sends apart, what was written, and whether it came to its end, uncut;
            or why there is none.

        Raises:
            RefinerRequestError: If no server answers, one refuses, or what it sends is no answer.
        """
        started_at = time.monotonic()
        while True:
            url = self._choose()
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**bill.num_retries) * random.uniform(0.75, 1)
            served = self.servers[url]
            ends = {"stop": stop, **served.keep_stop} if served.keep_stop or not is_part else {}
            try:
                said = await self._post(
                    url, chat_body(self.config, served.model, content, max_new_tokens, **(ends if stop else {}))
                )
            except asyncio.CancelledError:  # it took too long
                if self._heard_at.get(url, 0.0) < started_at:
                    self.servers.pop(url, None)
                raise
            except RefinerRequestError:  # there is no key where this runs
                raise
            except openai.APIStatusError as error:
                self._refuse(url, error)
                why, pause_s = words(error, self.config), asked_pause_s(error.response.headers) or pause_s
            except Exception as error:  # whatever the network brings: openai has names for a part of it only
                why = words(error, self.config)
            else:
                return self._read(url, said, bill)
            self._doubted.add(url)
            if bill.num_retries >= MIN_RETRIES:
                self._give_up(url, since=started_at)
            if url in self.servers and self.servers.keys() <= self._doubted:
                await self._pause(url, pause_s, started_at, why)
            bill.num_retries += bool(self.servers)

    def _refuse(self, url: str, error: openai.APIStatusError) -> None:
        """Raise RefinerRequestError if the server would say the same again."""
        if error.status_code >= 500:
            return
        self._heard_at[url] = time.monotonic()
        if error.status_code not in BUSY_STATUSES:
            self._doubted.add(url)
            raise RefinerRequestError(words(error, self.config)) from None

    def _read(self, url: str, said: bytes, bill: Any) -> list[Choice]:
        """Return what a server has written (:func:`read`); one whose answer is of no use is in doubt."""
        self._heard_at[url] = time.monotonic()
        self._doubted.add(url)
        written = read(said, bill, self.config)
        self._doubted.discard(url)
        self._served_at[url] = time.monotonic()
        return written

    async def _pause(self, url: str, pause_s: float, started_at: float, why: str) -> None:
        """Wait before the next try, where all servers are in doubt.

        Raises:
            RefinerRequestError: If it would be too late, with the reason of the last failure.
        """
        if time.monotonic() + pause_s > started_at + self.config.request_timeout_s:
            served_at = max(started_at, self._served_at.get(url, 0.0))
            if time.monotonic() - served_at > self.config.request_timeout_s / 2:  # others need not wait as long
                self.servers.pop(url, None)
            raise RefinerRequestError(f"{why}; the next try would be too late")
        await asyncio.sleep(pause_s)

    def _choose(self) -> str:
        """Return the server with the fewest requests in flight, rather one whose last answer was of use."""
        if not self.servers:
            raise RefinerRequestError("no server of refiner.url answers")
        return min(self.servers, key=lambda url: (url in self._doubted, self._num_in_flight.get(url, 0)))

    def _give_up(self, url: str, since: float) -> None:
        """Take a server out if it is gone: tried again and again since then, and nobody has heard of it."""
        patience_s = min(GONE_AFTER_S, self.config.request_timeout_s / 2)
        if time.monotonic() - max(since, self._heard_at.get(url, since)) > patience_s:
            self.servers.pop(url, None)

    async def _post(self, url: str, body: dict[str, Any]) -> bytes:
        server = connection(asyncio.get_running_loop(), url, self.config.api_key_env, self.config.request_timeout_s)
        self._num_in_flight[url] = self._num_in_flight.get(url, 0) + 1
        try:
            return await sent(server.chat.completions.with_streaming_response.create(**body))
        finally:
            self._num_in_flight[url] -= 1


@functools.lru_cache  # for all steps: to make one takes tenths of a second
def connection(loop: asyncio.AbstractEventLoop, *place: Any) -> openai.AsyncOpenAI:
    """Return the client of a server (:func:`connect`), which lives in one event loop."""
    return connect(*place)


def connect(url: str, api_key_env: str | None, timeout_s: float) -> openai.AsyncOpenAI:
    """Return a new client of a server; retries are ours, which look at the time that is left.

    Raises:
        RefinerRequestError: If there is no key. Its variable is not named: that name may be the key itself.
    """
    key = secret(api_key_env)
    if api_key_env is not None and not key:
        raise RefinerRequestError("refiner.api_key_env names no variable that is set in this environment")
    client = openai.DefaultAsyncHttpxClient(follow_redirects=False)  # nobody else reads questions and responses
    # Without a key openai's client would look for one of its own.
    return openai.AsyncOpenAI(base_url=url, api_key=key or "none", timeout=timeout_s, max_retries=0, http_client=client)


async def sent(response: Any) -> bytes:
    """Return what a server sends, of which it may send without an end."""
    async with response as opened:
        found = bytearray()
        async for part in opened.iter_bytes():
            found += part
            if len(found) > MAX_ANSWER_BYTES:
                break
        return bytes(found)


class ExternalRefiner(HostedRefiner):
    """Stands where a ``RefinerGroup`` stands, but hosts nothing."""

    def __init__(self, refiner: External) -> None:
        self._refiner = refiner
        self._servers: dict[str, Served] = {}

    def client(self) -> ExternalClient:
        """Return a client of the servers that answered last."""
        return ExternalClient(servers=dict(self._servers), config=self._refiner)

    def wake_up(self) -> int:
        """Ask every server whether it is there, as before every step; nothing can be started again."""
        urls = self._refiner.url

        async def ask() -> list[Served | None]:
            return await asyncio.gather(*map(self._ask, urls))

        self._servers = {url: one for url, one in zip(urls, asyncio.run(ask()), strict=True) if one}
        if not self._servers:
            logger.warning("no server answers at %s: this step goes without their refinements", ", ".join(urls))
        return 0

    async def _ask(self, url: str) -> Served | None:
        """Return what a server is to be asked for; None if it does not answer."""
        name, models = self._refiner.served_model_name, dict[str, str]()
        try:
            async with connect(url, self._refiner.api_key_env, PROBE_TIMEOUT_S) as server:
                models = await listed(server, PROBE_TIMEOUT_S)
        except openai.APIStatusError as error:  # one that lists nothing may still answer
            if is_down(error):
                return None
        except RefinerRequestError as error:  # there is no key where this runs
            raise RunEndedError(str(error)) from None
        except Exception:  # as in ExternalClient.write
            return None
        if models:
            name = name or next(iter(models))
        return Served(model=name, keep_stop=KEEP_STOP.get(models.get(name, ""), {})) if name else None


def fault(config: External) -> str | None:
    """Return a line on the first URL, model or key that is wrong; None if every server answers a short chat."""
    return next(filter(None, (asyncio.run(_fault(config, url)) for url in config.url)), None)


async def _fault(config: External, url: str) -> str | None:
    limit_s, names = min(TRIAL_TIMEOUT_S, config.request_timeout_s), list[str]()
    try:
        async with connect(url, config.api_key_env, limit_s) as server:
            return await _wrong_with_answer(server, config, url, names, limit_s)
    except openai.APIStatusError as error:
        if error.status_code == 429:
            return None  # it knows who asks
        model = config.served_model_name or next(iter(names), None)
        if error.status_code in (400, 404) and names and model not in names:
            return f"refiner.served_model_name={model}: {url} lists {', '.join(names[:5])}; set one that it serves"
        by_proxy = on_the_way(url) if error.status_code in PROXY_STATUSES else ""
        key = "refiner.api_key_env" if error.status_code in KEY_STATUSES and not by_proxy else "refiner.url"
        return f"{key}: {url} answers {words(error, config)}{by_proxy}"
    except RefinerRequestError as error:
        return f"refiner.url: {url}: {error}"
    except TimeoutError:
        return f"refiner.url: {url} sends no whole answer within {limit_s:g} s{on_the_way(url)}"
    except Exception as error:  # as in ExternalClient.write
        hint = on_the_way(url) or "; start the server, or correct the address, such as http://HOST:8000/v1"
        return f"refiner.url: nobody answers at {url} ({words(error, config)}){hint}"


async def _wrong_with_answer(
    server: openai.AsyncOpenAI, config: External, url: str, names: list[str], limit_s: float
) -> str | None:
    """Return what is wrong with a server's answer to a short chat, in one line; its models are added to the names.

    Raises:
        Exception: What the server or the network brings, if that is no answer.
    """
    model = config.served_model_name
    try:
        names += await listed(server, limit_s)
    except openai.APIStatusError as error:
        if is_down(error) or (model is None and error.status_code != 404):
            raise
    if (model := model or next(iter(names), None)) is None:
        hint = on_the_way(url)
        return f"refiner.served_model_name=null: {url} lists no model (it ends with /v1 mostly); set one{hint}"
    trial = chat_body(config, model, "Say yes.", TRIAL_TOKENS)
    said = await asyncio.wait_for(sent(server.chat.completions.with_streaming_response.create(**trial)), limit_s)
    *_, last = read(said, SimpleNamespace(), config)
    if isinstance(last, RefinerRequestError):
        raise last
    _, text, is_whole = last
    if is_whole and not text.strip():
        return (
            f"refiner.url: the answer of {url} has no text, though it is whole: a model that thinks may have put all "
            "into its reasoning; see refiner.extra_body"
        )
    return None


def on_the_way(url: str) -> str:
    """Return which variables of the environment stand between this process and a server; nothing if none does.

    Their values are not shown: a proxy's may have a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # half an address, of which the error itself says what is wrong
        return ""
    names, hints = {name.casefold(): name for name, value in os.environ.items() if value}, list[str]()
    proxy = names.get(f"{parts.scheme}_proxy") or names.get("all_proxy")
    if proxy and not proxy_bypass(parts.netloc.rpartition("@")[2]):
        also = f" (${names['no_proxy']} does not have it)" if "no_proxy" in names else ""
        hints.append(f"${proxy} sends requests to a proxy: unset it, or add {parts.hostname} to no_proxy{also}")
    for variable in ("ssl_cert_file", "ssl_cert_dir"):
        name = names.get(variable)
        if name and (parts.scheme == "https" or not os.path.exists(os.environ[name])):
            hints.append(f"${name} names the certificates that are trusted: correct it, or unset it")
    return "".join(f"; {hint}" for hint in hints)


def is_down(error: openai.APIStatusError) -> bool:
    """Whether a status says that nothing answers there now; 501 is of a server that has no list of models."""
    return error.status_code >= 500 and error.status_code != 501


def chat_body(config: External, model: str, content: str, max_new_tokens: int, **more: Any) -> dict[str, Any]:
    """Return the arguments of a chat; a null of ``refiner.extra_body`` takes a field out."""
    if config.samples > 1:
        more["n"] = config.samples
    body = {"max_tokens": max_new_tokens, "temperature": config.temperature, **more, **(config.extra_body or {})}
    extra = {name: value for name, value in body.items() if value is not None}
    return {"model": model, "messages": [{"role": "user", "content": content}], "extra_body": extra}


def read(said: bytes, bill: Any, config: External) -> list[Choice]:
    """Return thought and text of each of a server's answers, and whether it came to its end.

    A content of several parts is their texts. vLLM calls a thought ``reasoning_content``, later ``reasoning``.

    Raises:
        RefinerRequestError: If none is whole, or the key stands there, which would be recorded with it.
    """
    key = secret(config.api_key_env)
    if key and key.encode() in said:
        raise RefinerRequestError("the server repeats the key in its answer")
    if len(said) > MAX_ANSWER_BYTES:
        raise RefinerRequestError(f"the server sent more than {MAX_ANSWER_BYTES} bytes")
    try:
        answer = json.loads(said)
    except (ValueError, RecursionError):
        raise RefinerRequestError("what the server sent is no chat completion") from None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices:
        fault = answer.get("error") if isinstance(answer, dict) else None  # of some servers beside status 200
        fault = fault.get("message", fault) if isinstance(fault, dict) else fault
        why = f": {without_key(str(fault), config)}" if fault else ""
        raise RefinerRequestError(f"what the server sent is no chat completion{why}")
    written = [_written(choice, key) for choice in choices[: config.samples]]
    failures = [one for one in written if isinstance(one, RefinerRequestError)]
    if len(failures) == len(written):
        raise failures[0]
    usage = answer.get("usage")
    for name, counted in (("num_prompt_tokens", "prompt_tokens"), ("num_generated_tokens", "completion_tokens")):
        number = usage.get(counted) if isinstance(usage, dict) else None
        if isinstance(number, int) and 0 <= number < MAX_TOKENS:
            setattr(bill, name, number)
    lacking = RefinerRequestError(
        f"the server sent {len(written)} answers to n={config.samples}; if it does not know n, set refiner.samples=1"
    )
    return [*written, *[lacking] * (config.samples - len(written))]


def _written(choice: Any, key: str) -> Choice:
    """Return what one choice of a server's answer holds, or why it is of no use."""
    try:
        message, reason = choice["message"], choice["finish_reason"]
        content, thought = message["content"] or "", message.get("reasoning_content") or message.get("reasoning")
    except (LookupError, TypeError, AttributeError):
        return RefinerRequestError("what the server sent is no chat completion")
    text, thought = text_of(content), thought if isinstance(thought, str) else ""
    if text is None:
        return RefinerRequestError("the content of the server's answer is neither a text nor a list of texts")
    if key and any(key in one for one in (text, thought, str(reason))):  # it was written with escapes
        return RefinerRequestError("the server repeats the key in its answer")
    reason = reason.lower() if isinstance(reason, str) else reason
    if reason not in (*END_REASONS, "length"):
        return RefinerRequestError(f"the server ended its answer with finish_reason={str(reason)[:MAX_WORDS]}")
    return thought, text, reason != "length"


def text_of(content: Any) -> str | None:
    """Return the text of a message's content, which may be a list of parts; None if it has another form.

    Example: of ``[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]`` it is ``ab``.
    """
    try:
        return content if isinstance(content, str) else "".join(part["text"] for part in content)
    except (LookupError, TypeError):
        return None


async def listed(server: openai.AsyncOpenAI, limit_s: float) -> dict[str, str]:
    """Return the owner of each model that a server lists, in its order; nothing if what it sends is no list."""
    said = await asyncio.wait_for(sent(server.models.with_streaming_response.list()), limit_s)
    try:
        found = json.loads(said)
        rows = found["data"] if isinstance(found, dict) else found
        return {row["id"]: str(row.get("owned_by")) for row in rows if isinstance(row["id"], str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def asked_pause_s(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a server asks to be left alone, where it says a number: few write a date."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


def words(error: Exception, config: External) -> str:
    """Return a short line on what went wrong, without the key."""
    if isinstance(error, openai.APIStatusError):
        body = error.body.get("message", error.body) if isinstance(error.body, dict) else error.body or error.message
        said = "it refuses the key" if error.status_code in KEY_STATUSES else str(body)
        return f"{error.status_code}: {without_key(said, config)}"
    cause = error.__cause__ or error
    return without_key(f"{type(cause).__name__}: {cause}", config)


def without_key(text: str, config: External) -> str:
    """Return a text, shortened to one line, without the words in which a part of the key stands."""
    said = text[:MAX_READ].split()
    if len(text) > MAX_READ:
        del said[-1:]  # it may hold a part of the key that is too short to be known
    if key := secret(config.api_key_env).casefold():
        size = min(6, len(key))  # of a masked one servers show the ends
        parts = {key[at : at + size] for at in range(len(key) - size + 1)} | {key[:4], key[-4:]}
        said = ["***" if any(part in word.casefold() for part in parts) else word for word in said]
    return " ".join(said)[:MAX_WORDS]
