"""A real browser, driven by its own protocol (Chrome DevTools): Debian's chromium, headless."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium")


class Page:
    """A page that is open."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count()
        self.requests: list[str] = []
        """URLs that were asked for."""
        self.errors: list[str] = []
        """What went wrong in scripts, and what the page's policy refused."""
        self._call("Page.enable")
        self._call("Runtime.enable")
        self._call("Log.enable")
        self._call("Network.enable")

    def open(self, file: Path) -> None:
        """Open a file and wait until its own script is done."""
        self._call("Page.navigate", url=file.as_uri())
        while self.run("document.documentElement?.dataset.ready") != "yes":
            pass  # each answer takes its time; the suite's timeout ends it

    def run(self, script: str) -> Any:
        """Return what an expression of JavaScript is."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, before a page is opened."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def click(self, selector: str) -> None:
        """Click on the middle of an element, as a mouse does."""
        spot = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); "
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        for letter in text:
            self._call("Input.dispatchKeyEvent", type="keyDown", text=letter)
            self._call("Input.dispatchKeyEvent", type="keyUp")

    def draw(self, selector: str, file: Path, height: int) -> None:
        """Write a PNG of an element's first ``height`` lines of pixels."""
        box = self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect(); "
            "return {x: box.x, y: box.y, width: box.width, height: box.height, scale: 1}; })()"
        )
        clip = {**box, "height": min(box["height"], height)}
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png", clip=clip)["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv())
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]
            self._note(said.get("method"), said.get("params", {}))

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif event == "Page.javascriptDialogOpening":
            self.errors.append(f"a dialog: {params['message']}")


@contextlib.contextmanager
def browsing() -> Iterator[Page]:
    """Yield an empty page of a browser of its own."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1280,900", "about:blank"]
        process = subprocess.Popen([CHROMIUM, *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            assert process.stderr is not None
            port = next(line for line in process.stderr if "DevTools listening on" in line).split(":")[2].split("/")[0]
            yield _first_page(int(port))
        finally:
            process.terminate()
            process.wait()


def _first_page(port: int) -> Page:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        (target,) = [one for one in json.load(answer) if one["type"] == "page"]
    return Page(connect(target["webSocketDebuggerUrl"], max_size=None))
