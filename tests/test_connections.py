"""Browsers that the driver does not start: a Playwright server's, and one that runs already.

Both are real. What is not this machine's is a browser in a process namespace of its own: its
processes cannot be found here, as those of a phone or another computer cannot.
"""

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import receipts

from driver import adapter
from driver.browser import BrowserChoice, BrowserSession, Wanted, elsewhere, facts
from driver.errors import Unsupported
from driver.host import FAR, host_of
from driver.machine import machine_facts
from driver.plan import evaluator
from driver.receipt import verify
from driver.server import JobServer

Driver = Callable[..., tuple[int, str, str]]
START_S = 60


# --------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--connect", "http://there:3000"], "expected ws://… or wss://…"),
        (["--connect", "there:3000"], "expected ws://… or wss://…"),
        (["--connect", "ws://there:port/"], "expected ws://… or wss://…"),
        (["--cdp", "9222"], "expected http://…"),
        (["--cdp", "http:///json"], "expected http://…"),
        (["--cdp", "http://a:1", "--connect", "ws://a:1"], "give one of them"),
        (["--cdp", "http://a:1", "--browser", "chrome"], "leave out --browser"),
        (["--cdp", "http://a:1", "--headed"], "leave out --headed"),
        (["--connect", "ws://a:1", "--browser", "netscape"], "expected chromium, chrome"),
    ],
)
def test_addresses_that_are_none(driver: Driver, options: list[str], words: str) -> None:
    """Every command that opens a browser says so, with code 2, before it opens one."""
    for command in (["doctor"], ["kernels", "--quiet"], ["setup"]):
        code, _, err = driver(*command, *options)
        assert code == 2
        assert words in err


@pytest.mark.parametrize(
    ("options", "commands"),
    [
        (["--connect", "ws://127.0.0.1:9/"],
         ["playwright run-server --host 127.0.0.1", "--unsafe", "ssh -L 3000:127.0.0.1:3000"]),
        (["--cdp", "http://127.0.0.1:9"],
         ["--remote-debugging-port", "adb forward tcp:9 localabstract:chrome_devtools_remote"]),
    ],
)  # fmt: skip
def test_nothing_answers(driver: Driver, options: list[str], commands: list[str]) -> None:
    """Code 3, and the command that starts what is missing."""
    code, _, err = driver("kernels", "--quiet", *options)
    assert code == 3
    assert all(command in err for command in commands)


def test_a_port_that_is_taken(driver: Driver) -> None:
    with contextlib.closing(_listening()) as taken:
        port = taken.getsockname()[1]
        code, _, err = driver("kernels", "--quiet", "--server-port", port)
    assert code == 2
    assert f"--server-port {port}" in err


def test_what_a_server_is_asked_for() -> None:
    def choice(browser: str | None) -> BrowserChoice:
        found = elsewhere(Wanted(connect="wss://bench:1/secret", browser=browser))
        assert found is not None
        return found

    assert choice(None).channel == choice("chromium").channel == "chromium"
    assert choice("msedge").channel == "msedge"
    assert (choice("firefox").engine, choice("firefox").channel) == ("firefox", None)
    assert choice("/opt/it/chrome").path == "/opt/it/chrome"
    assert "secret" not in choice(None).label
    assert elsewhere(Wanted(browser="chrome", headed=True)) is None


@pytest.mark.parametrize(
    ("host", "own"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.7", False),
     ("localhost.example", False), (None, False)],
)  # fmt: skip
def test_loopback(host: str | None, own: bool) -> None:
    assert facts.loopback(host) == own


# --------------------------------------------------------------------------- a server's browser


@pytest.fixture(scope="module")
def playwright_server() -> Iterator[str]:
    """A Playwright server, as on another machine: one that starts a browser per connection."""
    command = [sys.executable, "-m", "playwright", "run-server", "--port", "0", "--host",
               "127.0.0.1", "--unsafe"]  # fmt: skip
    with _running(command) as process:
        yield _said(process, r"(ws://\S+)")


@pytest.mark.slow
def test_a_run_on_a_server(
    driver: Driver, playwright_server: str, browser: BrowserChoice, preset: Path, tmp_path: Path
) -> None:
    code, receipt = _run(
        driver, preset, tmp_path, "--connect", playwright_server, "--browser", browser.path
    )
    assert code == 0
    found = receipt["environment"]["browser"]
    # The server runs here, and that is shown, not believed.
    assert found["remote"] is False
    assert Path(found["executable"]).exists()
    assert "--enable-unsafe-webgpu" in found["argv"]
    assert (found["source"], found["process"], found["headless"]) == ("--connect", "unknown", True)
    assert receipt["environment"]["machine"]["cpu"] == machine_facts().cpu


def test_what_the_server_cannot_start(driver: Driver, playwright_server: str) -> None:
    code, _, err = driver(
        "kernels", "--quiet", "--connect", playwright_server, "--browser", "/no/such/chrome"
    )
    assert code == 3
    assert "/no/such/chrome" in err


def test_a_server_with_a_browser_of_its_own(
    driver: Driver, browser: BrowserChoice, tmp_path: Path
) -> None:
    """`launch-server` gives everyone the one that it started, and keeps it."""
    config = tmp_path / "server.json"
    config.write_text(
        json.dumps(
            {
                "executablePath": browser.path,
                "host": "127.0.0.1",
                "headless": False,
                "args": ["--headless=new", "--enable-unsafe-webgpu"],
            }
        )
    )
    command = [sys.executable, "-m", "playwright", "launch-server", "--browser", "chromium",
               "--config", str(config)]  # fmt: skip
    with _running(command) as process:
        address = _said(process, r"(ws://\S+)")
        code, out, err = driver("doctor", "--connect", address, "--json")
        assert code == 0, err
        checks = {check["name"]: check for check in json.loads(out)["checks"]}
        assert "--connect" in checks["browser"]["value"]
        assert checks["isolation"]["status"] == "ok"
        assert psutil.Process(process.pid).children(recursive=True)


# --------------------------------------------------------------------------- one that runs already


@pytest.fixture
def running(browser: BrowserChoice, tmp_path: Path) -> Iterator[tuple[str, psutil.Process, Path]]:
    """Somebody's own Chromium with a page open: its address, process and profile."""
    profile = tmp_path / "profile"
    with _chromium(browser, profile) as (address, process):
        yield address, psutil.Process(process.pid), profile


@pytest.mark.slow
def test_a_run_in_a_browser_that_runs(
    driver: Driver, running: tuple[str, psutil.Process, Path], preset: Path, tmp_path: Path
) -> None:
    """It is used, told of, and left as it was."""
    address, process, profile = running
    before = _pages(address)
    code, receipt = _run(driver, preset, tmp_path, "--cdp", address)
    assert code == 0
    found = receipt["environment"]["browser"]
    assert (found["remote"], found["process"], found["source"]) == (False, "kept", "--cdp")
    assert f"--user-data-dir={profile}" in found["argv"]
    assert "(one process for all blocks)" in receipt["verdict"]["headline"]
    assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    assert profile.is_dir()
    assert _pages(address) == before


async def test_it_does_not_reach_the_page(running: tuple[str, psutil.Process, Path]) -> None:
    choice = elsewhere(Wanted(cdp=running[0]))
    assert choice is not None
    async with BrowserSession(choice) as session:
        with pytest.raises(Unsupported, match="adb reverse tcp:8123 tcp:8123"):
            await session.reach("http://127.0.0.1:9/")
        async with JobServer() as server:
            await session.reach(server.base_url)


# --------------------------------------------------------------------------- another machine's


def test_a_run_on_another_machine(
    driver: Driver, browser: BrowserChoice, preset: Path, tmp_path: Path
) -> None:
    """Nothing that is this machine's stands for the other, and the verdict says so."""
    if sys.platform != "linux" or subprocess.run([*APART, "true"], check=False).returncode:
        pytest.skip("this user cannot make process namespaces here")
    with _chromium(browser, tmp_path / "profile", *APART) as (address, _):
        code, receipt = _run(driver, preset, tmp_path, "--cdp", address)
        shown, out, _ = driver("doctor", "--cdp", address, "--json")
    assert code == 0 and shown == 0
    environment = receipt["environment"]
    assert environment["browser"]["remote"] is True
    assert environment["browser"]["executable"] is None
    assert environment["browser"]["unknown"]["executable"]
    machine = environment["machine"]
    assert machine["remote"] is True
    assert machine["cpu"].startswith("another machine (Linux")
    assert machine["memory_total_bytes"] is None
    assert machine["driver"]["cpu"] == machine_facts().cpu
    assert environment["load_before"]["load_1min"] is None
    assert environment["load_after"]["load_1min"] is None
    assert environment["others_cpu"]["shares"] == []
    quiet = next(gate for gate in receipt["gates"] if gate["name"] == "quiet")
    assert (quiet["status"], FAR in quiet["reason"]) == ("unknown", True)
    assert receipt["verdict"]["status"] == "unqualified"
    assert "another machine" in receipt["verdict"]["headline"]
    assert machine_facts().cpu not in receipt["verdict"]["headline"]
    threads = next(c for c in json.loads(out)["checks"] if c["name"] == "threads")
    assert FAR in threads["value"]


def test_an_adapter_on_another_machine_is_never_hardware() -> None:
    """Its names may be right; its speed cannot be set beside cores that only its page counts."""
    run = receipts.parts()
    assert adapter.judge_run(run.plan, run.environment).kind == "hardware"
    far = run.with_environment(machine=run.environment.machine | {"remote": True})
    judged = adapter.judge_run(far.plan, far.environment)
    assert judged.kind == "unknown"
    assert "another machine" in judged.reasons[0]


@pytest.mark.parametrize(
    ("host", "platform", "shown"),
    [
        (None, {"name": "Android", "version": "16.0.0", "model": "Pixel 9", "architecture": ""},
         "another machine (Pixel 9, Android 16.0.0)"),
        ("bench", None, "another machine (bench)"),
        (None, None, "another machine (X11; Linux x86_64)"),
    ],
)  # fmt: skip
def test_another_machines_name(host: str | None, platform: Any, shown: str) -> None:
    browser = facts.BrowserFacts(
        name="Chrome", version="156.0", source="--cdp", executable=None, executable_sha256=None,
        argv=(), headless=None, user_agent="Mozilla/5.0 (X11; Linux x86_64) Chrome/156",
        gpu_devices=(), gl_renderer=None, gl_vendor=None, remote=True, host=host,
    )  # fmt: skip
    found = host_of(browser, {"platform": platform, "hardware_concurrency": 7})
    assert found.machine["cpu"] == shown
    assert (found.cores, found.machine["cores_usable"]) == (7, 7)
    assert host_of(browser, {}).cores == 1


# --------------------------------------------------------------------------- means

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _run(driver: Driver, preset: Path, folder: Path, *options: str) -> tuple[int, Any]:
    """The smallest preset on an arm that computes and one that does not, and its receipt."""
    out = folder / "receipts"
    code, _, err = driver(
        "run", "--preset", preset, "--arms", "wasm:threads=1+tile=4x8,null", "--out", out,
        "--quiet", *options,
    )  # fmt: skip
    paths = [*out.glob("*.receipt.json")]
    assert len(paths) == 1, err
    receipt = json.loads(paths[0].read_text())
    assert verify(receipt, evaluator()) == ([], [])
    return code, receipt


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process, and in the end none of its family."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            family = [psutil.Process(process.pid)] if process.poll() is None else []
            family += [child for one in family for child in one.children(recursive=True)]
            for one in family:
                with contextlib.suppress(psutil.Error):
                    one.kill()


def _said(process: subprocess.Popen[str], pattern: str) -> str:
    """What a line of its output holds."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found.group(1)
    raise AssertionError("".join(said))


@contextlib.contextmanager
def _chromium(
    browser: BrowserChoice, profile: Path, *before: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A Chromium that nobody of the driver started, its address and process."""
    command = [
        *before, browser.path, "--headless=new", "--no-sandbox", "--enable-unsafe-webgpu",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    with _running(command) as process:
        port = profile / "DevToolsActivePort"
        until = time.monotonic() + START_S
        while not port.exists() or not port.read_text().strip():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}", process


def _pages(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}/json/list", timeout=10) as answer:
        return sorted(page["id"] for page in json.load(answer) if page["type"] == "page")


def _listening() -> Any:
    return socket.create_server(("127.0.0.1", 0))
