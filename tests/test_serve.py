"""`driver serve` without a browser: who gets in, what is refused, how frames come and go."""

import asyncio
import json
import platform
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import receipts

from driver import presets
from driver.cli.serve import settings_for
from driver.errors import LackError, SlotError, UsageError
from driver.host import host_of
from driver.measure import JobOutcome, run_job
from driver.progress import Reporter, SlotNow
from driver.receipt import parse
from driver.records import Job, Op
from driver.report import how_opened
from driver.serve import Wish, certificate
from driver.serve.live import MOST_POINTS, PageDisplay, result_of, thinned
from driver.serve.session import greeting, is_here
from driver.serve.site import BODY_BYTES, COOKIE, PAGE, ServePage
from driver.serve.state import Hello, State
from driver.serve.tab import TabSession, browser_of, engine_of, facts_of, system_of
from driver.server import Site

WISH = Wish(preset="tiny", a="null", b="null")
HELLO = {"brands": [{"brand": "Chromium", "version": "156.0.6.7"}]}
CHROME = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/156.0.0.0 Safari/537.36"
)
IPHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like "
    "Gecko) Version/19.1 Mobile/15E148 Safari/604.1"
)


@asynccontextmanager
async def serving(site: Site | None = None) -> AsyncIterator[ServePage]:
    state = State(phase="meeting", driver="0", folder="/receipts", wish=WISH)
    async with ServePage(site or Site(), state, lambda peer, agent: True) as page:
        yield page


@pytest.fixture
async def page() -> AsyncIterator[ServePage]:
    async with serving() as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    # A browser keeps cookies of an address too.
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


@pytest.fixture
async def stranger() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def post(
    client: aiohttp.ClientSession, page: ServePage, what: str, body: Any = None, **headers: str
) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
    url = f"{page.base_url}serve/{what}"
    async with client.post(url, data=data, headers=headers) as response:
        return response.status, await response.text()


async def get(client: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, str]:
    async with client.get(url, headers=headers) as response:
        return response.status, await response.text()


async def claim(client: aiohttp.ClientSession, page: ServePage) -> None:
    assert await post(client, page, "claim", HELLO) == (204, "")


async def run_readback(page: ServePage) -> JobOutcome:
    """The smallest job, `job-1`, in the tab."""
    job = Job(job="job-1", program=(Op(op="readback", count=1),))
    return await run_job(TabSession(page.tab), page, job, deadline_s=20)


# --------------------------------------------------------------------------- who gets in


async def test_the_first_browser_owns_the_session(
    page: ServePage, client: aiohttp.ClientSession, stranger: aiohttp.ClientSession
) -> None:
    address = page.addresses[0]
    assert address.endswith(f"/{PAGE}")
    # Looking at the page does not claim it: a preview of a link must not take it away.
    assert (await get(stranger, address))[0] == 200
    assert not page.claimed.is_set()
    await claim(client, page)
    assert (await get(client, address))[0] == 200
    assert (await get(client, page.base_url + "bench.js"))[0] == 200
    status, words = await get(stranger, address)
    assert status == 403
    assert "another browser" in words and "start it again" in words
    assert (await post(stranger, page, "claim", HELLO))[0] == 403
    assert (await post(stranger, page, "start", WISH.model_dump()))[0] == 403
    assert (await get(stranger, page.base_url + "jobs/x/job.json"))[0] == 403
    forged = {"Cookie": f"{COOKIE}=guess"}
    assert (await get(stranger, address, **forged))[0] == 403
    # A reload claims again what is its own.
    await claim(client, page)


async def test_the_owner_is_told_by_a_cookie_that_no_script_reads(
    page: ServePage, client: aiohttp.ClientSession
) -> None:
    url = f"{page.base_url}serve/claim"
    async with client.post(url, data=json.dumps(HELLO).encode()) as response:
        cookie = response.headers["Set-Cookie"]
    token = page.base_url.split("/")[-2]
    for part in ("HttpOnly", "SameSite=Strict", f"Path=/{token}/"):
        assert part in cookie
    assert "Secure" not in cookie  # plain HTTP on loopback; over HTTPS it is


@pytest.mark.parametrize(
    "path", ["", "index.html?job=x", "bench.js", "serve/events", "jobs/x/job.json"]
)
async def test_nothing_but_the_page_before_it_is_claimed(
    page: ServePage, client: aiohttp.ClientSession, path: str
) -> None:
    assert (await get(client, page.base_url + path))[0] == 403


async def test_wrong_token(page: ServePage, client: aiohttp.ClientSession) -> None:
    origin = page.base_url.rsplit("/", 2)[0]
    for path in (
        "/",
        f"/{PAGE}",
        f"/{'x' * 32}/{PAGE}",
        "/serve/claim",
        f"/{'x' * 32}/serve/claim",
    ):
        status, words = await get(client, origin + path)
        assert status in (404, 405)
        assert "another browser" not in words


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "driver.example:80"}, 421),  # DNS rebinding: a name that now points here
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_requests_from_elsewhere(
    page: ServePage, client: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    assert (await post(client, page, "claim", HELLO, **headers))[0] == status
    assert not page.claimed.is_set()
    await claim(client, page)
    assert (await get(client, page.addresses[0], **headers))[0] == status


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("claim", b"not json"),
        ("claim", {"brands": 1}),
        ("claim", {"brands": [], "more": 1}),
        ("claim", {"brands": [{"brand": "x" * 81, "version": "1"}]}),
        ("claim", {"brands": [{"brand": "x", "version": "1"}] * 21}),
        ("start", {"preset": "tiny"}),
        ("start", WISH.model_dump() | {"out": "/etc"}),
        ("start", WISH.model_dump() | {"a_options": "x" * 401}),
        ("frame", {"serial": -1, "gone": True}),
        ("presence", {"visible": "maybe"}),
    ],
)
async def test_bodies_of_another_form(
    page: ServePage, client: aiohttp.ClientSession, what: str, body: Any
) -> None:
    await claim(client, page)
    assert (await post(client, page, what, body))[0] == 400


@pytest.mark.parametrize("what", ["claim", "start", "stop", "frame", "presence"])
async def test_bodies_that_are_too_large(
    page: ServePage, client: aiohttp.ClientSession, what: str
) -> None:
    await claim(client, page)
    assert (await post(client, page, what, b" " * (BODY_BYTES + 1)))[0] == 413


async def test_receipts_are_those_of_the_session(
    page: ServePage, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await claim(client, page)
    kept = tmp_path / "a.receipt.json"
    kept.write_text('{"a": 1}')
    (tmp_path / "secret").write_text("secret")
    page.receipts.append(kept)
    url = f"{page.base_url}serve/receipts/"
    async with client.get(url + "0") as response:
        assert await response.text() == '{"a": 1}'
        assert response.headers["Content-Disposition"] == 'attachment; filename="a.receipt.json"'
    for wrong in (
        "1",
        "-1",
        "00000000",
        "x",
        "..%2fsecret",
        "%2e%2e/secret",
        "0/../../secret",
        "1/report",
    ):
        status, words = await get(client, url + wrong)
        assert status in (403, 404)
        assert "secret" not in words
    assert (await get(client, url + "0/report"))[0] == 404
    (tmp_path / "a.receipt.html").write_text("<p>a</p>")
    async with client.get(url + "0/report") as response:
        assert await response.text() == "<p>a</p>"
        assert response.content_type == "text/html"
        assert "script-src" not in response.headers["Content-Security-Policy"]
    kept.unlink()
    assert (await get(client, url + "0"))[0] == 404


async def test_nothing_runs_that_was_not_offered(
    page: ServePage, client: aiohttp.ClientSession
) -> None:
    await claim(client, page)
    assert (await post(client, page, "start", WISH.model_dump()))[0] == 409
    assert (await post(client, page, "stop"))[0] == 409

    async def refuse(wish: Wish) -> None:
        raise UsageError(f"no {wish.preset} today")

    page.on_wish = refuse
    assert await post(client, page, "start", WISH.model_dump()) == (400, "no tiny today")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "../../etc/passwd"}, "not offered"),
        ({"preset": "tiny,small"}, "not offered"),
        ({"a": "wasm", "a_options": "source=/etc"}, "command line"),
        ({"a": "wasm", "a_options": "threads=1+source=HEAD~1"}, "command line"),
        ({"a": "wasm", "a_options": "threads=1,wasm"}, "expected two arms"),
        ({"a": "numpy"}, "replay"),
        ({"a": "wasmm"}, "did you mean wasm"),
        ({"blocks": "many"}, "expected a number"),
        ({"blocks": "0"}, "expected 1"),
        ({"budget": "soon"}, "soon"),
    ],
)
def test_wishes_that_are_refused(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    settings = settings_for("tiny", "null,null", None, tmp_path, 0, False, print)
    with pytest.raises(UsageError, match=re.escape(words)):
        settings.request_for(WISH.model_copy(update=changes))


def test_a_wish_is_a_run(tmp_path: Path, preset: Path) -> None:
    """A preset's file is offered where the command line names it, by its name and not its place."""
    settings = settings_for(str(preset), "wasm:threads=1,null", None, tmp_path, 0, False, print)
    assert settings.wish.arms == "wasm:threads=1,null"
    names = [name for name, _ in settings.presets]
    assert names == [*presets.names(), "mini"]
    assert settings.wish.preset == "mini"
    request = settings.request_for(settings.wish.model_copy(update={"blocks": "4", "budget": "9m"}))
    assert (request.preset.name, request.purpose.blocks, request.purpose.budget_s) == (
        "mini",
        4,
        540,
    )
    assert [spec.name for spec in request.arms] == ["wasm", "null"]


def test_a_presets_file_beside_one_of_its_name(tmp_path: Path) -> None:
    """A copy of tiny that keeps its name: both are offered, and each is what runs."""
    copy = tmp_path / "copy.toml"
    words = (presets.PRESETS / "tiny.toml").read_text()
    copy.write_text(re.sub(r"^seed = \d+", "seed = 4711", words, flags=re.MULTILINE))
    settings = settings_for(str(copy), "null,null", None, tmp_path, 0, False, print)
    assert settings.wish.preset == "tiny (from a file)"
    assert settings.request_for(settings.wish).preset.seed == 4711
    own = settings.request_for(settings.wish.model_copy(update={"preset": "tiny"}))
    assert own.preset.seed != 4711
    assert not any(str(tmp_path) in name for name, _ in settings.presets)


@pytest.mark.parametrize("arguments", [("--arms", "wasm"), ("--preset", "nothing")])
def test_a_command_line_that_cannot_be(
    driver: Any, tmp_path: Path, arguments: tuple[str, str]
) -> None:
    code, _, err = driver("serve", "--no-open", "--out", tmp_path, *arguments)
    assert code == 2
    assert arguments[1] in err


async def test_a_port_that_is_taken(page: ServePage) -> None:
    port = int(page.base_url.split(":")[2].split("/")[0])
    with pytest.raises(UsageError, match=f"--port {port}: .*take another one"):
        async with serving(Site(port=port, option="--port", advice="take another one")):
            pass


# --------------------------------------------------------------------------- the tab


async def events(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    """The next event of a stream."""
    name = (await response.content.readline()).decode().strip().removeprefix("event: ")
    data = json.loads((await response.content.readline()).decode().removeprefix("data: "))
    await response.content.readline()
    return name, data


def stream(client: aiohttp.ClientSession, page: ServePage, tab: str, load: str) -> Any:
    return client.get(f"{page.base_url}serve/events?tab={tab}&load={load}")


async def test_a_stream_tells_state_and_frames(
    page: ServePage, client: aiohttp.ClientSession
) -> None:
    await claim(client, page)
    async with stream(client, page, "tab-00001", "load-0001") as response:
        assert response.content_type == "text/event-stream"
        assert await events(response) == ("frame", {"serial": 0, "path": None})
        name, state = await events(response)
        assert (name, state["phase"]) == ("state", "meeting")
        page.show(phase="ready")
        assert (await events(response))[1]["phase"] == "ready"
        # News that can wait come together.
        page.show(now=False, problem="one")
        page.show(now=False, problem="two")
        assert (await events(response))[1]["problem"] == "two"


async def test_streams_without_a_name(page: ServePage, client: aiohttp.ClientSession) -> None:
    await claim(client, page)
    for query in ("", "?tab=x&load=y", "?tab=tab-00001", "?tab=tab-00001&load=a/../../../b"):
        assert (await get(client, f"{page.base_url}serve/events{query}"))[0] == 400


async def test_another_tab_is_refused_as_long_as_the_first_is_there(
    page: ServePage, client: aiohttp.ClientSession
) -> None:
    await claim(client, page)
    async with stream(client, page, "tab-00001", "load-0001") as first:
        await events(first)
        status, words = await get(
            client, f"{page.base_url}serve/events?tab=tab-00002&load=load-0002"
        )
        assert status == 409
        assert "another tab" in words
    while page.tab.connected.is_set():
        await asyncio.sleep(0.01)
    async with stream(client, page, "tab-00002", "load-0002") as second:
        assert second.status == 200


async def test_a_job_runs_in_a_frame_and_ends_with_it(
    page: ServePage, client: aiohttp.ClientSession
) -> None:
    """What the tab does, by hand: it gets a frame's path, and says when it is gone."""
    await claim(client, page)
    async with stream(client, page, "tab-00001", "load-0001") as response:
        await events(response)
        await events(response)
        running = asyncio.ensure_future(run_readback(page))
        name, frame = await events(response)
        assert (name, frame["path"]) == ("frame", "./?job=job-1")
        facts = {"user_agent": "x", "cross_origin_isolated": True, "hardware_concurrency": 2,
                 "timer_step_ms": 0.1, "visibility": "hidden", "hidden_events": 2,
                 "frozen_events": 1, "stalled_ms": 7000}  # fmt: skip
        result = {"format": "driver-job-result/1", "job": "job-1", "status": "ok",
                  "ops": [{"op": "readback", "values_ms": [1.0]}], "page": facts}  # fmt: skip
        url = f"{page.base_url}jobs/job-1/result"
        async with client.post(url, data=json.dumps(result).encode()) as posted:
            assert posted.status == 204
        name, frame = await events(response)
        assert (name, frame["path"]) == ("frame", None)
        await post(client, page, "frame", {"serial": frame["serial"], "gone": True})
        outcome = await running
    assert outcome.status == "ok"
    assert [event.kind for event in outcome.events] == ["hidden", "frozen"]
    assert "7.0 s" in outcome.events[1].message


async def test_a_reload_ends_the_job(page: ServePage, client: aiohttp.ClientSession) -> None:
    await claim(client, page)
    async with stream(client, page, "tab-00001", "load-0001") as first:
        await events(first)
        running = asyncio.ensure_future(run_readback(page))
        await events(first)
        await events(first)
        async with stream(client, page, "tab-00001", "load-0002") as second:
            outcome = await running
            assert await events(second) == ("frame", {"serial": 1, "path": None})
    assert outcome.failure is not None
    assert outcome.failure.kind == "crash"
    assert "reloaded" in outcome.failure.message


async def test_a_tab_that_is_gone_ends_the_job(
    page: ServePage, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.serve.tab.LOST_S", 0.2)
    await claim(client, page)
    async with stream(client, page, "tab-00001", "load-0001") as first:
        await events(first)
        running = asyncio.ensure_future(run_readback(page))
        await events(first)
        await events(first)
    outcome = await running
    assert outcome.failure is not None
    assert "closed" in outcome.failure.message
    # Without a tab the next job does not wait long either.
    outcome = await run_readback(page)
    assert outcome.failure is not None
    assert "no tab is open" in outcome.failure.message


async def test_a_connection_that_comes_back_keeps_the_job(
    page: ServePage, client: aiohttp.ClientSession
) -> None:
    await claim(client, page)
    async with stream(client, page, "tab-00001", "load-0001") as first:
        await events(first)
        await page.tab.show("./?job=job-1")
    while page.tab.connected.is_set():
        await asyncio.sleep(0.01)
    async with stream(client, page, "tab-00001", "load-0001") as again:
        assert await events(again) == ("frame", {"serial": 1, "path": "./?job=job-1"})


async def test_a_tab_that_does_not_answer(
    page: ServePage, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a phone that sleeps or has left: its connection stays. Whoever answers has the session."""
    monkeypatch.setattr("driver.serve.site.IDLE_S", 0.0)
    monkeypatch.setattr("driver.serve.tab.ANSWER_S", 0.2)
    turned: asyncio.Queue[str] = asyncio.Queue()
    page.tab.on_standing = lambda: turned.put_nowait(page.tab.standing)
    await claim(client, page)
    async with stream(client, page, "tab-00001", "load-0001") as first:
        while (await events(first))[0] != "ask":
            pass
        assert await turned.get() == "silent"
        assert page.tab.connected.is_set()
        assert await post(client, page, "presence", {"visible": True}) == (204, "")
        assert await turned.get() == "there"
        assert await turned.get() == "silent"  # the next question
        async with stream(client, page, "tab-00002", "load-0002") as second:
            assert second.status == 200
            assert await turned.get() == "there"
            monkeypatch.setattr("driver.serve.site.IDLE_S", 60.0)
            monkeypatch.setattr("driver.serve.tab.LOST_S", 0.2)
    while await turned.get() != "gone":
        pass
    # An answer that comes late is that of a page which is closing.
    await post(client, page, "presence", {"visible": False})
    assert page.tab.standing == "gone"


async def test_facts_before_a_browser_came(
    page: ServePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.serve.tab.LOST_S", 0.2)
    with pytest.raises(RuntimeError, match="no browser"):
        _ = TabSession(page.tab).facts
    with pytest.raises(SlotError, match="no tab"):
        await asyncio.wait_for(_open_at_once(page), 20)


async def _open_at_once(page: ServePage) -> None:
    async with page.tab.page() as frame:
        await frame.open("http://127.0.0.1/x/?job=1")


# --------------------------------------------------------------------------- what it is told


@pytest.mark.parametrize(
    ("agent", "browser", "system"),
    [
        (CHROME, ("Chrome", "156.0.0.0"), "Linux"),
        (IPHONE, ("Safari", "19.1"), "iPhone"),
        (f"{CHROME} Edg/156.0.10.2", ("Edge", "156.0.10.2"), "Linux"),
        (
            "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
            ("Firefox", "140.0"),
            "Linux",
        ),
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like "
            "Gecko) Version/26.0 Safari/605.1.15",
            ("Safari", "26.0"),
            "Darwin",
        ),
        (IPHONE.replace("Version/19.1", "CriOS/150.0.1"), ("Chrome (iOS)", "150.0.1"), "iPhone"),
        (f"{CHROME} OPR/120.0".replace("X11; Linux", "Windows NT"), ("Opera", "120.0"), "Windows"),
        (CHROME.replace("X11; Linux", "Linux; Android 15"), ("Chrome", "156.0.0.0"), "Android"),
        ("curl/8", ("unknown browser", "unknown"), "unknown system"),
        ("", ("unknown browser", "unknown"), "unknown system"),
    ],
)
def test_user_agents(agent: str, browser: tuple[str, str], system: str) -> None:
    assert browser_of(agent, Hello()) == browser
    assert system_of(agent) == system


def test_what_a_page_says_of_its_version_must_fit() -> None:
    def hello(brand: str, version: str) -> Hello:
        return Hello.model_validate({"brands": [{"brand": brand, "version": version}]})

    assert browser_of(CHROME, hello("Chromium", "156.0.6.7")) == ("Chrome", "156.0.6.7")
    assert browser_of(CHROME, hello("Google Chrome", "157.0.6.7")) == ("Chrome", "156.0.0.0")
    assert browser_of(CHROME, hello("Chromium", "156<b>")) == ("Chrome", "156.0.0.0")


def test_facts_say_what_nobody_can_tell() -> None:
    facts = facts_of(CHROME, Hello(), elsewhere=False)
    assert (facts.executable, facts.executable_sha256, facts.argv) == (None, None, ())
    assert facts.gpu_devices == () and facts.headless is None
    assert set(facts.unknown) >= {"executable", "argv", "gpu_devices", "headless", "console"}
    assert (facts.source, facts.process, facts.remote) == (
        "by hand (driver serve)",
        "kept",
        False,
    )
    lines = how_opened(facts.model_dump(mode="json"))
    assert "fresh frame" in lines[0]
    assert any("executable sha256" in line and "no page tells" in line for line in lines)
    assert how_opened({"source": "installed", "unknown": {"argv": "x"}}) == []


@pytest.mark.parametrize(
    ("agent", "engine"),
    [(CHROME, "chromium"), (IPHONE, "webkit"), ("curl/8", "unknown"),
     (IPHONE.replace("Version/19.1", "CriOS/150.0.1"), "webkit"),
     ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "firefox")],
)  # fmt: skip
def test_engines(agent: str, engine: str) -> None:
    assert engine_of(agent) == engine


def test_another_device_is_a_remote_browser() -> None:
    """What its page tells stands for its machine, and nothing of this one's does."""
    facts = facts_of(IPHONE, Hello(), elsewhere=True)
    assert facts.remote
    phone = host_of(facts, {"hardware_concurrency": 6})
    assert (phone.remote, phone.cores) == (True, 6)
    assert "another machine (iPhone" in phone.machine["cpu"]
    assert phone.machine["memory_total_bytes"] is None


def test_where_the_browser_runs() -> None:
    here = CHROME if system_of(CHROME) == _this_system() else CHROME.replace("X11; Linux", _agent())
    assert is_here("127.0.0.1", here)
    assert not is_here("127.0.0.1", IPHONE)  # a phone on a cable
    assert not is_here("203.0.113.9", here)
    assert not is_here("", here)


def _this_system() -> str:
    return platform.system()


def _agent() -> str:
    return {"Darwin": "Macintosh; Intel Mac OS X", "Windows": "Windows NT"}[_this_system()]


async def test_the_page_shows_what_the_terminal_shows(tmp_path: Path) -> None:
    """Both are displays of one state: the page's figures are the reporter's."""
    settings = settings_for("tiny", "null:ms=1,null:ms=2", None, tmp_path, 0, False, print)
    news: list[bool] = []
    display = PageDisplay(settings.request_for(settings.wish), news.append)
    report = Reporter(quiet=True)
    with report.beside(display):
        report.say("warning: it is hot\n  very hot")
        report.phase("looking at the machine", 4)
        report.step(1)
        await asyncio.sleep(0)  # steps may come from other threads, so they wait for the loop
        assert news == [True, True, False]
        view = display.view
        assert (view.phase, view.share, view.place, view.order) == (
            "looking at the machine",
            0.25,
            None,
            (),
        )
        assert view.said == ("warning: it is hot", "very hot")
        plan = receipts.parts().plan
        report.slots(("null", "null ms=2"), plan)
        order = tuple("".join(block) for block in plan.order)
        assert (display.view.order, display.view.left_s) == (order, plan.estimated_s)
        for number, side in enumerate(plan.order[0], 1):
            assert side in ("A", "B")
            slots = 4 * len(order)
            now = SlotNow(number, slots, 1, len(order), plan.order[0], number - 1, side, 90.0)
            report.slot(f"slot {number}", 4, now)
            report.window(side, 10.0 if side == "A" else 5.0)
            report.step(2, 5.25)
            report.step(4, 5.0, [5.125, 5.0])
            curve = ((2, 5.25), (3, 5.125), (4, 5.0))
            assert display.view.arms[0 if side == "A" else 1].curve == curve
            slot = receipts.parts().slots[number - 1]
            report.slot_ended(slot)
        view = display.view
        assert view.place and (view.place.number, view.place.block) == (4, 1)
        assert view.share == (3 + 4 / 4) / slots
        assert view.left_s and 80 < view.left_s <= 90
        assert [arm.median_step_ms for arm in view.arms] == [10.0, 5.0]
        assert [arm.windows for arm in view.arms] == [2, 2]
        assert view.raw_ratio == 2.0
        assert [(slot.block, slot.side) for slot in view.slots] == [
            (1, side) for side in plan.order[0]
        ]
        assert view.arms[0].curve[-1][0] == len(receipts.parts().slots[0].losses)
        report.rest("waiting")
        assert (display.view.slots, display.view.arms[0].windows) == ((), 0)
    report.say("nobody hears this")
    assert "nobody hears this" not in display.view.said


def test_a_long_curve_is_thinned() -> None:
    curve = [(step, 1 / step) for step in range(1, 10_001)]
    points = thinned(curve)
    assert len(points) == MOST_POINTS
    assert (points[0], points[-1]) == (curve[0], curve[-1])
    assert list(points) == sorted(set(points))
    assert thinned(curve[:3]) == tuple(curve[:3])


# --------------------------------------------------------------------------- other devices


@pytest.fixture(params=["openssl", "cryptography"])
def made(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> certificate.Certificate:
    """A certificate by either way."""
    if request.param == "openssl":
        monkeypatch.setattr(certificate, "x509", None)
    elif certificate.x509 is None:
        pytest.skip("the package `cryptography` (the extra `lan`) is not installed")
    try:
        return certificate.make_certificate(("127.0.0.1", "localhost"))
    except LackError as error:
        pytest.skip(str(error))


async def test_https_with_the_certificate_that_was_made(
    made: certificate.Certificate, client: aiohttp.ClientSession
) -> None:
    async with serving(Site(names=("127.0.0.1", "localhost"), tls=made.tls)) as page:
        address = page.addresses[0]
        assert address.startswith("https://127.0.0.1:")
        pinned = aiohttp.Fingerprint(bytes.fromhex(made.fingerprint.replace(":", "")))
        async with client.get(address, ssl=pinned) as response:
            assert response.status == 200
        # It is valid, now, for these names, and for nobody who does not know it.
        port = int(address.split(":")[2].split("/")[0])
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        knows = ssl.create_default_context(cadata=pem)
        for name in page.addresses:
            async with client.get(name, ssl=knows) as response:
                assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await client.get(address)
        url = f"{page.base_url}serve/claim"
        async with client.post(url, data=json.dumps(HELLO).encode(), ssl=pinned) as response:
            assert "Secure" in response.headers["Set-Cookie"]
        other = {"Host": f"evil.example:{port}"}
        async with client.get(address, ssl=pinned, headers=other) as response:
            assert response.status == 421


def test_without_any_way_to_make_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(certificate, "x509", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LackError, match=re.escape("pip install 'browser-train-driver[lan]'")):
        certificate.make_certificate(("127.0.0.1",))


def test_a_machine_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate.psutil, "net_if_addrs", dict)
    with pytest.raises(LackError, match="no network address"):
        certificate.lan_names()


def test_the_greeting_says_what_the_browser_will_say() -> None:
    addresses = (
        "https://192.168.1.20:4000/TOKEN/serve.html",
        "https://127.0.0.1:4000/TOKEN/serve.html",
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    fingerprint = ":".join(["AB"] * 32)
    text = greeting(addresses, certificate.Certificate(context, fingerprint))
    assert addresses[0] in text and addresses[1] not in text
    assert "not private" in text
    assert fingerprint.replace(":", "") in re.sub(r"[\s:]", "", text)
    plain = greeting(("http://127.0.0.1:4000/TOKEN/serve.html",), None)
    assert "--lan" in plain and "fingerprint" not in plain


def test_a_stop_is_told_as_one() -> None:
    """By whom and when, where the receipt has missing slots; what else failed stays."""
    whole = receipts.parts()
    cut = parse(replace(whole, slots=whole.slots[:5]).sealed())
    stopped = result_of(cut, Path("r.json"), 0, interrupted=True)
    words = "stopped by you in the page after 5 of 16 slots"
    assert any(reason.startswith(words) for reason in stopped.reasons)
    assert not any("not the 16 of the plan" in reason for reason in stopped.reasons)
    assert [g.reason.startswith(words) for g in stopped.gates if g.name == "errors"] == [True]
    assert stopped.line.startswith("You stopped it.")
    assert stopped.status == cut.verdict.status == "failed"
    # Slots that are missing for another reason, and a slot that failed before the stop.
    lost = result_of(cut, Path("r.json"), 0, interrupted=False)
    assert any("not the 16 of the plan" in reason for reason in lost.reasons)
    failed = parse(receipts.failed_slot(whole).sealed())
    shown = result_of(failed, Path("r.json"), 0, interrupted=True)
    assert shown.reasons == failed.verdict.reasons
