"""The page as a file, and the command that writes it: from whole, unfinished, empty and damaged run directories."""

import base64
import csv
import hashlib
import html.parser
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.report.arms import group
from recipe.report.page import Report, write
from recipe.report.runs import read_runs

REPOSITORY = Path(__file__).parents[3]
HOSTILE = "</script></pre>--><script>alert(1)</script x <!-- <script \x00 \ud800 \u2028 &amp;"


class Parts(html.parser.HTMLParser):
    """What a browser would see: elements by tag with their attributes, and the text of the scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data

    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def report(paths: list[Path], output: Path, num_rows: int = 300) -> str:
    runs, left_out = read_runs(paths)
    page, *images, curves = write(Report(runs=runs, arms=group(runs, {}), left_out=left_out, num_rows=num_rows), output)
    assert all(image.read_bytes().startswith(b"\x89PNG") for image in images)
    assert curves.name == "curves.csv"
    return page.read_text(encoding="utf-8")


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "scripts/report.py", *map(str, arguments)]
    return subprocess.run(call, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def test_curves_are_a_table_as_well(write_run: Callable, tmp_path: Path) -> None:
    refined = {"refiner/num_attempted": 4, "refiner/improvement_ratio": 0.0, "timing_s/step": 2.5}
    settings = {"trainer": {"experiment_name": "refined, twice"}, "data": {"seed": 7}}
    paths = [
        write_run("a", [0.25, None], metrics=refined, config=settings),
        write_run("b", [1.0], metrics={"val-core/x/acc/mean@1": 0.125, "refiner/improvement_ratio": 0.0}),
    ]
    report(paths, tmp_path / "page.html")
    with (tmp_path / "page_figures" / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["run"], row["seed"], row["step"]) for row in rows] == [
        *(("refined, twice", "a", "7", "1"), ("refined, twice", "a", "7", "2"), ("x", "b", "", "1"))
    ]
    assert [row["reward/mean"] for row in rows] == ["0.25", "", "1"]
    assert [row["refiner/improvement_ratio"] for row in rows] == ["0", "0", ""], "nothing was refined in b"
    assert [row["val-core/x/acc/mean@1"] for row in rows] == ["", "", "0.125"]
    assert [row["timing_s/step"] for row in rows] == ["2.5", "2.5", ""]


def test_model_written_text_is_data_and_nothing_else(write_run: Callable, refinement: Callable, tmp_path: Path) -> None:
    tokens = [{"step": 1, "key": "u_1", "response": [[HOSTILE, -1.0]], "refined": [[HOSTILE, -1.0]]}]
    rows = [
        refinement(
            1, "accepted", response=HOSTILE, refined=HOSTILE + "!", prompt=[{"role": "user", "content": HOSTILE}]
        ),
        refinement(2, HOSTILE, detail=HOSTILE),
    ]
    config = {"trainer": {"experiment_name": HOSTILE.replace("\ud800", "")}}  # YAML has no halves of characters
    text = report([write_run("a", [0.0], config=config, refinements=rows, tokens=tokens)], tmp_path / "page.html")
    page = Parts(text)
    assert [attributes.get("type") for tag, attributes in page.elements if tag == "script"] == [
        "application/json",
        None,
    ]
    assert not set("<>&") & set(text.split('id="data">')[1].split("</script>")[0]), "a browser ends it at </script too"
    shown = HOSTILE.replace("\x00", "⟨00⟩").replace("\ud800", "⟨D800⟩")
    assert page.data()["rows"][0]["pieces"][:2] == [0, shown] and page.data()["pairs"][0]["refined"] == [[shown, -1.0]]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text, "the browser runs this script and no other"


def test_the_page_needs_nothing_from_elsewhere(write_run: Callable, tmp_path: Path) -> None:
    page = Parts(report([write_run("a", [0.0, 1.0])], tmp_path / "page.html"))
    links = [value for _, attributes in page.elements for name, value in attributes.items() if name in ("src", "href")]
    assert links and all(link and link.startswith("#") for link in links)
    assert "url(http" not in (tmp_path / "page.html").read_text()


def test_the_same_runs_give_the_same_page(write_run: Callable, refinement: Callable, tmp_path: Path) -> None:
    run = write_run("a", [0.0, 1.0], refinements=[refinement(step, "accepted") for step in range(50)])
    assert report([run], tmp_path / "one.html", 20) == report([run], tmp_path / "two.html", 20)


def test_the_tables_hold_the_numbers(write_run: Callable, refinement: Callable, tmp_path: Path) -> None:
    rows = [refinement(step, "accepted" if step < 10 else "truncated") for step in range(40)]
    first = write_run("a", [0.0, 0.5, 0.5], refinements=rows)
    text = report([first, write_run("b", [0.0, 1.0, 1.0])], tmp_path / "page.html", 8)
    words = " ".join(re.sub(r"<[^>]*>", " ", text[: text.index('id="data"')]).split())
    assert "0.500 ± 0.236 0.333 to 0.667" in words, "final reward over the last three steps"
    assert "truncated cut by the length limit" in words and "x 40 10 25 % 30 75 %" in words
    assert "These counts are of all 40 responses. The table below holds 8 of them" in words


def test_arms_with_seeds_are_compared_and_others_are_not(write_run: Callable, tmp_path: Path) -> None:
    def run(mode: str, seed: int, reward: float) -> Path:
        settings = {"trainer": {"experiment_name": mode}, "data": {"seed": seed}}
        return write_run(f"{mode}-{seed}", [reward] * 3, config=settings)

    runs = [run("none", seed, 0.1 * seed) for seed in range(3)] + [
        run("sft", seed, 0.5 + 0.1 * seed) for seed in range(3)
    ]
    text = report(runs, tmp_path / "page.html")
    words = " ".join(re.sub(r"<[^>]*>", " ", text[text.index('id="comparison"') : text.index('id="costs"')]).split())
    assert "P(above none)" in words and "none 3 0.100 (0.000 to 0.200) sft 3 0.600 (0.500 to 0.700)" in words
    assert "1.00 (1.00 to 1.00) 0.100" in words, "two of the twenty ways to deal six values are as far apart"
    assert (tmp_path / "page_figures" / "profile_reward_mean.png").exists()
    assert 'id="comparison"' not in report([runs[0], *runs[3:]], tmp_path / "few.html")


def test_a_run_that_is_still_going_and_one_without_refinements(
    write_run: Callable, refinement: Callable, tmp_path: Path
) -> None:
    going, plain = write_run("going", [0.0, 0.5], refinements=[refinement(1, "accepted")]), write_run("plain", [0.1])
    for name, cut in (("metrics", b'{"step": 3, "rew'), ("refinements", '{"step": 2, "response": "é'.encode()[:-1])):
        with (going / f"{name}.jsonl").open("ab") as file:
            file.write(cut)
    (going / "tokens.jsonl").write_bytes(b'{"step"')
    result = command(going, plain, "--output", tmp_path / "out")
    assert (result.returncode, result.stderr) == (0, "")
    page = tmp_path / "out" / "report.html"
    assert result.stdout == f"{page}\n"
    assert len(Parts(page.read_text()).data()["rows"]) == 1
    assert "No run recorded the tokens of an accepted pair" in page.read_text()
    plain_page = report([plain], tmp_path / "plain.html")
    assert "No run has refinements" in plain_page and "Improvement ratio, " in plain_page, "said, not drawn as 0"


def test_what_has_nothing_to_show_is_left_out_and_said(write_run: Callable, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = command(write_run("a", [0.0]), tmp_path / "empty", "--output", tmp_path / "page.html")
    line = f"{tmp_path / 'empty'}: not a run directory (config.yaml is missing)"
    assert (result.returncode, result.stderr) == (0, f"left out: {line}\n")
    assert line in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "not a run directory (config.yaml is missing)"),
        ({"config.yaml": "a: 1"}, "no step is finished yet"),
        ({"config.yaml": "a: 1", "metrics.jsonl": '{"step": 1'}, "no step is finished yet"),
        ({"config.yaml": "a: [", "metrics.jsonl": '{"step": 1}\n'}, "not YAML"),
        ({"config.yaml": "a: 1", "metrics.jsonl": '{"step": 1}\nnot JSON\n'}, ", metrics, line 2: not JSON"),
        (
            {"config.yaml": "a: 1", "metrics.jsonl": '{"step": 1}\n', "refinements.jsonl": "7\n"},
            "line 1: not an object",
        ),
    ],
)
def test_nothing_to_show_is_one_line(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = command(tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and message in result.stderr and result.stderr.count("\n") == 1


def test_arms_may_be_named_on_the_command_line(write_run: Callable, tmp_path: Path) -> None:
    first, second = write_run("a", [0.0]), write_run("b", [1.0], config={"constraint": {"eta": 1}})
    result = command("--arm", f"mine={first},{second}", "--output", tmp_path / "page.html")
    assert result.returncode == 0, result.stderr
    assert "<title>mine –" in (tmp_path / "page.html").read_text()
    assert command("--arm", "mine").returncode == 2


def test_words_of_ones_own_open_the_page(write_run: Callable, tmp_path: Path) -> None:
    run = write_run("a", [0.0, 1.0])
    (tmp_path / "dot.png").write_bytes(b"\x89PNG dot")
    (tmp_path / "words.md").write_text(
        "## Asked\n\n| arm | outcome |\n| --- | --- |\n| `sft` | 0.5 |\n\n![a dot](dot.png) <b>[x](javascript:x)</b>\n"
    )
    output = tmp_path / "page.html"
    done = command(run, "--output", output, "--preface", tmp_path / "words.md")
    assert done.returncode == 0, done.stderr
    text = output.read_text(encoding="utf-8")
    opening = text[text.index('<section id="preface">') : text.index('<section id="results">')]
    assert "<h2>Asked</h2>" in opening and "<td><code>sft</code></td>" in opening
    image = base64.b64encode(b"\x89PNG dot").decode()
    assert f'<img src="data:image/png;base64,{image}" alt="a dot">' in opening
    assert "&lt;b&gt;" in opening and 'href="javascript' not in opening
    (tmp_path / "dot.png").unlink()
    failed = command(run, "--output", output, "--preface", tmp_path / "words.md")
    assert failed.returncode == 2 and "dot.png" in failed.stderr and "Traceback" not in failed.stderr
    assert 'id="preface"' not in report([run], output)


def test_many_arms_are_drawn_without_their_bands(write_run: Callable, tmp_path: Path) -> None:
    def opacities(num_arms: int) -> set[str]:
        runs = [
            write_run(f"{num_arms}-{arm}-{seed}", [seed, arm], config={"trainer": {"experiment_name": f"{arm} arm"}})
            for arm in range(num_arms)
            for seed in (0.0, 1.0)
        ]
        svg = report(runs, tmp_path / "page.html")
        bands = re.findall(r'<g id="reward_mean-arm-\d-band">(.*?)</g>', svg, re.DOTALL)
        assert len(bands) == num_arms
        return {opacity for band in bands for opacity in re.findall(r"fill-opacity: ([\d.]+)", band)}

    assert opacities(6) == {"0.15"}
    assert opacities(7) == {"0"}
