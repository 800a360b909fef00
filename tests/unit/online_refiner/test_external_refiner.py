"""A refiner by URL whose server does whatever a stranger's server may do: it costs refinements, and tells no key."""

import asyncio
import base64
import io
import json
import logging
import os
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_run import checked, error_of
from omegaconf import DictConfig
from PIL import Image
from played_server import MODEL, Reply, Server, chat, error, serving, several
from tiny_vision import vision_tokenizer
from transformers import AutoTokenizer
from waiting import PATIENCE_S, comes_true

from recipe.online_refiner.method.pairs import Refinement, Rollout, Verdict
from recipe.online_refiner.refine.group import Refiner
from refiner_worker.config import TEMPLATES, External, read_refiner
from refiner_worker.external import ExternalClient, ExternalRefiner, Served, fault
from refiner_worker.pictures import Pictures, Prompt
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.sources import RefinerBySource
from refiner_worker.text.thoughts import Thoughts
from refiner_worker.text.turn_end import TurnEnd

KEY = "sk-proj-Tq8vZ0xW4yLr2Nn6"
NUM_ROLLOUTS, FEW, MAX_TOKENS = 100, 10, 24
SHORT_S, LONG_S = 12.0, 120.0
GOOD = chat("abcd")
SERVED = Served(model=MODEL)


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYED_KEY", f"{KEY}\n")  # as a file has it


def config(*urls: str, **changes: Any) -> External:
    values = {"placement": "external", "url": list(urls), "api_key_env": "PLAYED_KEY", "response_length": MAX_TOKENS}
    return External(**{"model_path": "m", "template": "general", "request_timeout_s": LONG_S, **values, **changes})


def refined(
    client: ExternalClient, tokenizer: Any, number: int = FEW, thoughts: Thoughts | None = None, **prompt: Any
) -> list[Refinement]:
    return asyncio.run(stage(client, tokenizer, number, thoughts, **prompt))


async def stage(
    client: ExternalClient, tokenizer: Any, number: int, thoughts: Thoughts | None = None, **prompt: Any
) -> list[Refinement]:
    """Refine so many responses, each alone in its group; every answer gets the same reward."""

    async def score(rollout: Rollout, response_ids: list[int]) -> float:
        return 0.5

    end = tokenizer.eos_token_id
    refiner = Refiner(
        config=client.config,
        client=client,
        prompt=RefinerPrompt(TEMPLATES / f"{client.config.template}.jinja", tokenizer, thoughts=thoughts),
        turn_end=TurnEnd(stops=frozenset({end}), written=end),
        score=score,
        max_model_len=4096,
        max_response_tokens=MAX_TOKENS,
    )
    ids = [[*tokenizer.encode(f"No {n}."), end] for n in range(number)]
    asked = {"messages": [{"role": "user", "content": "Say yes."}], "prompt_ids": [1], **prompt}
    rollouts = (
        Rollout(key=f"u{n}_0_0", response_ids=one, reward=0.0, reward_columns={}, **asked) for n, one in enumerate(ids)
    )
    tasks = (refiner.refine_group([one]) for one in rollouts)
    found = await asyncio.wait_for(asyncio.gather(*tasks), client.config.request_timeout_s + PATIENCE_S)
    return [one for (one,) in found]


def always(reply: Reply) -> Callable[[str, int], Reply]:
    return lambda message, num_before: reply


def play(
    answer: Callable[[str, int], Reply], tokenizer: Any, logs: Any, number: int
) -> tuple[list[Refinement], Server, Any]:
    """Refine responses with a server; nothing that is left of it holds a part of the key."""
    logs.set_level(logging.INFO)
    logs.set_level(logging.DEBUG, "openai")
    with serving(answer) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url))
        found = refined(client, tokenizer, number)
    tells_no_key(repr(found) + logs.text + repr(client))
    assert server.keys <= {f"Bearer {KEY}"}
    return found, server, client.servers


def tells_no_key(said: str) -> None:
    assert not [part for part in (KEY, KEY[:8], KEY[-6:], "Tq8vZ0") if part in said]


def reasoned(text: Any, thoughts: str, reason: str = "stop") -> Reply:
    """Return an answer of a server that has a place of its own for thoughts."""
    message = {"role": "assistant", "content": text, "reasoning_content": thoughts}
    return Reply(body=json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": reason}]}).encode())


def escaped(reply: Reply) -> Reply:
    """Return an answer that says the same, but not with the same bytes."""
    return Reply(body=reply.body.replace(b"-", b"\\u002d"))


@pytest.mark.parametrize(
    ("text", "verdict", "answer"),
    [
        ("<think>it got 0.0</think>\n\nabcd", Verdict.ACCEPTED, "abcd"),
        ("<think>a</think>b</think>abcd", Verdict.ACCEPTED, "abcd"),
        ("<think>on and on", Verdict.THOUGHT, "<think>on and on"),
        ("abcd", Verdict.ACCEPTED, "abcd"),
    ],
)
def test_thoughts_in_an_answer_are_dropped(tokenizer: Any, text: str, verdict: Verdict, answer: str) -> None:
    with serving(always(chat(text))) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url, template="dialogue"))
        (found,) = refined(client, tokenizer, 1, Thoughts("<think>", "</think>", is_open=False))
    assert (found.verdict, found.text) == (verdict, answer)
    assert "stop" not in server.bodies[0], "it may stand in a thought"
    assert server.bodies[0]["max_tokens"] == 2 * MAX_TOKENS


ECHO = f"Incorrect API key provided: {KEY}, {KEY[:8]}*****{KEY[-4:]}. Bearer {KEY}"
CUT = Reply(body=GOOD.body[:40], length=len(GOOD.body))
AT_ONCE: dict[str, tuple[Reply, Verdict]] = {
    "good": (GOOD, Verdict.ACCEPTED),
    "counts that are none": (chat("abcd", usage={"prompt_tokens": "x"}), Verdict.ACCEPTED),
    "its own word for the end": (chat("abcd", "eos_token"), Verdict.ACCEPTED),
    "busy for an hour": (error(429, retry_after="3600"), Verdict.REQUEST),
    "down for an hour": (error(503, retry_after="3600"), Verdict.REQUEST),
    "a wrong key": (error(401, ECHO), Verdict.REQUEST),
    "a wrong model": (error(404, f"no such model, {KEY}"), Verdict.REQUEST),
    "garbage": (Reply(body=b"\x1f\x8b<html>" * 99), Verdict.REQUEST),
    "half of the JSON": (Reply(body=GOOD.body[:40]), Verdict.REQUEST),
    "other JSON": (Reply(body=b'{"choices": [7]}'), Verdict.REQUEST),
    "deep JSON": (Reply(body=b"[" * 10**5), Verdict.REQUEST),
    "a megabyte": (chat("ab" * (1 << 19)), Verdict.TRUNCATED),
    "without an end": (Reply(is_endless=True), Verdict.REQUEST),
    "cut": (chat("abcd", "length"), Verdict.TRUNCATED),
    "filtered": (chat("abcd", "content_filter"), Verdict.REQUEST),
    "the key": (chat(f"abcd {KEY}"), Verdict.REQUEST),
    "the key with escapes": (escaped(chat(f"abcd {KEY}")), Verdict.REQUEST),
    "the key with escapes in its reasoning": (escaped(reasoned("", f"abcd {KEY}", "length")), Verdict.REQUEST),
    "the key with escapes as a reason": (escaped(chat("abcd", KEY)), Verdict.REQUEST),
    "sent elsewhere": (Reply(status=307, headers={"location": f"/v2?key={KEY}"}), Verdict.REQUEST),
    "a long page of an error": (Reply(status=400, body=b"<" + KEY.encode() * 4000), Verdict.REQUEST),
    "no text": (chat(None), Verdict.EMPTY),
    "a list of parts": (chat([{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]), Verdict.ACCEPTED),
    "a list of others": (chat([{"type": "image_url", "image_url": {}}]), Verdict.REQUEST),
    "all in its reasoning": (reasoned("", "abcd"), Verdict.EMPTY),
    "an error beside status 200": (Reply(body=error(200, "overloaded").body), Verdict.REQUEST),
    "a control token": (chat("ab<|im_end|>cd"), Verdict.ENCODING),
    "half a character": (chat("ab\ud83d"), Verdict.ENCODING),
}


MANY = ("good", "a wrong key", "garbage", "half of the JSON", "a megabyte")


@pytest.mark.parametrize("played", AT_ONCE)
def test_what_is_known_at_once(tokenizer: Any, played: str, caplog: pytest.LogCaptureFixture) -> None:
    reply, verdict = AT_ONCE[played]
    number = NUM_ROLLOUTS if played in MANY else FEW
    found, server, servers = play(always(reply), tokenizer, caplog, number)
    assert Counter(one.verdict for one in found) == {verdict: number}
    assert {one.num_retries for one in found} == {0} and server.num_asked == number and len(servers) == 1
    "".join(one.text for one in found).encode()  # it is recorded
    expected = [*tokenizer.encode("abcd"), tokenizer.eos_token_id] if verdict is Verdict.ACCEPTED else []
    assert all(one.token_ids == expected for one in found)
    assert all((one.num_prompt_tokens > 0) is (verdict is not Verdict.REQUEST) for one in found)
    if played == "a wrong key":
        assert {one.text for one in found} == {"401 Unauthorized"}
    assert {one.latency_s is None for one in found} == {
        verdict in (Verdict.REQUEST, Verdict.ENCODING) or played == "a megabyte"
    }


AGAIN: dict[str, tuple[int, Reply]] = {
    "busy": (2, error(429, ECHO)),
    "busy, says when": (1, error(429, retry_after="1")),
    "busy, says when by no date": (1, error(429, retry_after=f"Wed, 21 Oct {'9' * 20} 07:28:00 GMT")),
    "an error": (1, error(500, ECHO)),
    "an error, says when": (1, error(503, retry_after="1")),
    "half an answer": (1, CUT),
}


@pytest.mark.parametrize("played", AGAIN)
def test_what_is_asked_again(tokenizer: Any, played: str, caplog: pytest.LogCaptureFixture) -> None:
    num_times, reply = AGAIN[played]
    number = FEW if "says" in played else NUM_ROLLOUTS
    found, server, _ = play(lambda _, num_before: reply if num_before < num_times else GOOD, tokenizer, caplog, number)
    assert Counter(one.verdict for one in found) == {Verdict.ACCEPTED: number}
    assert {one.num_retries for one in found} == {num_times}
    assert {len(times) for times in server.asked.values()} == {num_times + 1}
    if reply.headers.get("retry-after") == "1":
        assert all(second - before >= 1 for before, second in server.asked.values())


NEVER: dict[str, tuple[Reply | None, bool]] = {
    "always busy": (error(429, ECHO), False),
    "always an error": (error(502, ECHO), False),
    "nothing": (Reply(hangs=True), False),
    "always half an answer": (CUT, False),
    "nobody there": (None, False),
}


def test_what_never_comes(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is given up within the time limit, and who was not heard of is not asked again in this step."""
    number = NUM_ROLLOUTS
    caplog.set_level(logging.INFO)
    servers = [Server(always(reply or GOOD)) for reply, _ in NEVER.values()]
    clients = [
        ExternalClient(servers={one.url: SERVED}, config=config(one.url, request_timeout_s=SHORT_S)) for one in servers
    ]
    servers[-1].end()

    async def at_once() -> list[list[Refinement]]:
        return await asyncio.gather(*(stage(client, tokenizer, number) for client in clients))

    answers = asyncio.run(at_once())
    for (played, (_, is_there)), server, client, found in zip(NEVER.items(), servers, clients, answers, strict=True):
        assert {one.verdict for one in found} <= {Verdict.REQUEST, Verdict.TIMEOUT}, played
        is_gone = not client.servers  # on a busy machine the time is over before anybody is sure
        assert len(found) == number and not (is_there and is_gone), played
        assert server.num_asked <= 6 * number, "pauses grow"
        assert sum(one.num_retries for one in found) >= server.num_asked - number, "also of a request that is cut off"
        tells_no_key(repr(found) + caplog.text + repr(client))
        if is_gone:
            (again,) = refined(client, tokenizer, 1)
            assert (again.verdict, again.num_retries) == (Verdict.REQUEST, 0), "the next one is not even sent"
    for server in servers[:-1]:
        server.end()


def test_what_is_sent_and_what_it_costs(tokenizer: Any) -> None:
    """The words of the template, the sizes, and what the user adds; nothing names the rollout."""
    extra = {"temperature": None, "top_k": 3, "chat_template_kwargs": {"enable_thinking": False}}
    with serving(always(GOOD)) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url, extra_body=extra))
        (found,) = refined(client, tokenizer, 1)
    prompt = RefinerPrompt(TEMPLATES / "general.jinja", tokenizer)
    words = prompt.content([{"role": "user", "content": "Say yes."}], "No 0.", 0.0)
    kept = {"top_k": 3, "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": MAX_TOKENS}
    assert server.bodies == [{"model": MODEL, "messages": [{"role": "user", "content": words}], **kept}]
    assert (found.num_prompt_tokens, found.num_generated_tokens) == (11, 7)


RED, BLUE = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")


def two_pictures(tokenizer: Any) -> dict[str, Any]:
    """Return a prompt with two pictures, as a refine worker has it."""
    parts = [{"type": "image", "image": RED}, {"type": "image", "image": BLUE}, {"type": "text", "text": "Which?"}]
    messages = [{"role": "user", "content": parts}]
    ids = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    token = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    return {"messages": messages, "prompt_ids": Prompt(ids, Pictures.in_prompt(ids, [RED, BLUE], token))}


def test_a_server_receives_the_pictures_of_a_prompt() -> None:
    tokenizer = vision_tokenizer()
    with serving(always(GOOD)) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url))
        found = refined(client, tokenizer, FEW, **two_pictures(tokenizer))
    assert {one.verdict for one in found} == {Verdict.ACCEPTED} and server.num_asked == FEW
    for body in server.bodies:
        parts = body["messages"][0]["content"]
        sent = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        read = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in sent]
        assert [image.tobytes() for image in read] == [RED.tobytes(), BLUE.tobytes()]
        assert sum("Which?" in part.get("text", "") for part in parts) == 1


def test_a_server_that_refuses_pictures_is_one_line_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Prompts of text are refined beside."""
    tokenizer = vision_tokenizer()
    reply = error(400, f"this model does not see, {KEY}")
    with serving(lambda message, _: reply if "image_url" in message else GOOD) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url))
        found = refined(client, tokenizer, FEW, **two_pictures(tokenizer))
        texts = refined(client, tokenizer, FEW)
    said = f"{server.url} answers 400 Bad Request to a question with images"
    assert {(one.verdict, one.text) for one in found} == {(Verdict.REQUEST, said)}
    assert {one.verdict for one in texts} == {Verdict.ACCEPTED} and client.servers
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1 and said in warned[0] and "serve a model that sees" in warned[0]
    tells_no_key(caplog.text)


@pytest.mark.parametrize(
    ("replies", "verdict", "num_better"),
    [
        ([chat("abcd", "length"), chat("ab"), chat("abc", "content_filter"), chat("<think>x</think>abcd")], None, 2),
        ([chat("ab"), chat("abcd")], None, 2),  # a server that knows no n sends fewer
        ([chat("ab", "content_filter"), chat("ab", "content_filter")], Verdict.REQUEST, 0),
    ],
)
def test_several_refinements_by_one_request(
    tokenizer: Any, replies: list[Reply], verdict: Verdict | None, num_better: int
) -> None:
    """What one of them is costs the others nothing; all are as good, so the nearest to `No 0.` counts."""
    with serving(always(several(*replies))) as server:
        many = config(server.url, samples=4, temperature=1.0)
        (found,) = refined(ExternalClient(servers={server.url: SERVED}, config=many), tokenizer, 1)
    assert [(body["n"], body["temperature"]) for body in server.bodies] == [(4, 1.0)]
    assert (found.verdict, found.num_samples, found.num_better) == (verdict or Verdict.ACCEPTED, 4, num_better)
    if verdict is None:
        assert found.text in ("ab", "abcd") and found.num_prompt_tokens == 11
        assert found.num_generated_tokens == 7 * len(replies)


def test_a_template_with_tags_gets_what_stands_between_them(tokenizer: Any) -> None:
    """The server may end at the closing tag, of which it then says nothing; the opening one nobody wrote for it."""
    with serving(always(chat("Sure.\n<refined>\nabcd\n"))) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url, template="dialogue"))
        (found,) = refined(client, tokenizer, 1)
    assert found.verdict is Verdict.ACCEPTED and tokenizer.decode(found.token_ids[:-1]) == "abcd"
    assert server.bodies[0]["stop"] == "</refined>"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<refined>\n<refined>\nabcd\n</refined>", Verdict.ACCEPTED),
        ("Sure.\n<refined>\nabcd</refined></refined>", Verdict.ACCEPTED),
        ("abcd", Verdict.ACCEPTED),
        ("<refined>\nabcd</refined", Verdict.TRUNCATED),
        ("In <refined> tags:\n<refined>\nabcd\n</refined>", Verdict.TRUNCATED),
    ],
)
def test_tags_of_a_server_are_read_as_those_of_a_replica(tokenizer: Any, text: str, verdict: Verdict) -> None:
    with serving(always(chat(text))) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url, template="dialogue"))
        (found,) = refined(client, tokenizer, 1)
    assert found.verdict is verdict
    assert tokenizer.decode(found.token_ids[:-1]) == ("abcd" if verdict is Verdict.ACCEPTED else "")


def test_a_server_that_repeats_the_response(tokenizer: Any) -> None:
    """It is not rewarded again: every reward here would be 0.5."""
    with serving(always(chat("No 0."))) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url))
        (found,) = refined(client, tokenizer, 1)
    assert (found.verdict, found.reward, found.is_repeated) == (Verdict.NOT_BETTER, 0.0, True)


@pytest.mark.parametrize("owner", ["vllm", "sglang", "somebody"])
def test_an_answer_that_ends_with_its_program(tokenizer: Any, owner: str) -> None:
    """The fence is a part of it: a server that would leave it out is not told to end there."""
    models = Reply(body=json.dumps({"data": [{"id": MODEL, "owned_by": owner}]}).encode())
    with serving(always(chat("```\nab\n```\nThis program " + "is good. " * 999, "length")), models=models) as server:
        refiner = ExternalRefiner(config(server.url, template="apps"))
        refiner.wake_up()
        (found,) = refined(refiner.client(), tokenizer, 1)
    assert tokenizer.decode(found.token_ids[:-1]) == "```\nab\n```"
    sent = {name: value for name, value in server.bodies[0].items() if "stop" in name}
    expected = {"vllm": {"include_stop_str_in_output": True}, "sglang": {"no_stop_trim": True}}
    assert sent == ({"stop": "\n```\n", **expected[owner]} if owner in expected else {})


def test_requests_at_once_have_a_limit(tokenizer: Any) -> None:
    def together(message: str, num_before: int) -> Reply:
        assert comes_true(lambda: server.num_at_once >= 256 // 64 or server.num_asked == 3 * FEW)
        return GOOD

    with serving(together) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url), num_processes=64)
        found = refined(client, tokenizer, 3 * FEW)
    assert {one.verdict for one in found} == {Verdict.ACCEPTED}
    assert server.most_at_once == 256 // 64


def test_a_process_without_the_key_says_so_at_once(tokenizer: Any) -> None:
    with serving(always(GOOD)) as server:
        client = ExternalClient(servers={server.url: SERVED}, config=config(server.url, api_key_env="NOT_SET_HERE"))
        (found,) = refined(client, tokenizer, 1)
    assert (found.verdict, found.num_retries, server.num_asked) == (Verdict.REQUEST, 0, 0)
    assert found.text.startswith("refiner.api_key_env names no variable")


def closed_port() -> str:
    with serving(always(GOOD)) as server:
        return server.url


def test_another_server_has_the_requests_of_a_lost_one(tokenizer: Any) -> None:
    with serving(always(GOOD)) as server:
        urls = closed_port(), server.url
        client = ExternalClient(servers=dict.fromkeys(urls, SERVED), config=config(*urls))
        found = refined(client, tokenizer, 3 * FEW)
    assert {one.verdict for one in found} == {Verdict.ACCEPTED} and server.num_asked == 3 * FEW
    assert max(one.num_retries for one in found) == 1


def models(refiner: ExternalRefiner) -> dict[str, str]:
    return {url: one.model for url, one in refiner.client().servers.items()}


def test_who_is_there_is_asked_before_every_step() -> None:
    lists = [
        Reply(body=b'{"data": [{"id": "first"}, {"id": "second"}]}'),
        error(404),
        error(503),
        Reply(body=b"<html>"),
    ]
    servers = [Server(always(GOOD), models=one) for one in lists]
    urls = [one.url for one in servers]
    there, by_name = ExternalRefiner(config(*urls)), ExternalRefiner(config(*urls, served_model_name="mine"))
    assert (there.wake_up(), by_name.wake_up()) == (0, 0)
    assert models(there) == {urls[0]: "first"}
    expected = {url: "mine" for url in (urls[0], urls[1], urls[3])}
    assert models(by_name) == expected, "one that lists nothing, or no list, may still answer"
    servers[0].end()
    there.wake_up()
    assert there.client().servers == {}
    again = Server(always(GOOD), port=servers[0].server_address[1])
    there.wake_up()
    assert models(there) == {urls[0]: MODEL}
    for one in (*servers[1:], again):
        one.end()


def test_a_dead_server_of_a_data_source_costs_that_source(tokenizer: Any) -> None:
    """Sources without servers of their own share the common ones: what is in flight, and who is gone."""
    with serving(always(GOOD)) as common, serving(always(GOOD)) as far:
        own = {"like": {}, "warm": {"temperature": 0.5}, "far": {"url": far.url}, "dead": {"url": closed_port()}}
        settings = read_refiner({**vars(config(common.url)), "by_source": own})
        both = RefinerBySource(ExternalRefiner(settings), settings, {})
        both.wake_up()
        client = pickle.loads(pickle.dumps(both.client().shared(64)))  # as it comes to a worker
        assert client.addresses == {common.url, far.url}
        found = {source: refined(one, tokenizer) for source, one in client.by_source.items()}
    like, warm = client.by_source["like"], client.by_source["warm"]
    assert like.servers is warm.servers is client.servers and like._num_in_flight is warm._num_in_flight
    assert {source: {one.verdict for one in several} for source, several in found.items()} == {
        **dict.fromkeys(("like", "warm", "far"), {Verdict.ACCEPTED}),
        "dead": {Verdict.REQUEST},
    }
    assert Counter(body["temperature"] for body in common.bodies) == {0.0: FEW, 0.5: FEW}
    assert (common.keys, far.keys) == ({f"Bearer {KEY}"}, {"Bearer none"}), "a key goes to the servers that it is of"
    assert common.most_at_once <= 256 // 64


def test_a_wrong_url_of_a_data_source_is_one_line_before_the_start(config: DictConfig) -> None:
    with serving(always(GOOD)) as server:
        config.refiner.by_source = {"mini_apps": {"template": "math", "url": server.url}}
        run = checked(config)
    found = error_of(config)
    assert found.startswith("refiner.by_source.mini_apps: refiner.url: nobody answers at ")
    assert found.endswith(" [external-servers-answer]")
    plan = run.plan.describe(config, run.blocks, 4)
    assert f"- mini_apps    template math; by the first model of {server.url}\n" in plan and "colocated" in plan


FAULTS: dict[str, tuple[Reply, dict[str, Any], str]] = {
    "nothing is wrong": (GOOD, {}, ""),
    "it is busy": (error(429, ECHO), {}, ""),
    "another name of its model": (GOOD, {"served_model_name": "other"}, ""),
    "another model": (error(404, ECHO), {"served_model_name": "other"}, "refiner.served_model_name=other: "),
    "a refused model": (error(404, ECHO), {}, "refiner.url: "),
    "a refused key": (error(401, ECHO), {}, "refiner.api_key_env: "),
    "an error": (error(500, ECHO), {}, "refiner.url: "),
    "another path": (GOOD, {}, "refiner.served_model_name=null: "),
    "another path, by name": (GOOD, {"served_model_name": MODEL}, "refiner.url: "),
    "garbage": (Reply(body=b"<html>"), {}, "refiner.url: "),
    "an answer in parts": (Reply(body=b"data: {}"), {"extra_body": {"stream": True}}, "refiner.url: "),
    "sent elsewhere": (Reply(status=307, headers={"location": f"/v2?key={KEY}"}), {}, "refiner.url: "),
    "all in its reasoning": (reasoned("", "Yes."), {}, "refiner.url: the answer of "),
    "all in its reasoning, null": (reasoned(None, "Yes."), {}, "refiner.url: the answer of "),
    "in the middle of a thought": (reasoned("", "They want", "length"), {}, ""),
    "an error beside status 200": (Reply(body=error(200, "overloaded").body), {}, "refiner.url: "),
    "several": (several(GOOD, GOOD), {"samples": 2, "temperature": 1.0}, ""),
    "fewer than asked for": (GOOD, {"samples": 2, "temperature": 1.0}, "refiner.url: "),
    "no key": (GOOD, {"api_key_env": KEY.replace("-", "_")}, "refiner.url: "),
}


@pytest.mark.parametrize("played", FAULTS)
def test_what_is_found_before_a_start(played: str) -> None:
    reply, changes, expected = FAULTS[played]
    with serving(always(reply)) as server:
        url = server.url.removesuffix("/v1") if "another path" in played else server.url
        found = fault(config(url, **changes)) or ""
    assert found.startswith(expected) and bool(found) is bool(expected)
    assert "\n" not in found
    tells_no_key(found)


@pytest.mark.parametrize("url", [f"host/v1?key={KEY}", f"me:{KEY}@host/v1", f"host/{KEY}"])
def test_an_address_that_is_none_is_not_shown_with_a_key(url: str) -> None:
    found = config(url).fault_of_url() or ""
    assert found.startswith("refiner.url holds more than host and path")
    tells_no_key(found)


def test_half_an_address_is_one_line() -> None:
    own = config("http://[::1/v1")
    found = own.fault_of_url() or fault(own) or ""
    assert found.startswith("refiner.url: nobody answers at http://[::1/v1 (InvalidURL)")


ON_THE_WAY = {
    "a proxy that does not answer": ({"http_proxy": "http://me:secret@127.0.0.1:9"}, "$http_proxy sends requests to a"),
    "another name of it": ({"HTTP_PROXY": "http://127.0.0.1:9"}, "$HTTP_PROXY sends requests to a proxy: unset it, or"),
    "without a scheme": ({"http_proxy": "127.0.0.1:9"}, "add 127.0.0.1 to no_proxy"),
    "another host is excepted": ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "localhost"}, "($no_proxy does not"),
    "of all schemes": ({"ALL_PROXY": "http://127.0.0.1:9"}, "$ALL_PROXY sends requests to a proxy"),
    "of another protocol": ({"all_proxy": "socks5://127.0.0.1:9"}, "$all_proxy sends requests to a proxy"),
    "no certificates": ({"SSL_CERT_FILE": "/nope.pem"}, "$SSL_CERT_FILE names the certificates that are trusted"),
    "of https": ({"https_proxy": "http://127.0.0.1:9"}, ""),
    "the host is excepted": ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1,localhost"}, ""),
}


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Take out what this machine has on the way to servers."""
    for name in [name for name in os.environ if name.casefold().endswith("_proxy") or name.startswith("SSL_CERT")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("on_the_way", ON_THE_WAY)
def test_what_keeps_a_request_from_its_server_is_named(no_proxy: pytest.MonkeyPatch, on_the_way: str) -> None:
    variables, expected = ON_THE_WAY[on_the_way]
    for name, value in variables.items():
        no_proxy.setenv(name, value)
    with serving(always(GOOD)) as server:
        found = fault(config(server.url)) or ""
    assert expected in found and bool(found) is bool(expected)
    assert "/v1 mostly" not in found and "secret" not in found and "\n" not in found


def test_a_proxy_that_answers_in_the_place_of_a_server_is_named(no_proxy: pytest.MonkeyPatch) -> None:
    with serving(always(GOOD), models=error(503)) as proxy:
        no_proxy.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        assert "$http_proxy sends requests to a proxy" in (fault(config("http://node7:8000/v1")) or "")
        no_proxy.delenv("http_proxy")
        assert "proxy" not in (fault(config(proxy.url)) or "")


def test_a_server_that_is_not_there_is_told_with_an_address_to_try(no_proxy: pytest.MonkeyPatch) -> None:
    found = fault(config("http://127.0.0.1:9/v1")) or ""
    assert found.endswith("; start the server, or correct the address, such as http://HOST:8000/v1")


def test_a_list_of_models_that_is_busy_is_no_fault() -> None:
    with serving(always(GOOD), models=error(429)) as server:
        assert fault(config(server.url)) is None


def test_a_wrong_url_is_one_line_before_the_start(config: DictConfig) -> None:
    config.refiner.placement, config.refiner.url, config.measure.num_kl_rollouts = "external", closed_port(), 0
    assert error_of(config).endswith(" [external-servers-answer]")
    with serving(always(GOOD)) as server:
        config.refiner.url = server.url
        run = checked(config)
    assert server.url in run.plan.describe(config, run.blocks, 4)


@pytest.mark.parametrize(("status", "said"), [(400, "400 Bad Request"), (401, "401 Unauthorized"), (599, "599")])
def test_an_error_has_nothing_of_what_a_server_sends(status: int, said: str) -> None:
    with serving(always(error(status, ECHO)), models=error(404)) as server:
        found = fault(config(server.url, served_model_name=MODEL)) or ""
    assert f"{server.url} answers {said}" in found
    tells_no_key(found)
