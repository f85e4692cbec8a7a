"""A receipt's page: whole, one file, safe whoever wrote the receipt, and readable in a browser."""

import functools
import math
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import receipts
from playwright.sync_api import Browser, Page, sync_playwright

from driver import receipt, report
from driver.browser import BrowserChoice
from driver.records import Receipt
from driver.report import figures, historical

RUNS = {name: receipt.parse(run.sealed()) for name, run in receipts.everything().items()}
MARK = "zxq"
HOSTILE = (
    f"{MARK}<script>alert(1)</script><img src=x onerror=alert(1)>\"'></style></title>&amp;"
    "{{7*7}}{% raw %}$\\frac{\x00\x1b[2J\u202e\ud800\r\n\u2028"
)


@functools.cache
def page_of(name: str) -> str:
    return report.html(RUNS[name])


VOID = {"meta", "br", "wbr"}


class Read(HTMLParser):
    """A page as a browser's parser sees it: elements with attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.styles: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, "elements that are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in {"td", "th"}:
            self.words.append(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.styles if "style" in self.open else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    @property
    def shape(self) -> list[tuple[str, ...]]:
        """Elements and the names of their attributes; where a word may break is no matter."""
        return [(tag, *attrs) for tag, attrs in self.elements if tag != "wbr"]


def flowed(text: str) -> str:
    return " ".join(text.split())


# --------------------------------------------------------------------------- what it says


@pytest.mark.parametrize("name", RUNS)
def test_verdict_headline_and_gates_are_told(name: str) -> None:
    run, page = RUNS[name], Read(page_of(name))
    assert flowed(run.verdict.headline) in page.text
    for reason in run.verdict.reasons:
        assert flowed(reason) in page.text
    for gate in run.gates:
        assert flowed(gate.reason) in page.text
        assert gate.name in page.text
    badges = [attrs for _, attrs in page.elements if attrs.get("class") == "badge"]
    assert len(badges) == 1
    assert re.search(rf"[✓!✕] {run.verdict.status}\b", page.text)


def test_the_first_screen_has_the_ratio() -> None:
    text = Read(page_of("good")).text
    estimate = RUNS["good"].comparison.estimate
    assert f"{estimate.ratio:.3g}× B webgpu trained {estimate.ratio:.3g} times as fast as A" in text
    assert f"95% interval {estimate.low:.3g} to {estimate.high:.3g}, 4 blocks" in text


def test_the_ratio_is_told_from_the_faster_side() -> None:
    run = RUNS["good"]
    numbers = {"ratio": 0.5, "low": 0.4, "high": 0.8, "word": "slower"}
    estimate = run.comparison.estimate.model_copy(update=numbers)
    comparison = run.comparison.model_copy(update={"estimate": estimate})
    text = Read(report.html(run.model_copy(update={"comparison": comparison}))).text
    assert "2× A wasm trained 2 times as fast as B webgpu 95% interval 1.25 to 2.5, 4 b" in text


def test_unsure_is_no_figure() -> None:
    """Where nothing is proved the large word says so, and the ratio is small print."""
    text = Read(page_of("one block")).text
    assert re.search(r"unsure whether B webgpu is faster than A wasm [\d.]+ times as fast in", text)
    assert "no interval, 1 block " in text


def test_arms_of_one_name_are_told_apart() -> None:
    text = Read(page_of("null")).text
    assert "B null (ms=20.0) trained 1.99 times as fast as A null (ms=40.0)" in text


def two_threads_and_one() -> Receipt:
    """`wasm,wasm:threads=1` with everything that a page shows of an arm."""
    built = receipts.parts(names=("wasm", "wasm"))
    one = built.plan.arms[1]
    one = one.model_copy(
        update={
            "options": one.options | {"threads": 1},
            "canonical": one.canonical.replace("threads=2", "threads=1"),
        }
    )
    return receipt.parse(built.with_plan(arms=(built.plan.arms[0], one)).sealed())


def of_the_recipe() -> Receipt:
    """A run that the receipt of 2026-09-02 stands beside."""
    run = RUNS["good"]
    plan = run.plan.model_copy(
        update={
            "preset": {"name": "receipt-2026-09-02", "init": "mulberry32", "offsets": "hashed"},
            "seed": historical.SEED,
            "corpus": run.plan.corpus.model_copy(update={"sha256": historical.CORPUS_SHA256}),
            "config": run.plan.config.model_copy(update=historical.SHAPE | {"grad_clip": 1.0}),
        }
    )
    return run.model_copy(update={"plan": plan})


@pytest.mark.parametrize(
    "page",
    [report.html, report.markdown, lambda run: report.text(run, 400)],
    ids=["html", "markdown", "terminal"],
)
def test_two_arms_of_one_name_never_look_the_same(page: Callable[[Receipt], str]) -> None:
    """Wherever a side stands with its arm's name, what sets it apart stands there as well."""
    text = page(two_threads_and_one())
    shown = re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
    shown = re.sub(r"[\\|]", " ", shown)
    for side, own in (("A", "2"), ("B", "1")):
        found = re.findall(rf"\b{side}\s+wasm\b(.{{0,14}})", shown)
        assert found
        # The terminal's list of arms has all options.
        for after in found:
            assert after.startswith((f" (threads={own})", "  simd=relaxed")), after
    if "<title>" in text:
        assert "mini, wasm (threads=2) and wasm (threads=1)</title>" in text


def test_a_failed_run_shows_no_ratio_as_a_claim() -> None:
    text = Read(page_of("failed")).text
    assert "no claim This run shows nothing about speed." in text
    assert "device-lost: the device was lost" in text


def test_every_window_is_drawn() -> None:
    for name in ("good", "six", "not finite"):
        drawn = figures.slots(RUNS[name])
        assert drawn
        usable = [ms for s in RUNS[name].slots for ms in s.windows_ms if math.isfinite(ms)]
        marks = re.findall(r"<use [^>]*fill-opacity|<use [^>]*opacity: 0\.75", drawn.wide)
        assert len(marks) == len(usable)
        lost = sum(len(s.windows_ms) for s in RUNS[name].slots) - len(usable)
        assert drawn.notes == ((f"{lost} windows are not drawn: no usable time.",) if lost else ())


def test_numbers_that_are_none_are_named() -> None:
    assert "B: 3 losses are no numbers, the first at step 6." in Read(page_of("not finite")).text


def test_differences_of_nothing_are_said_in_words() -> None:
    """A log scale has no 0."""
    run = RUNS["wasm"]
    curve = RUNS["wasm"].reference.losses
    slots = tuple(slot.model_copy(update={"losses": curve}) for slot in run.slots)
    text = Read(report.html(run.model_copy(update={"slots": slots}))).text
    assert "no difference at any step" in text
    assert f"A and B have the same bits at {len(curve)} of {len(curve)} common steps" in text


def test_where_time_goes_or_how_to_ask() -> None:
    text = Read(page_of("good")).text
    assert "matmul_forward 3 6 60.0% 0.000192" in text
    assert "No profile of B: not measured on this arm yet" in text
    arms = tuple(
        arm.model_copy(update={"profile": None, "profile_reason": None})
        for arm in RUNS["good"].plan.arms
    )
    plan = RUNS["good"].plan.model_copy(update={"arms": arms})
    text = Read(report.html(RUNS["good"].model_copy(update={"plan": plan}))).text
    assert "This run did not ask. driver run --profile" in text


def test_the_roofline_with_its_share() -> None:
    run = receipt.parse(receipts.at_speed(receipts.parts(), None).sealed())
    page = Read(report.html(run))
    assert re.search(r"A wasm: (59|60|61)% of its roofline", page.text)
    assert "B webgpu has no roofline" in page.text


def test_digests_and_commands() -> None:
    run, text = RUNS["good"], Read(page_of("good")).text
    for file in run.subject.artifacts:
        assert file.sha256 in text
    assert run.plan.sha256 in text
    assert run.digest in text
    assert "driver run --preset mini --arms wasm,webgpu --pin RECEIPT --seed 11 --blocks 4" in text


def test_a_receipt_that_contradicts_itself_says_so_first() -> None:
    found = receipt.Examination(("comparison is off",), (), ())
    text = Read(report.html(RUNS["good"], found)).text
    assert "INVALID receipt: it contradicts itself; nothing in it can be relied on." in text
    assert text.index("comparison is off") < text.index(RUNS["good"].plan.question)
    fine = receipt.Examination((), (), ("a remark",))
    assert report.html(RUNS["good"], fine) == page_of("good")
    other = receipt.Examination((), ("gates differ",), ())
    assert "unconfirmed receipt: another version" in Read(report.html(RUNS["good"], other)).text


# --------------------------------------------------------------------------- one file


@pytest.mark.parametrize("name", RUNS)
def test_one_file_without_scripts(name: str) -> None:
    check_alone(Read(page_of(name)))


def check_alone(page: Read) -> None:
    """Nothing that runs, nothing that is fetched, nothing that leads elsewhere."""
    policies = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert len(policies) == 1
    assert (policies[0] or "").startswith("default-src 'none'; style-src 'unsafe-inline';")
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in page.elements:
        assert tag not in {"script", "iframe", "object", "embed", "link", "base", "form", "img"}
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "srcset", "srcdoc", "action", "data", "formaction"}
            if name in {"href", "xlink:href"}:
                assert value and value[0] == "#"
                assert value[1:] in ids
            if name == "style" or name.startswith("clip"):
                assert set(re.findall(r"url\((.)", value or "")) <= {"#"}
            if name not in {"aria-label", "content"}:
                assert "://" not in (value or "")
    for style in page.styles:
        assert not re.search(r"url\(|@import|://|expression\(", style)


@pytest.mark.parametrize("name", RUNS)
def test_figures_have_words(name: str) -> None:
    figures_of = [a for tag, a in Read(page_of(name)).elements if tag == "svg"]
    pictures = [attrs for attrs in figures_of if attrs.get("role") == "img"]
    assert all(len(attrs["aria-label"] or "") > 30 for attrs in pictures)
    assert all("aria-hidden" in attrs for attrs in figures_of if "role" not in attrs)
    assert (len(pictures) >= 6) == (name != "no slots")


def test_the_same_receipt_gives_the_same_bytes() -> None:
    """Whatever was drawn before, and whatever a person's matplotlib is set to."""
    before = mpl.rcParams["axes.grid"], mpl.rcParams["font.size"]
    with mpl.rc_context({"axes.grid": True, "font.size": 31, "svg.hashsalt": "other"}):
        for name in ("good", "software", "good"):
            assert report.html(RUNS[name]) == page_of(name)
    assert (mpl.rcParams["axes.grid"], mpl.rcParams["font.size"]) == before


# --------------------------------------------------------------------------- strangers


@pytest.mark.parametrize("name", ["good", "failed", "not finite", "one block", "null"])
def test_a_strangers_strings_are_shown_not_obeyed(name: str) -> None:
    """Every free string poisoned: the same elements, and the poison as text."""
    data = receipt.restored(receipts.everything()[name].sealed())
    clean, hostile = (
        Receipt.model_validate(receipts.poisoned(data, words, (*receipts.WORDS, "failure")))
        for words in ("z", HOSTILE)
    )
    found = Read(report.html(hostile))
    assert found.shape == Read(report.html(clean)).shape
    check_alone(found)
    assert found.text.count("<script>alert(1)</script>") > 40
    assert "{{7*7}}" in found.text
    assert not any(c in found.text for c in "\x00\x1b\u202e\ud800\u2028")
    report.html(hostile).encode("utf-8")


def test_endless_strings_are_cut() -> None:
    data = receipt.restored(receipts.everything()["good"].sealed())
    run = Receipt.model_validate(receipts.poisoned(data, "x" * 50_000, receipts.WORDS))
    page = report.html(run)
    assert "more characters)" in page
    assert len(page) < 2_500_000
    assert max(map(len, re.findall("x+", page))) <= 2000


@pytest.mark.parametrize("value", receipts.ODD)
def test_any_number(value: float) -> None:
    for parts in (("slots", "reference"), ("comparison", "gates")):
        odd = receipts.with_numbers(RUNS["good"], value, parts)
        check_alone(Read(report.html(odd)))


def test_facts_of_any_depth_and_length() -> None:
    deep: dict[str, Any] = {"cpu": "x"}
    for _ in range(300):
        deep = {"in": deep}
    machine = {"deep": deep, "many": {str(i): i for i in range(5000)}, "list": [{"a": [1, {}]}]}
    environment = RUNS["good"].environment.model_copy(update={"machine": machine})
    page = Read(report.html(RUNS["good"].model_copy(update={"environment": environment})))
    assert "more stands in the receipt" in page.text


# --------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def chromium(browser: BrowserChoice) -> Iterator[Browser]:
    """The driver's browser, by itself."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=browser.path,
            headless=False,
            args=["--headless=new"],
            chromium_sandbox=sys.platform != "linux",
        )
        yield running
        running.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of some pages; the hostile one has every string poisoned."""
    data = receipt.restored(receipts.everything()["failed"].sealed())
    poison = (HOSTILE + "W" * 300, (*receipts.WORDS, "failure"))
    hostile = Receipt.model_validate(receipts.poisoned(data, *poison))
    folder, found = tmp_path_factory.mktemp("pages"), {}
    pages = {name: page_of(name) for name in ("good", "software", "failed")}
    pages["two threads"] = report.html(two_threads_and_one())
    pages["historical"] = report.html(of_the_recipe())
    for name, page in (pages | {"hostile": report.html(hostile)}).items():
        path: Path = folder / f"{name}.html"
        path.write_text(page, encoding="utf-8")
        found[name] = path.as_uri()
    return found


def opened(chromium: Browser, address: str, scheme: str, width: int) -> tuple[Page, list[str]]:
    """The page with everything unfolded, and what the browser had to say of it."""
    context = chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 780},
    )
    page, heard = context.new_page(), []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: heard.append(dialog.message))
    page.on("request", lambda request: heard.append(request.url))
    page.goto(address)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    return page, heard


# Text against what lies behind it, by WCAG 2.2's formula; the worst pair of the page.
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""], seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen += 1;
    if (ratio < worst[0]) worst = [ratio, walk.currentNode.data, element.tagName];
  }
  return [seen, ...worst];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["good", "software", "failed", "hostile"])
def test_in_a_browser(chromium: Browser, stored: dict[str, str], name: str, scheme: str) -> None:
    """Nothing runs or is fetched, nothing is wider than a phone, all text can be read."""
    page, heard = opened(chromium, stored[name], scheme, 360)
    assert heard == [stored[name]]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_viewport_size({"width": 1200, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    seen, worst, *where = page.evaluate(CONTRAST)
    assert seen > 100
    assert worst >= 4.5, where
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    page.context.close()


# Cells whose text lies outside of the window, of its own box, or of a box that scrolls or hides.
CLIPPED = """() => {
  const found = [];
  for (const cell of document.querySelectorAll('td, th, pre, dt, dd, li, p, h1, h2, h3, summary')) {
    const head = cell.closest('thead');
    const unseen = head && getComputedStyle(head).position === 'absolute'; // for ears only
    if (unseen || !cell.getClientRects().length) continue;
    const range = document.createRange();
    range.selectNodeContents(cell);
    const page = cell.closest("main, footer");
    const { left: from, right: to } = page.getBoundingClientRect();
    const space = parseFloat(getComputedStyle(page).paddingLeft);
    let [left, right] = [from + space, to - space];
    for (let box = cell; box !== document.body; box = box.parentElement) {
      if (getComputedStyle(box).overflowX === 'visible') continue;
      const edge = box.getBoundingClientRect();
      [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
    }
    for (const rect of range.getClientRects()) {
      if (rect.width && (rect.left < left - 1 || rect.right > right + 1)) {
        found.push([cell.tagName, cell.textContent.trim().slice(0, 60), rect.left, rect.right]);
        break;
      }
    }
  }
  return found;
}"""


@pytest.mark.parametrize("width", [320, 360, 390, 601, 700, 761, 800, 1280])
def test_no_text_is_clipped(chromium: Browser, stored: dict[str, str], width: int) -> None:
    """Every table can be read without scrolling sideways, on a phone as on a desk."""
    for name in ("good", "software", "failed", "historical", "two threads", "hostile"):
        page, _ = opened(chromium, stored[name], "light", width)
        assert page.evaluate(CLIPPED) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.context.close()


def test_stacked_rows_have_their_headings(chromium: Browser, stored: dict[str, str]) -> None:
    """On a phone a number stands behind its heading, and a status mark no taller than its word."""
    page, _ = opened(chromium, stored["software"], "light", 390)
    labels = page.evaluate(
        "[...document.querySelectorAll('#slots .stack td.n')].map("
        "(cell) => getComputedStyle(cell, '::before').content)"
    )
    assert labels and all(len(label) > 4 for label in labels)
    heights = page.evaluate(
        "[...document.querySelectorAll('.gates .status span')].map("
        "(mark) => mark.getBoundingClientRect().height)"
    )
    assert len(heights) == len(RUNS["software"].gates)
    assert max(heights) < 30
    page.context.close()


def test_figures_fit_the_page(chromium: Browser, stored: dict[str, str]) -> None:
    """One of the two widths is shown, its text no smaller than 10 px and inside of the figure."""
    measure = """() => [...document.querySelectorAll('figure svg')].map((svg) => {
      const box = svg.getBoundingClientRect();
      const scale = box.width / svg.viewBox.baseVal.width;
      const texts = [...svg.querySelectorAll('text')];
      return {
        shown: box.width > 0,
        least: Math.min(...texts.map((t) => parseFloat(getComputedStyle(t).fontSize) * scale)),
        out: texts.filter((t) => {
          const b = t.getBoundingClientRect();
          return b.left < box.left - 2 || b.right > box.right + 2;
        }).map((t) => t.textContent),
      };
    })"""
    for width in (360, 500, 1200):
        page, _ = opened(chromium, stored["good"], "light", width)
        found = [figure for figure in page.evaluate(measure) if figure["shown"]]
        assert len(found) == 5
        for figure in found:
            assert figure["least"] >= 10
            assert figure["out"] == []
        page.context.close()


def test_on_paper(chromium: Browser, stored: dict[str, str]) -> None:
    """Dark screens print on white, and what is folded is printed."""
    page, _ = opened(chromium, stored["good"], "dark", 1200)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = false")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.pdf().startswith(b"%PDF")
    page.context.close()
