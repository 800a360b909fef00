"""The report as a person sees it: one page in headless Chromium, driven over its DevTools pipe."""

import fcntl
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Debian's package chromium, or Chrome"),
]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
PATIENCE_S = 30.0
HOSTILE = (
    "</script><script>window.broken = 1</script x <!-- <script ",
    "<img src=x onerror='window.broken = 2'>",
    "</pre></td></table>--><!-- <style>body { display: none }</style>",
    "\x00\x1b[31m\x07\u202egnirts\u202c \ud800 lone \udfff {{ 7 * 7 }} $\\frac{1}$ \u2028",
    "javascript:window.broken=3 &lt;b&gt; ' \" ` ${window.broken = 4}",
)


class Browser:
    """Chromium with one tab: a call waits for its answer; what went wrong in the page and what it loaded is kept."""

    def __init__(self, profile: Path) -> None:
        low = (*os.pipe(), *os.pipe())
        commands, self.writer, self.reader, answers = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
        start = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'  # Chromium reads descriptor 3 and writes to 4
        command = ["bash", "-c", start, str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(command, pass_fds=(commands, answers), stderr=subprocess.DEVNULL)
        for end in (*low, commands, answers):
            os.close(end)
        self.received = b""
        self.num_calls = 0
        self.session: str | None = None
        self.errors: list[str] = []
        self.loaded: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.num_calls += 1
        session = {"sessionId": self.session} if self.session else {}
        message = {"id": self.num_calls, "method": method, "params": parameters, **session}
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.num_calls:
                assert "error" not in answer, answer
                return answer["result"]

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.received:
            assert select.select([self.reader], [], [], PATIENCE_S)[0], "the browser says nothing"
            more = os.read(self.reader, 1 << 20)
            assert more, "the browser ended"
            self.received += more
        line, self.received = self.received.split(b"\0", 1)
        message = json.loads(line)
        event, about = message.get("method", ""), message.get("params", {})
        if event == "Runtime.exceptionThrown" or (event == "Runtime.consoleAPICalled" and about["type"] != "log"):
            self.errors.append(json.dumps(about))
        elif event == "Log.entryAdded":
            self.errors.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.loaded.append(about["request"]["url"])
        return message

    def open(self, page: Path, width: int = 1366) -> None:
        self.errors, self.loaded = [], []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        x, y = self.value(
            f"(() => {{ const one = document.querySelector({selector!r}); one.scrollIntoView({{block: 'center'}});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.click(selector)
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option: the list itself is drawn outside the page and cannot be clicked."""
        self.value(
            f"(() => {{ const one = document.querySelector({selector!r}); one.value = {value!r};"
            "one.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def texts(self, selector: str) -> list[str]:
        return self.value(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.session = None
    started.call("Browser.close")
    started.process.wait(20)


def make_run(path: Path, *, arm: int = 0, seed: int = 1, num_steps: int, hostile: bool = False) -> Path:
    """Write a run directory: arms differ in eta, runs of an arm in the seed alone; arm 1 refines nothing."""
    draw = random.Random(f"{arm} {seed}")
    constraint = {"mode": "penalty", "eta": 10.0 ** -(2 + arm)} if arm != 1 else {"mode": "none"}
    config = {"data": {"seed": seed}, "constraint": constraint, "trainer": {"experiment_name": "apps_dapo"}}
    steps = range(1, num_steps + 1)
    metrics = [
        {
            **{"step": step, "reward/mean": step / 40 + draw.random(), "kl_ref/k3": 0.01, "timing_s/step": 92.0},
            **{"refiner/num_attempted": 12 * (arm != 1), "refiner/improvement_ratio": draw.random()},
            **{"constraint/cross_entropy_accepted": float(arm != 1), "constraint/penalty": -1e-4 * (arm != 1)},
            **({"val-core/mini_apps/acc/mean@1": draw.random()} if step % 5 == 0 else {}),
        }
        for step in steps
    ]
    places = [(step, place) for step in (steps if arm != 1 else ()) for place in range(16)]
    rows = [
        row_of(step, f"{step}_{place}", HOSTILE[(step + place) % len(HOSTILE)] if hostile else "", draw)
        for step, place in places
    ]
    (path / "refinements").mkdir(parents=True)
    (path / "config.yaml").write_text(json.dumps({**config, "run_dir": str(path)}))  # JSON is YAML as well
    for name, lines in (("metrics", metrics), ("refinements/000001.w0", rows)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def row_of(step: int, key: str, hostile: str, draw: random.Random) -> dict[str, Any]:
    verdict, number = draw.choice(("accepted", "not_better", "truncated", "max_reward", "timeout")), draw.randint(2, 30)
    refined = f"def add_{number}(x):\n    return x + {number}{hostile}"
    reward = draw.choice((-1.0, -0.6, -0.3))
    return {
        **{"step": step, "key": key, "verdict": verdict, "reward": reward},
        "prompt": [{"role": "user", "content": f"Write a function `add_{number}(x)` that returns x plus {number}."}],
        "response": f"def add_{number}(x):\n    returning x + {number}{hostile}",
        "refined": refined if verdict in ("accepted", "not_better") else None,
        "refined_reward": {"accepted": 1.0, "not_better": reward}.get(verdict),
        "detail": refined[12:] if verdict == "truncated" else "",
    }


def report(runs: list[Path], page: Path, *arguments: str) -> Path:
    command = [sys.executable, "-m", "recipe.report", *map(str, runs), "--output", str(page), *arguments]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=120)
    return page


def check_basics(browser: Browser, page: Path) -> None:
    for width in (1280, 1440):
        browser.open(page, width)
        assert browser.value("document.documentElement.scrollWidth") <= width, "no scrolling to the side"
    assert browser.errors == []
    assert browser.loaded == [page.as_uri()], "nothing from elsewhere"


def test_one_run(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", num_steps=20)
    check_basics(browser, page := report([run], tmp_path / "page.html"))
    assert browser.value("document.title") == "apps_dapo – online refiner report"
    assert browser.value("document.querySelectorAll('figure svg').length") == 5 + 1
    rows = [json.loads(line) for line in (run / "refinements" / "000001.w0.jsonl").read_text().splitlines()]

    browser.choose("#verdict", "accepted")
    accepted = sum(row["verdict"] == "accepted" for row in rows)
    assert browser.texts("#shown") == [f"{accepted} of 320 match, 50 shown"]
    assert set(browser.texts("#rows tbody td:nth-child(3)")) == {"accepted"}
    browser.click("#more")
    assert len(browser.texts("#rows tbody tr")) == min(100, accepted)

    browser.choose("#verdict", "")
    word = rows[200]["prompt"][0]["content"].split("`")[1]
    browser.type("#search", f"{word.upper()} write")
    found = sum(word in json.dumps(row) for row in rows)
    browser.wait_for(f"document.querySelector('#shown').textContent.startsWith('{found} of 320 match')")
    assert all(word in text for text in browser.texts("#rows tbody tr"))
    assert browser.errors == [] and browser.loaded == [page.as_uri()]


def test_fifteen_runs_with_hostile_texts(browser: Browser, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"arm{arm}_seed{seed}", arm=arm, seed=seed, num_steps=12, hostile=True)
        for arm in range(5)
        for seed in range(3)
    ]
    check_basics(browser, page := report(runs, tmp_path / "page.html", "--rows", "600"))
    assert len(browser.texts("#results-table tbody tr")) == 5
    counted = "These counts are of all 2,304 responses. The table below holds 600"
    assert browser.texts("#sampling")[0].startswith(counted)
    assert browser.value("window.broken") is None
    assert browser.value("document.scripts.length") == 2
    assert browser.texts("img, iframe, object, base, main style:not(svg style)") == []
    assert browser.value("getComputedStyle(document.body).display") == "block"
    browser.type("#search", "onerror='window.broken")
    browser.wait_for("!document.querySelector('#shown').textContent.startsWith('600 of')")
    shown = browser.texts("#rows tbody tr")
    assert shown and all("<img src=x onerror='window.broken = 2'>" in text for text in shown)
    browser.choose("#run", "14")
    assert set(browser.texts("#rows tbody td:nth-child(2)")) == {"arm4_seed2"}
    assert browser.errors == [] and browser.loaded == [page.as_uri()]
