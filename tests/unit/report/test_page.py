"""The page in a real browser: nothing is loaded, no text runs, curves and tokens are there, filters work."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Page, browsing
from made_run import half_a_line, make_run, metrics, record, tokens
from PIL import Image

from recipe.report.page import write_page
from recipe.report.reading import read_runs
from recipe.report.words import VERDICTS
from recipe.runs.files import TOKENS, Records, RunDir
from recipe.runs.thumbnails import FOLDER, Thumbnails

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (Debian's package of this name)")

QUICKSTART = Path(__file__).parent / "runs" / "quickstart"
"""What a run of ``scripts/quickstart.sh`` has left, without checkpoints."""
HOSTILE = (
    "</script><script>window.ran = 1</script><!--<script>",
    '<img src="http://example.invalid/x.png" onerror="window.ran = 2">',
    "{{ 7 * 7 }}{% raw %}\u2028\u2029\U0001f44d half: \ud83d",
    "\"'><svg onload='window.ran = 3'><a href=\"javascript:window.ran=4\">x</a>&lt;b&gt;\0",
)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browsing() as page:
        yield page


@pytest.fixture
def show(page: Page, tmp_path: Path) -> Callable[..., Page]:
    """Return a function that opens the page on some runs, and holds that it is alone and sound."""

    def show(*runs: Path) -> Page:
        file = tmp_path / "report.html"
        file.write_bytes(write_page(read_runs(list(map(str, runs)))))
        page.requests.clear()
        page.errors.clear()
        page.open(file)
        assert page.errors == []
        assert {url.partition(":")[0] for url in page.requests} <= {"file", "data", "blob"}
        assert [url for url in page.requests if url.startswith("file")] == [file.as_uri()]
        return page

    return show


def texts(page: Page, selector: str) -> list[str]:
    seen = f"[...document.querySelectorAll({selector!r})].filter((one) => one.checkVisibility())"
    return page.run(f"{seen}.map((one) => one.textContent)")


def number_of(page: Page, selector: str) -> int:
    return len(texts(page, selector))


def test_curves_findings_and_tokens_of_a_run_are_there(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(make_run(tmp_path / "run"))
    titles = texts(page, ".plot-card h3")
    for title in ("Reward", "Improvement ratio", "KL to the reference model", "Cross-entropy of refinements"):
        assert title in titles
    assert "Validation: mini_apps/reward/mean@1" in titles and "Seconds of a step, by stage" in titles
    assert number_of(page, ".plot svg.main-svg") >= len(titles)
    points = "document.querySelectorAll('.plot')[0].data[0].y"
    assert page.run(points) == pytest.approx([-0.38, -0.28, -0.18])
    assert page.run("document.querySelectorAll('.plot')[0].querySelectorAll('.point').length") == 3
    assert "Does refining beat answering again?" in texts(page, "article h3")
    assert texts(page, "#diff del") == ["3"] and texts(page, "#diff ins") == ["4"]
    assert texts(page, ".heat")[0] == "The answer is 3"
    assert texts(page, ".heat .token.charged") == [" 3", " 4"]
    shown = page.run("[...document.querySelectorAll('.heat .token')].map((one) => Number(one.dataset.logProb))")
    assert shown == [0, -0.5, -1, -0.25, -0.25, -3.25]
    assert "charged 3.250 nats" in page.run("document.querySelectorAll('.heat .token')[2].title")
    colours = page.run(
        "[...document.querySelectorAll('.heat .token')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(colours)) == 5, "the likelier, the paler"


def test_the_improvement_ratio_is_drawn_by_data_source(show: Callable[..., Page], tmp_path: Path) -> None:
    title = "Improvement ratio by data source"
    assert title not in texts(show(make_run(tmp_path / "plain")), ".plot-card h3")
    folder = make_run(tmp_path / "run")
    prefix, written = "refiner/source_improvement_ratio/", RunDir(folder)
    for step, ratios in {4: {"sums": 0.5, "open/<b>apps</b>": 0.25}, 5: {"sums": 0.75}}.items():
        written.write_metrics(step, {**metrics(step), **{prefix + source: one for source, one in ratios.items()}})
    page = show(folder)
    card = f"[...document.querySelectorAll('.plot-card')].find((one) => one.textContent.includes({title!r}))"
    drawn = page.run(f"{card}.querySelector('.plot').data.map((one) => [one.name, one.x, one.y])")
    assert drawn == [["open/&lt;b&gt;apps&lt;/b&gt;", [4], [0.25]], ["sums", [4, 5], [0.5, 0.75]]]
    assert page.run(f"[...{card}.querySelectorAll('.legendtext')].map((one) => one.textContent)") == [
        "open/<b>apps</b>",
        "sums",
    ]


def test_a_run_of_the_quickstart(show: Callable[..., Page]) -> None:
    page = show(QUICKSTART)
    assert "8 of 8" in texts(page, "#done td")
    assert number_of(page, ".plot .bars path") > 20 and number_of(page, ".plot .scatter .point") > 20
    assert texts(page, "#count") == ["128 of 128"]
    page.click("[name=tokens]")
    assert texts(page, "#count") == ["59 of 128"]
    page.click("#list li:first-child button")
    found = page.run("[...document.querySelectorAll('.heat .token')].map((one) => Number(one.dataset.logProb))")
    assert len(found) > 30 and min(found) < -1 and all(value <= 0 for value in found)
    response, refined = texts(page, ".heat")
    assert response.replace("⏎", "").startswith(texts(page, "#diff span")[0].rstrip()), "the same text"
    assert "<|im_end|>" in refined and number_of(page, ".heat .token.charged") > 10, "what is imitated"


OVERLAPS = """
(() => {
  const box = (one) => one.getBoundingClientRect();
  const meet = (one, other) => {
    const [a, b] = [box(one), box(other)];
    return a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  };
  const found = [];
  for (const card of document.querySelectorAll(".plot-card")) {
    const [title, legend, area] = [".xtitle", ".legend .bg", ".nsewdrag"].map((one) => card.querySelector(one));
    const name = card.querySelector("h3").textContent;
    if (legend && meet(title, legend)) found.push(`${name}: the axis title lies on the legend`);
    if (legend && meet(area, legend)) found.push(`${name}: the legend lies on the curves`);
    if ([...card.querySelectorAll(".xtick text")].some((one) => meet(title, one))) found.push(`${name}: title on tick`);
    if (box(card.querySelector("svg.main-svg")).right > box(card).right + 1) found.push(`${name}: it is cut`);
  }
  const parts = ".plot-card, article, #filters, #browser, #detail, h1, .summary, .origin";
  for (const one of document.querySelectorAll(parts))
    if (one.checkVisibility() && box(one).right > innerWidth + 1) found.push(`${one.className}${one.id}: too wide`);
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) found.push(`the page has ${width} pixels`);
  return found;
})()
"""
"""Returns what lies upon something else, or beyond the window."""


@pytest.mark.parametrize("width", [1280, 600, 400])
def test_nothing_lies_upon_another_part_in_a_window_of_any_width(
    show: Callable[..., Page], page: Page, tmp_path: Path, width: int
) -> None:
    page.resize(width, 900)
    try:
        show(QUICKSTART)
        assert page.run("innerWidth") == width and page.run(OVERLAPS) == []
        folder = make_run(tmp_path / ("a_name_without_a_place_to_break_it" * 2))
        RunDir(folder).write_start(START)
        show(folder)
        assert page.run(OVERLAPS) == []
    finally:
        page.resize(1280, 900)


START = {
    "at": "2026-11-29T10:00:00+00:00",
    "command": ["online-refiner", "train", "experiment=grpo", "data.train_files=my data.parquet", "run_dir=runs/mine"],
    "versions": {"online-refiner": "0.5.0", "verl": "0.9.1"},
    "commit": "0123456789ab",
}


def test_the_page_sums_up_and_says_how_to_repeat_the_run(show: Callable[..., Page], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    RunDir(folder).write_start(START)
    page = show(folder)
    levels = [number_of(page, f"article.{level}") for level in ("act", "note", "good")]
    (line,) = texts(page, ".summary")
    assert [int(one) for one in re.findall(r"\d+", line)] == levels and "to change" in line and "fine" in line
    (origin,) = texts(page, ".origin")
    assert "started 2026-11-29T10:00:00+00:00, data.seed=1" in origin and "verl 0.9.1, commit 0123456789ab." in origin
    assert texts(page, ".origin code") == [shlex.join(START["command"])]
    assert texts(page, ".command") == [
        "online-refiner train experiment=grpo 'data.train_files=my data.parquet' run_dir=runs/mine-none "
        "constraint.mode=none"
    ], "the control"
    assert number_of(page, "article details") == number_of(page, "article"), "each says what it means"
    assert page.run("document.querySelector('#filters option[value=truncated]').text") == VERDICTS["truncated"]


def test_filters_work_when_they_are_used(show: Callable[..., Page], tmp_path: Path) -> None:
    special = record("c_0_0", prompt=[{"role": "user", "content": "Sing."}], data_source="songs", refined_reward=0.25)
    folder = make_run(tmp_path / "run")
    # The reward of one was no number: nobody knows the gain.
    lost = record("d_0_0", reward=None, refined_reward=3.0, verdict="not_better")
    Records(f"{folder}/refinements").write(2, "w1", [special, lost])
    page = show(folder)

    def choose(name: str, value: str) -> None:
        page.run(
            f"(() => {{ const one = document.getElementById('filters').elements[{name!r}]; one.value = {value!r};"
            "one.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    assert texts(page, "#count") == ["14 of 14"]
    choose("verdict", "truncated")
    assert texts(page, "#count") == ["3 of 14"] and "The answ" in texts(page, "#detail pre")
    choose("verdict", "")
    page.click("[name=tokens]")
    assert texts(page, "#count") == ["3 of 14"]
    page.click("[name=tokens]")
    page.click("[name=words]")
    page.type("sing")
    assert texts(page, "#count") == ["1 of 14"] and texts(page, ".question") == ["Sing."]
    choose("words", "Is 4.")
    assert texts(page, "#count") == ["8 of 14"], "in the refinement, over the place where it differs"
    choose("words", "")
    choose("source", "songs")
    assert texts(page, "#count") == ["1 of 14"]
    choose("source", "")
    choose("first", "2")
    choose("last", "2")
    assert texts(page, "#count") == ["6 of 14"]
    choose("gain", "2")
    assert texts(page, "#count") == ["1 of 14"] and "−1.00 → +1.00" in texts(page, "#detail h3")[0]
    choose("gain", "")
    page.click("#list li:last-child button")
    assert number_of(page, "#list .chosen") == 1 and "Step 2: " in texts(page, "#detail h3")[0]


def test_three_arms_with_two_seeds(show: Callable[..., Page], tmp_path: Path) -> None:
    modes = ("none", "sft", "penalty")
    page = show(*(make_run(tmp_path / f"{m}-{s}", seed=s, constraint__mode=m) for m in modes for s in (1, 2)))
    assert texts(page, "#done tbody th") == [f"mode={mode}" for mode in modes]
    curves = page.run("document.querySelectorAll('.plot')[0].data.map((one) => [one.name ?? null, one.fill ?? null])")
    assert curves == [one for mode in modes for one in ([None, "toself"], [f"mode={mode}", None])]
    assert texts(page, ".findings[data-arm='1'] h3")[0] == "Does the refiner help?", "first, an arm with a refiner"
    assert texts(page, "#detail h3")[0].startswith("mode=none: none-1, step 3: accepted")
    cards = number_of(page, ".plot-card")
    page.run(
        "(() => { const one = document.querySelector('select.arm'); one.value = '2';"
        "one.dispatchEvent(new Event('change')); })()"
    )
    assert number_of(page, ".plot-card") == cards and number_of(page, ".plot-card[data-arm='2'] .main-svg") > 0
    assert number_of(page, ".findings[data-arm='0']") == 0 < number_of(page, ".findings[data-arm='2'] article")
    assert len(page.run("[...document.querySelector('[name=run]').options].map((one) => one.text)")) == 7


def test_a_run_that_has_begun_and_one_that_goes_on(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(make_run(tmp_path / "begun", 0))
    assert texts(page, "#said p") == ["No step is finished yet."]
    assert texts(page, "#sampled")[0].startswith("No response is recorded: none is refined yet")
    folder = make_run(tmp_path / "goes_on", 2)
    half_a_line(folder / "metrics.jsonl")
    page = show(folder)
    RunDir(folder).write_stage("the policy answers", 3, 8)
    page = show(folder)
    assert "2 of 8" in texts(page, "#done td")
    (sign,) = texts(page, "#done b")
    assert sign.startswith("goes_on is not done. Since 2") and sign.endswith("step 3, the policy answers")
    done = make_run(tmp_path / "done", 8)
    RunDir(done).write_stage("saving", 8, 8)
    assert texts(show(done), "#done b") == []


def test_ten_thousand_refinements(show: Callable[..., Page], tmp_path: Path) -> None:
    text = " ".join(f"word{index % 97}" for index in range(150))
    rows = [
        record(f"g{index // 8}_{index % 8}_0", response=f"{text} {index}", refined=f"{text} other")
        for index in range(400)
    ]
    page = show(make_run(tmp_path / "run", 25, records=rows))
    assert (tmp_path / "report.html").stat().st_size < 30e6
    assert texts(page, "#count")[0].endswith(f"of {page.run('data.rows.length')}")
    assert 3000 < page.run("data.rows.length") < 10_000
    assert "of the 10,000 that were recorded" in texts(page, "#sampled")[0]
    assert number_of(page, "#list li") == 200
    page.click("#more")
    assert number_of(page, "#list li") == 400


def test_no_text_runs_or_loads_anything(show: Callable[..., Page], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for index, text in enumerate(HOSTILE):
        chat = [{"role": text, "content": text}]
        said = {"feedback": text, "detail": text, "data_source": text, "response": text, "refined": text + "!"}
        rows.append(record(f"a{index}_0_0", prompt=chat, **said))
    folder = make_run(tmp_path / "<img src=x onerror=window.ran=5>", records=rows, constraint__mode=HOSTILE[1])
    Records(f"{folder}/refinements/{TOKENS}").write(
        3, "w0", [tokens(f"a{i}_0_0", [text] * 3) for i, text in enumerate(HOSTILE)]
    )
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3, "reward/mean": 1, "val-core/<img src=x onerror=window.ran=6>": 1}\n')
    other = make_run(tmp_path / "other", constraint__mode=HOSTILE[3])
    page = show(folder, other)
    assert any("onerror" in one for one in texts(page, "#done tbody th"))
    for index in range(1, number_of(page, "#list li") + 1):
        page.click(f"#list li:nth-child({index}) button")
        assert page.run("document.querySelectorAll('#detail :is(img, svg, script, a, b)').length") == 0
    page.run("new Promise((done) => setTimeout(done, 200))")
    assert page.run("window.ran ?? null") is None
    assert page.errors == [] and not any("example.invalid" in url for url in page.requests)
    page.run("(() => { filters.elements.order.value = 'newest'; filter(); })()")
    seen = set()
    for index in range(1, 5):
        page.click(f"#list li:nth-child({index}) button")
        seen.update(texts(page, "#detail .question"))
    assert seen == set(HOSTILE), "each as it was written"


def test_a_question_shows_its_pictures(show: Callable[..., Page], tmp_path: Path) -> None:
    """Two that are there, in order, and none for a name that is no file of the run's."""
    kept = Thumbnails(f"{tmp_path}/run/refinements/{FOLDER}")
    names = [kept.keep(Image.new("RGB", (40, 20), colour)) for colour in ("red", "blue")]
    prompt = [{"role": "user", "content": "<image><image>Which is red?"}]
    rows = [record("u_0_0", prompt=prompt, images=[*names, "../../secret", "0" * 16]), record("v_0_0")]
    page = show(make_run(tmp_path / "run", 1, records=rows))

    def shown(condition: str) -> list[list[Any]]:
        found = "[...document.querySelectorAll('#list button')]"
        page.run(f"{found}.find((one) => {condition}one.textContent.includes('Which')).click()")
        images = "[...document.querySelectorAll('#detail .images img')]"
        page.run(f"Promise.all({images}.map((one) => one.decode()))")
        return page.run(f"{images}.map((one) => [one.naturalWidth, one.naturalHeight, one.alt])")

    assert shown("") == [[40, 20, "image 1 of the question"], [40, 20, "image 2 of the question"]]
    assert shown("!") == []
