"""The page of `driver serve` in a real browser: by clicks, by keys, hidden, stopped; for all."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from driver import machine
from driver.browser import BrowserChoice
from driver.cli.serve import settings_for
from driver.errors import LackError
from driver.plan import evaluator
from driver.progress import Reporter, Silent, State
from driver.receipt import verify
from driver.serve import serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).resolve().parents[1]
RUN_MS = 60_000  # what a run may take on a busy machine
PHONE = (
    "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/156.0.0.0 Mobile Safari/537.36"
)
Open = Callable[[str], AbstractAsyncContextManager[Page]]
expect.set_options(timeout=RUN_MS)  # how long something takes is never what a test is about


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chromium(browser: BrowserChoice) -> AsyncIterator[Browser]:
    """A browser as a person has it: nothing of the driver's is in it."""
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(
            executable_path=browser.path,
            headless=False,
            args=["--headless=new"],
            chromium_sandbox=not (as_root and sys.platform == "linux"),
        )
        yield opened
        await opened.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of looking at the machine before every run; nothing here is about time."""
    monkeypatch.setattr(machine, "SAMPLE_S", 0.05)


class Told(Silent):
    """What the terminal says, and what it says that is waited for."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def error(self, text: str) -> None:
        self.lines.append(text)

    def phase(self, state: State) -> None:
        self.lines.append(state.phase)

    async def until(self, *words: str) -> list[str]:
        """Waits for lines with these words, one after another; gives all lines up to the last."""
        end, at = asyncio.get_running_loop().time() + RUN_MS / 1000, 0
        for word in words:
            while not any(word in line for line in self.lines[at:]):
                assert asyncio.get_running_loop().time() < end, (word, self.lines)
                await asyncio.sleep(0.02)
            at += next(i for i, line in enumerate(self.lines[at:], 1) if word in line)
        heard, self.lines = self.lines[:at], self.lines[at:]
        return heard


@asynccontextmanager
async def serving(
    preset: object, arms: str, out: Path, lan: bool = False, told: Told | None = None
) -> AsyncIterator[str]:
    """`driver serve` in this process; gives the address."""
    opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = settings_for(str(preset), arms, None, out, 0, lan, opened.set_result)
    with Reporter(quiet=True) as reporter, reporter.beside(told or Told()):
        session = asyncio.ensure_future(serve(settings, reporter))
        await asyncio.wait({opened, session}, return_when="FIRST_COMPLETED")
        if session.done():
            await session
        try:
            yield await opened
        finally:
            session.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await session


@asynccontextmanager
async def ready(chromium: Browser, preset: object, arms: str, out: Path) -> AsyncIterator[Page]:
    """A tab with a session of its own, ready to start; nothing may be thrown in it."""
    async with serving(preset, arms, out) as address:
        own = await chromium.new_context()
        try:
            page = await own.new_page()
            thrown: list[str] = []
            page.on("pageerror", lambda error: thrown.append(str(error)))
            await page.goto(address)
            await expect(page.get_by_role("button", name="Start")).to_be_visible(timeout=RUN_MS)
            yield page
            assert thrown == []
        finally:
            await own.close()


@pytest.fixture
def visit(chromium: Browser, preset: Path, tmp_path: Path) -> Open:
    """Opens a session whose receipts go to `tmp_path/out`."""

    def go(arms: str) -> AbstractAsyncContextManager[Page]:
        return ready(chromium, preset, arms, tmp_path / "out")

    return go


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def idle(
    chromium: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Page, Path]]:
    """One session for all tests that measure nothing, and the folder of its receipts."""
    out = tmp_path_factory.mktemp("out")
    async with ready(chromium, "tiny", "webgpu,wasm", out) as page:
        yield page, out


def receipts(folder: Path) -> list[dict[str, Any]]:
    """Every receipt in a folder, oldest first; each has to verify."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.receipt.json")]
    found.sort(key=lambda receipt: receipt["plan"]["frozen_utc"])
    for receipt in found:
        assert verify(receipt, evaluator()) == ([], [])
    return found


async def result_shown(page: Page) -> None:
    await expect(page.locator("#result")).to_be_visible(timeout=RUN_MS)


async def slot_runs(page: Page, number: int) -> None:
    """Waits for that slot, counted from 1, or a later one."""
    later = "|".join(str(n) for n in range(number, number + 12))
    text = re.compile(rf"Slot ({later}) of ")
    await expect(page.locator("#phase")).to_have_text(text, timeout=RUN_MS)


# --------------------------------------------------------------------------- whole sessions


@asynccontextmanager
async def command(
    chromium: Browser, *arguments: object
) -> AsyncIterator[tuple[Page, list[str], dict[str, Any]]]:
    """`driver serve` itself with its page in a tab: the page, what it asked for, and what the
    command said once Ctrl-C has ended it."""
    words = [sys.executable, "-m", "driver", "serve", "--no-open", *map(str, arguments)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    address, ended = "", dict[str, Any]()
    while not address.startswith("http"):
        line = await process.stdout.readline()
        assert line, "driver serve ended before it printed an address"
        address = line.decode().strip()
    context = await chromium.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = await context.new_page()
    try:
        await page.goto(address)
        yield page, asked, ended
        process.send_signal(signal.SIGINT)
        await expect(page.get_by_role("alert")).to_contain_text("session has ended")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        ended |= {"code": process.returncode, "out": out.decode(), "err": err.decode()}
        await context.close()


async def check_stopped(page: Page) -> None:
    await expect(page.locator("#badge")).to_have_text("stopped: failed")
    await expect(page.locator("#figure")).to_have_text("no claim")
    await expect(page.locator("#reasons")).to_contain_text("stopped by you in the page after")


async def test_two_runs_by_clicks(chromium: Browser, preset: Path, tmp_path: Path) -> None:
    """The command itself: choose, start, watch, read, download; again, and stop; Ctrl-C."""
    out = tmp_path / "out"
    arguments = ("--preset", preset, "--arms", "null:ms=3,null:ms=400", "--out", out)
    async with command(chromium, *arguments) as (page, asked, ended):
        await page.get_by_label("Arm A").select_option("wasm", timeout=RUN_MS)
        await page.get_by_text("More choices").click()
        # Nothing to tune, so that it takes seconds.
        await page.get_by_label("Options of A").fill("threads=1+kernels=naive")
        await page.get_by_label("Options of B").fill("ms=6")
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("heading", name="Measuring")).to_be_visible()
        await slot_runs(page, 1)
        await expect(page.locator("#blocks tbody tr")).to_have_count(1)
        await result_shown(page)
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Download the receipt").click()
        given = json.loads(Path(await (await download.value).path()).read_text())
        (kept,) = receipts(out)
        assert given == kept
        await check_figures(page, kept)
        async with page.expect_popup() as popup:
            await page.get_by_role("link", name="Read the report").click()
        report = await popup.value
        await expect(report.locator(".headline")).to_contain_text(kept["verdict"]["headline"])
        await report.close()
        await expect(page.locator("#saved")).to_contain_text(str(out))
        # Once more, from what was chosen before, and stopped: what was measured is kept.
        await page.get_by_label("Arm A").select_option("null")
        await page.get_by_label("Options of A").fill("ms=400")
        await page.get_by_label("Options of B").fill("ms=400")
        await slot_after_start(page, 2)
        await page.get_by_role("button", name="Stop").click()
        await result_shown(page)
        await check_stopped(page)
        await expect(page.get_by_role("button", name="Start")).to_be_enabled()
        await expect(page.locator("#earlier-list li")).to_have_count(1)
        address = page.url
    assert ended["code"] == 0, ended["err"]
    assert "Traceback" not in ended["out"] + ended["err"]
    assert ended["out"].count("receipt: ") == 2  # and told in the terminal
    assert "stopped by you in the page after" in ended["err"]
    # Nothing but the driver was asked for anything.
    origin = address.rsplit("/", 2)[0]
    assert len(asked) > 20 and all(url.startswith(origin) for url in asked)

    first, second = receipts(out)
    check_by_hand(first)
    assert [arm["name"] for arm in first["plan"]["arms"]] == ["wasm", "null"]
    assert [arm["name"] for arm in second["plan"]["arms"]] == ["null", "null"]
    assert 1 <= len(second["slots"]) < 4
    assert {slot["status"] for slot in second["slots"]} == {"ok"}
    assert second["verdict"]["status"] == "failed"
    assert any("errors" in reason for reason in second["verdict"]["reasons"])


async def check_figures(page: Page, receipt: dict[str, Any]) -> None:
    """The figures of the page are the receipt's."""
    await expect(page.locator("#headline")).to_have_text(receipt["verdict"]["headline"])
    await expect(page.locator("#badge")).to_have_text(receipt["verdict"]["status"])
    shown = await page.locator("#result-arms .step").all_inner_texts()
    medians = [arm["median_step_ms"] for arm in receipt["comparison"]["arms"]]
    assert [float(text.split()[0]) for text in shown] == pytest.approx(medians, rel=1e-3)
    missed = [g["name"] for g in receipt["gates"] if g["status"] in ("fail", "unknown")]
    assert await page.locator("#gates tbody td:first-child").all_inner_texts() == missed


def check_by_hand(receipt: dict[str, Any]) -> None:
    """A run by hand is checked like any other; its receipt says how it was made, and claims
    nothing that nobody could see."""
    gates = {gate["name"]: gate["status"] for gate in receipt["gates"]}
    for name in ("parity.grads.A", "parity.params.A", "curve.loss.A", "identity.A", "errors"):
        assert gates[name] == "pass"
    assert all(slot["page"]["cross_origin_isolated"] for slot in receipt["slots"])
    assert [slot["events"] for slot in receipt["slots"]] == [[]] * 4
    names = {artifact["name"] for artifact in receipt["subject"]["artifacts"]}
    assert {"web/main.js", "web/bench.js", "web/serve.js", "web/serve.html"} <= names
    browser = receipt["environment"]["browser"]
    assert browser["source"] == "by hand (driver serve)"
    assert browser["name"] == "Chrome" and re.fullmatch(r"\d+(\.\d+)+", browser["version"])
    assert browser["executable_sha256"] is None and browser["argv"] == []
    assert browser["gpu_devices"] == [] and "page" in browser["unknown"]["gpu_devices"]
    assert (browser["engine"], browser["process"], browser["remote"]) == ("chromium", "kept", False)


async def test_by_keyboard_alone_and_for_everybody(visit: Open, tmp_path: Path) -> None:
    """A whole run without a mouse; before, during and after it the page is looked over."""
    async with visit("null:ms=400,null:ms=450") as page:
        await tab_to(page, "preset")
        await tab_to(page, "arm-a")
        await page.keyboard.press("End")  # the last arm in the list
        assert await page.get_by_label("Arm A").input_value() == "null"
        await tab_to(page, "more")
        await page.keyboard.press("Enter")
        tree = await page.locator("body").aria_snapshot()
        for line in ('heading "How fast does this browser train?" [level=1]', 'combobox "Model"',
                     'combobox "Arm A"', 'combobox "Arm B"', 'textbox "Options of A"',
                     'textbox "Blocks"', 'textbox "Time"', 'button "Start"'):  # fmt: skip
            assert line in tree
        await check_for_everybody(page)
        await tab_to(page, "start")
        await page.keyboard.press("Enter")
        await expect(page.locator("#running-title")).to_be_focused()
        await tab_to(page, "stop")
        await slot_runs(page, 2)
        tree = await page.locator("body").aria_snapshot()
        assert re.search(
            r'progressbar "Slot \d of 4, block 1 of 1: [AB] null( \(ms=[\d.]+\))?"', tree
        )
        assert re.search(r"status: .?Slot \d of 4", tree)
        assert 'button "Stop"' in tree and 'rowheader "1"' in tree
        await expect(page.locator("#curve svg")).to_have_attribute(
            "aria-label",
            re.compile(r"[AB] null( \(ms=[\d.]+\))?: loss [\d.]+ at step 1"),
            timeout=RUN_MS,
        )
        await check_for_everybody(page)
        await result_shown(page)
        await expect(page.locator("#result-title")).to_be_focused()
        await expect(page.get_by_role("status")).to_have_text(re.compile("^Done. "))
        tree = await page.locator("body").aria_snapshot()
        assert 'link "Download the receipt"' in tree and 'columnheader "Outcome"' in tree
        await check_for_everybody(page)
        await tab_to(page, "download")
        async with page.expect_download() as download:
            await page.keyboard.press("Enter")
        given = json.loads(Path(await (await download.value).path()).read_text())
        await tab_to(page, "preset")
        await tab_to(page, "start")
    assert [given] == receipts(tmp_path / "out")


async def tab_to(page: Page, target: str) -> None:
    """Tab until that element has the focus; whatever has it on the way must show it."""
    for _ in range(40):
        await page.keyboard.press("Tab")
        focused, outline = await page.evaluate(
            """() => {
              const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
              return [document.activeElement.id, [outlineStyle, parseFloat(outlineWidth)]];
            }"""
        )
        assert outline[0] != "none" and outline[1] >= 2, focused
        if focused == target:
            return
    pytest.fail(f"Tab does not reach {target}")


async def slot_after_start(page: Page, number: int) -> None:
    await page.get_by_role("button", name="Start").click()
    # Until then the text of an earlier run is still there, hidden.
    await expect(page.get_by_role("heading", name="Measuring")).to_be_visible()
    await slot_runs(page, number)


async def test_stopped_before_anything_was_measured(idle: tuple[Page, Path]) -> None:
    page, out = idle
    await page.get_by_label("Arm A").select_option("wasm")
    await page.get_by_role("button", name="Start").click()
    await expect(page.get_by_role("heading", name="Measuring")).to_be_visible()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("alert")).to_contain_text("nothing", timeout=RUN_MS)
    await expect(page.get_by_role("button", name="Start")).to_be_focused()
    assert receipts(out) == []


# A headless Chromium never hides a page, and DevTools' `Page.setWebLifecycleState` does nothing in
# it: the events of a tab that is put behind another and frozen are sent by hand.
HIDE = """() => {
  Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
  for (const name of ["visibilitychange", "freeze"]) document.dispatchEvent(new Event(name));
}"""
SHOW = """() => {
  delete document.visibilityState;
  for (const name of ["resume", "visibilitychange"]) document.dispatchEvent(new Event(name));
}"""


async def test_a_hidden_page_is_marked_and_a_reload_ends_the_run(
    visit: Open, tmp_path: Path
) -> None:
    async with visit("null:ms=400,null:ms=400") as page:
        await slot_after_start(page, 2)
        for frame in page.frames:
            await frame.evaluate(HIDE)
        await expect(page.locator("#unseen-note")).to_be_visible()
        for frame in page.frames[:1]:
            await frame.evaluate(SHOW)
        await expect(page.locator("#marks")).to_contain_text("frozen")
        await page.reload()
        await result_shown(page)
        await expect(page.locator("#badge")).to_have_text("failed")
        await expect(page.locator("#suspect")).to_contain_text("frozen")
        await expect(page.get_by_role("button", name="Start")).to_be_enabled()
    (receipt,) = receipts(tmp_path / "out")
    (block,) = receipt["comparison"]["blocks"]
    kinds = {event["kind"] for slot in receipt["slots"] for event in slot["events"]}
    assert {"hidden", "frozen"} <= kinds
    assert any("frozen" in reason for reason in block["suspect"])
    assert receipt["slots"][-1]["status"] == "failed"
    assert "reloaded" in receipt["slots"][-1]["failure"]["message"]


async def test_a_tab_that_was_closed_or_sleeps(
    chromium: Browser, preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and in a run: the terminal says so and what to do; whoever comes back goes on."""
    monkeypatch.setattr("driver.serve.tab.LOST_S", 0.5)
    monkeypatch.setattr("driver.serve.tab.ANSWER_S", 2.0)
    monkeypatch.setattr("driver.serve.site.IDLE_S", 0.5)
    out, told = tmp_path / "out", Told()
    context = await chromium.new_context()
    async with serving(preset, "null:ms=400,null:ms=400", out, told=told) as address:
        page = await context.new_page()
        await page.goto(address)
        await told.until("looking at the browser", "waiting for a start")
        # An idle page answers when it is asked, and is told of when it does not.
        async with page.expect_request("**/serve/presence"):
            pass
        await context.route("**/serve/presence", lambda route: route.abort())
        said = "\n".join(await told.until("does not answer", "waiting for the page to come back"))
        assert "asleep" in said and address in said
        await context.unroute("**/serve/presence")
        await told.until("there again", "waiting for a start")

        await page.close()
        said = "\n".join(await told.until("tab was closed", "waiting for the page to come back"))
        assert "open the address again" in said and address in said and "Ctrl-C ends" in said
        page = await context.new_page()
        await page.goto(address)
        assert await told.until("there again", "waiting for a start")

        await slot_after_start(page, 2)
        await page.close()
        heard = await told.until("slot 2", "tab was closed", "waiting for the page to come back")
        assert not any("waiting for a start" in line for line in heard)
        page = await context.new_page()
        await page.goto(address)
        await told.until("there again", "waiting for a start")
        await result_shown(page)
        await expect(page.locator("#badge")).to_have_text("failed")
        await expect(page.get_by_role("button", name="Start")).to_be_enabled()
    await context.close()
    (receipt,) = receipts(out)
    assert "tab was closed" in receipt["slots"][-1]["failure"]["message"]


async def test_what_is_wrong_is_said_where_it_was_chosen(idle: tuple[Page, Path]) -> None:
    page, _ = idle
    await page.get_by_label("Arm A").select_option("wasm")
    more = page.locator("#more")
    await more.click()
    await page.get_by_label("Options of A").fill("speed=high")
    await page.get_by_role("button", name="Start").click()
    await expect(page.get_by_role("alert")).to_contain_text("unknown option 'speed'")
    await expect(page.get_by_role("button", name="Start")).to_be_focused()
    await page.get_by_label("Options of A").fill("")
    await more.click()


async def test_another_visitor_and_another_tab(idle: tuple[Page, Path], chromium: Browser) -> None:
    page, _ = idle
    tab = await page.context.new_page()
    await tab.goto(page.url)
    await expect(tab.get_by_role("alert")).to_contain_text("another tab")
    await tab.close()
    stranger = await chromium.new_context()
    other = await stranger.new_page()
    response = await other.goto(page.url)
    assert response is not None and response.status == 403
    await expect(other.locator("body")).to_contain_text("opened in another browser before")
    await stranger.close()
    await expect(page.get_by_role("button", name="Start")).to_be_enabled()


async def test_what_this_browser_lacks_is_not_offered(idle: tuple[Page, Path]) -> None:
    """Without a GPU there is no webgpu arm; the reason stands below."""
    page, _ = idle
    option = page.locator("#arm-a option[value=webgpu]")
    if await option.is_enabled():
        pytest.skip("this browser offers WebGPU")
    await expect(option).to_have_text("webgpu (not here)")
    await expect(page.locator("#lacking")).to_contain_text("no WebGPU")
    assert await page.get_by_label("Arm A").input_value() == "wasm"


async def test_another_device_over_https(chromium: Browser, preset: Path, tmp_path: Path) -> None:
    """Isolated behind the certificate that was made here, once a person has accepted it. What this
    machine knows of itself says nothing of a phone, so the run is checked and claims no time."""
    out = tmp_path / "out"
    context = await chromium.new_context(ignore_https_errors=True, user_agent=PHONE)
    try:
        async with serving(preset, "null:ms=3,null:ms=6", out, lan=True) as address:
            assert re.match(r"https://\d+\.\d+\.\d+\.\d+:\d+/", address)
            assert "127.0.0.1" not in address
            page = await context.new_page()
            await page.goto(address)
            await expect(page.get_by_role("button", name="Start")).to_be_visible()
            await expect(page.locator("#facts")).to_contain_text("yes: shared memory")
            await expect(page.locator("#facts")).to_contain_text("another machine")
            await page.get_by_role("button", name="Start").click()
            await result_shown(page)
    except LackError as error:
        pytest.skip(str(error))
    finally:
        await context.close()
    (receipt,) = receipts(out)
    environment = receipt["environment"]
    assert environment["browser"]["remote"] and environment["machine"]["remote"]
    assert "another machine" in environment["machine"]["cpu"]
    assert environment["load_before"]["load_1min"] is None and environment["others_cpu"]["reason"]
    (quiet,) = (gate for gate in receipt["gates"] if gate["name"] == "quiet")
    assert quiet["status"] == "unknown"
    assert receipt["verdict"]["status"] == "unqualified"


# --------------------------------------------------------------------------- for everybody

# Every visible text against the ground it stands on, as WCAG 2 computes it; large text may have
# 3:1, but does not need it here.
CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parts(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
      if (a !== 0) throw new Error(`half-transparent ground at ${at.id || at.className}`);
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.textContent.trim()) continue;
    if (element.closest("script, noscript, :disabled, .unseen")) continue;
    if (!element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = parts(element.closest("svg") ? style.fill : style.color).slice(0, 3);
    const [one, other] = [luminance(ink), luminance(ground(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([ratio, node.textContent.trim().slice(0, 60)]);
  }
  return found;
}"""


async def check_for_everybody(page: Page) -> None:
    """On a phone and on a desk, light and dark: contrast, nothing that moves, no scrolling
    sideways, no axe violation."""
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for width, scheme in itertools.product((360, 1000), schemes):
        await page.set_viewport_size({"width": width, "height": 800})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = await page.evaluate(CONTRAST)
        assert len(found) > 10
        assert [entry for entry in found if entry[0] < 4.5] == []
        assert await page.evaluate("document.getAnimations().length") == 0
        assert await page.evaluate(wide) <= 0
    await check_with_axe(page)


async def check_with_axe(page: Page) -> None:
    try:
        from axe_playwright_python.async_playwright import Axe  # noqa: PLC0415
    except ImportError:
        pytest.skip("axe-core (the extra `test`) is not installed")
    # By its rules for WCAG 2 A and AA, and what else it calls best practice.
    results = (await Axe().run(page, context="main")).response
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in results["violations"]] == []
    assert len(results["passes"]) > 10
