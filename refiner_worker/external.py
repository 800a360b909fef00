"""A refiner that somebody else hosts: servers that speak OpenAI's protocol, asked by URL.

Of a rollout, a request holds one user message (the words of the prompt's template), the number of tokens, the
temperature, and the fields that ``refiner.extra_body`` adds. The key is read from the environment of the process that
asks. Servers may repeat it in what they send, so our errors name only the status and its standard reason phrase.
"""

import asyncio
import functools
import json
import logging
import os
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

import httpx
import openai
from ray.actor import ActorHandle

from refiner_worker.client import HostedRefiner, RefinerClient, RefinerRequestError, RunEndedError
from refiner_worker.config import External, secret

logger = logging.getLogger(__name__)

MAX_RETRIES = 8
"""How often openai's client repeats a request to a busy or lost server: its pauses grow from 0.5 s to 8 s, so a request
fails after about half a minute, unless the server asks for longer pauses (``Retry-After``, at most 2 minutes)."""
PROBE_TIMEOUT_S = 10.0
TRIAL_TIMEOUT_S = 60.0
TRIAL_TOKENS = 16
MAX_ANSWER_BYTES = 4 << 20
Choice = tuple[str, str, bool] | RefinerRequestError
"""One choice of a server's answer: its thought, its text, and whether the text came to its end; or why it has none."""
Content = str | list[dict[str, Any]]
"""The content of a user's message: a text, or parts of which some are images."""
MAX_TOKENS = 1 << 31
"""More of them in a bill is a mistake."""
END_REASONS = ("stop", "eos", "eos_token", "end_turn")
"""Reasons for which an answer ends of itself; some servers have their own words."""
OTHER_REASONS = ("content_filter", "tool_calls", "function_call", "abort", "error")
"""Other reasons of OpenAI's, vLLM's and SGLang's servers, which an error may name."""
MAX_CUT = 3
"""How often a request is repeated whose answer broke off."""
RETRY_HEADER = "x-stainless-retry-count"
"""The header in which openai's client counts how often it has sent a request before."""
_BILL: ContextVar[Any] = ContextVar("_BILL")
"""The bill of this task's request. A retry is counted when it is sent, since a request may be cancelled before it has
an answer or an error."""
BUSY_STATUSES = (408, 409, 429)
"""Statuses below 500 after which the same request may be answered, as openai's client has them."""
KEY_STATUSES = (401, 403, 407)
"""Statuses of a key that is wrong."""
PROXY_STATUSES = (403, 407, 500, 502, 503, 504)
"""Statuses of a proxy that cannot, or may not, reach the server."""


KEEP_STOP: dict[str, dict[str, Any]] = {
    "vllm": {"include_stop_str_in_output": True},
    "sglang": {"no_stop_trim": True},
}
"""The fields that ask a server to keep the stop text, by the owner in its list of models.

Other servers leave the stop text out, and do not report whether they ended there.
"""


@dataclass(slots=True, frozen=True, kw_only=True)
class Served:
    """The model and the fields in requests to a server."""

    model: str
    keep_stop: dict[str, Any] = field(default_factory=dict)
    """The server's entry of KEEP_STOP; empty if there is none."""


@dataclass(slots=True, kw_only=True)
class ExternalClient(RefinerClient):
    """A client that sends text to the server with the fewest of its requests in flight.

    It can be pickled until its first request, like its parent class. A server that does not answer is taken out of this
    client; the next step's client has it again if it answers then.
    """

    config: External
    servers: dict[str, Served]
    """What each server is asked for, by URL."""
    _answers: dict[str, bool] = field(default_factory=dict)
    """Whether each server answered its last request; a server that was not asked yet is missing."""

    @property
    def replicas(self) -> dict[str, ActorHandle]:
        """An empty dict: no server is an actor of this run, and servers cancel abandoned requests by themselves."""
        return {}

    async def write(
        self, content: Content, stop: str | None, is_part: bool, max_new_tokens: int, bill: Any
    ) -> list[Choice]:
        """Ask for ``refiner.samples`` refinements by one request, at one server after the other until one answers.

        At the last of the servers, openai's client repeats the request after pauses. Where the text at which an answer
        may end (``stop``) is a part of the answer, it is sent only to servers that keep it in their answers. ``bill``
        counts retries, and gets the numbers of tokens that the server reports.

        Returns:
            ``refiner.samples`` choices. Each is the thought that the server sends apart, the text, and whether the text
            came to its end; or the reason why there is none.

        Raises:
            RefinerRequestError: If no server answers, one refuses the request, or what it sends is no answer.
        """
        tried = set[str]()
        while True:
            url = self._choose(tried)
            tried.add(url)
            served = self.servers[url]
            ends = {"stop": stop, **served.keep_stop} if served.keep_stop or not is_part else {}
            body = chat_body(self.config, served.model, content, max_new_tokens, **(ends if stop else {}))
            is_last = self.servers.keys() <= tried
            try:
                said = await self._post(url, body, bill, MAX_RETRIES if is_last else 0)
            except asyncio.CancelledError:  # it took too long
                self._give_up(url)
                raise
            except RefinerRequestError:  # there is no key where this runs
                raise
            except Exception as error:  # whatever the network brings: openai has names for a part of it only
                if is_last and not isinstance(error, openai.APIStatusError):
                    self._give_up(url)
                if is_last or not may_help(error):
                    raise RefinerRequestError(self._refusal(url, error, content)) from None
            else:
                return read(said, bill, self.config)
            bill.num_retries += 1

    def _refusal(self, url: str, error: Exception, content: Content) -> str:
        """Return why a request failed; where a server refuses pictures, the log has a line about it, once."""
        if isinstance(content, str) or not isinstance(error, openai.APIStatusError) or may_help(error):
            return words(error)
        said = f"{url} answers {words(error)} to a question with images"
        _warn_once(f"refiner.url: {said}; such responses stay as they are; serve a model that sees, or another URL")
        return said

    def _give_up(self, url: str) -> None:
        """Take a server out for the rest of the step, unless it answered its last request."""
        if not self._answers.get(url):
            self.servers.pop(url, None)

    def _choose(self, tried: Collection[str]) -> str:
        """Return the server with the fewest requests in flight that was not tried, rather one that answered last."""
        urls = [url for url in self.servers if url not in tried]
        if not urls:
            raise RefinerRequestError("no server of refiner.url answers")
        return min(urls, key=lambda url: (not self._answers.get(url, True), self._num_in_flight.get(url, 0)))

    async def _post(self, url: str, body: dict[str, Any], bill: Any, max_retries: int) -> bytes:
        """Return what a server answers; ``bill`` counts the retries."""
        place = url, self.config.api_key_env, self.config.request_timeout_s, max_retries
        server = connection(asyncio.get_running_loop(), *place)
        self._num_in_flight[url] = self._num_in_flight.get(url, 0) + 1
        try:
            said = await whole(server, body, bill)
        except Exception as error:
            self._answers[url] = isinstance(error, openai.APIStatusError) and error.status_code < 500
            raise
        finally:
            self._num_in_flight[url] -= 1
        self._answers[url] = True
        return said


@functools.cache
def _warn_once(line: str) -> None:
    logger.warning(line)


async def whole(server: openai.AsyncOpenAI, body: dict[str, Any], bill: Any) -> bytes:
    """Return the whole answer to a chat. If the connection breaks within it, openai's client does not ask again."""
    for _ in range(MAX_CUT):
        try:
            return await sent(server.chat.completions.with_streaming_response.create(**body), bill)
        except openai.OpenAIError:
            raise
        except Exception:  # openai has no name for it
            bill.num_retries += 1
    return await sent(server.chat.completions.with_streaming_response.create(**body), bill)


@functools.lru_cache  # for all steps: to make one takes tenths of a second
def connection(loop: asyncio.AbstractEventLoop, *place: Any) -> openai.AsyncOpenAI:
    """Return the client of a server (:func:`connect`), which lives in one event loop."""
    return connect(*place)


def connect(url: str, api_key_env: str | None, timeout_s: float, max_retries: int = 0) -> openai.AsyncOpenAI:
    """Return a new client of a server.

    Raises:
        RefinerRequestError: If there is no key. The message does not name its variable, which may be the key itself.
    """
    key = secret(api_key_env)
    if api_key_env is not None and not key:
        raise RefinerRequestError("refiner.api_key_env names no variable that is set in this environment")
    client = openai.DefaultAsyncHttpxClient(
        follow_redirects=False,  # nobody else reads questions and responses
        event_hooks={"request": [_count_retry]},
    )
    # Without a key openai's client would look for one of its own.
    return openai.AsyncOpenAI(
        base_url=url, api_key=key or "none", timeout=timeout_s, max_retries=max_retries, http_client=client
    )


async def _count_retry(request: httpx.Request) -> None:
    _BILL.get().num_retries += int(request.headers.get(RETRY_HEADER, 0)) > 0


async def sent(response: Any, bill: Any) -> bytes:
    """Return the first bytes that a server sends: it may send without an end. ``bill`` gets the number of retries."""
    _BILL.set(bill)
    async with response as opened:
        found = bytearray()
        async for part in opened.iter_bytes():
            found += part
            if len(found) > MAX_ANSWER_BYTES:
                break
        return bytes(found)


class ExternalRefiner(HostedRefiner):
    """A refiner with the interface of a ``RefinerGroup`` that hosts no model."""

    def __init__(self, refiner: External) -> None:
        self._refiner = refiner
        self._servers: dict[str, Served] = {}

    def client(self) -> ExternalClient:
        """Return a client of the servers that answered last."""
        return ExternalClient(servers=dict(self._servers), config=self._refiner)

    def wake_up(self) -> int:
        """Ask every server whether it answers, before every step; return 0, since no server can be restarted."""
        urls = self._refiner.url

        async def ask() -> list[Served | None]:
            return await asyncio.gather(*map(self._ask, urls))

        self._servers = {url: one for url, one in zip(urls, asyncio.run(ask()), strict=True) if one}
        if not self._servers:
            logger.warning("no server answers at %s: this step goes without their refinements", ", ".join(urls))
        return 0

    async def _ask(self, url: str) -> Served | None:
        """Return the model and fields for requests to a server; None if it does not answer."""
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
    """Return one line about the first wrong URL, model or key; None if every server answers a short chat."""
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
        return f"{key}: {url} answers {words(error)}{by_proxy}"
    except RefinerRequestError as error:
        return f"refiner.url: {url}: {error}"
    except TimeoutError:
        return f"refiner.url: {url} sends no whole answer within {limit_s:g} s{on_the_way(url)}"
    except Exception as error:  # as in ExternalClient.write
        hint = on_the_way(url) or "; start the server, or correct the address, such as http://HOST:8000/v1"
        return f"refiner.url: nobody answers at {url} ({words(error)}){hint}"


async def _wrong_with_answer(
    server: openai.AsyncOpenAI, config: External, url: str, names: list[str], limit_s: float
) -> str | None:
    """Return what is wrong with a server's answer to a short chat, in one line; its models are added to the names.

    Raises:
        Exception: An error of the server or the network.
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
    bill = SimpleNamespace(num_retries=0)
    asked = server.chat.completions.with_streaming_response.create(**trial)
    *_, last = read(await asyncio.wait_for(sent(asked, bill), limit_s), bill, config)
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
    """Return the environment variables that redirect requests to a server, such as a proxy's; empty if there are none.

    Their values are not shown, since the URL of a proxy may have a password.
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


def may_help(error: Exception) -> bool:
    """Whether another server may answer a request that one did not: it is down, or busy."""
    return (
        not isinstance(error, openai.APIStatusError) or error.status_code >= 500 or error.status_code in BUSY_STATUSES
    )


def is_down(error: openai.APIStatusError) -> bool:
    """Return whether a status means that no server answers now; 501 comes from a server without a list of models."""
    return error.status_code >= 500 and error.status_code != 501


def chat_body(config: External, model: str, content: Content, max_new_tokens: int, **more: Any) -> dict[str, Any]:
    """Return the arguments of a chat request; a null in ``refiner.extra_body`` removes a field."""
    if config.samples > 1:
        more["n"] = config.samples
    body = {"max_tokens": max_new_tokens, "temperature": config.temperature, **more, **(config.extra_body or {})}
    extra = {name: value for name, value in body.items() if value is not None}
    return {"model": model, "messages": [{"role": "user", "content": content}], "extra_body": extra}


def read(said: bytes, bill: Any, config: External) -> list[Choice]:
    """Return thought and text of each of a server's answers, and whether it came to its end.

    If a content has several parts, their texts are joined. vLLM calls a thought ``reasoning_content``, later
    ``reasoning``.

    Raises:
        RefinerRequestError: If no answer is complete, or an answer holds the key, which would be recorded.
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
        raise RefinerRequestError("what the server sent is no chat completion")
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
    """Return the thought and text of one choice of a server's answer, or why it cannot be used."""
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
        shown = reason if reason in OTHER_REASONS else "another than stop and length"
        return RefinerRequestError(f"the server ended its answer with finish_reason={shown}")
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
    asked = server.models.with_streaming_response.list()
    said = await asyncio.wait_for(sent(asked, SimpleNamespace(num_retries=0)), limit_s)
    try:
        found = json.loads(said)
        rows = found["data"] if isinstance(found, dict) else found
        return {row["id"]: str(row.get("owned_by")) for row in rows if isinstance(row["id"], str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def words(error: Exception) -> str:
    """Return the status of an answer with its standard reason phrase, or the kind of the error that came instead."""
    if isinstance(error, openai.APIStatusError):
        known = {one.value: one.phrase for one in HTTPStatus}
        return f"{error.status_code} {known.get(error.status_code, '')}".strip()
    return type(error.__cause__ or error).__name__
