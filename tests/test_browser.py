"""Finding a browser, and a session that leaves nothing behind however it ends."""

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from driver.browser import BrowserChoice, BrowserSession, find, find_browser, setup_browser
from driver.errors import BrowserMissing, Unsupported, UsageError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def choice() -> BrowserChoice:
    found = find_browser(None)
    if found is None:
        pytest.skip("no browser on this machine; `driver setup` gets one")
    return found


def executable(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any browser; returns its only folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    monkeypatch.delenv(find.ENVIRONMENT, raising=False)
    monkeypatch.setattr(find, "_LINUX_PLACES", {})
    monkeypatch.setattr(find, "_MAC_APPS", {})
    return folder


# --------------------------------------------------------------------------- finding


def test_named_browsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = executable(tmp_path / "first"), executable(tmp_path / "second")
    monkeypatch.setenv(find.ENVIRONMENT, str(second))
    assert find_browser(str(first)) == BrowserChoice(
        path=str(first), source="--browser", named=True
    )
    assert find_browser(None) == BrowserChoice(
        path=str(second), source="DRIVER_BROWSER", named=True
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_browser("first")
    assert found is not None and found.path == str(first)


@pytest.mark.parametrize("kind", ["gone", "folder", "text"])
def test_named_browsers_that_are_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    if kind == "text":
        path.write_text("hello")
    for ask in (find_browser, lambda named: setup_browser(named, print)):
        with pytest.raises(BrowserMissing, match="executable") as caught:
            ask(str(path))
        assert str(path) in str(caught.value)
        assert caught.value.exit_code == 3


def test_the_order_of_places(bare: Path, tmp_path: Path) -> None:
    assert find_browser(None) is None
    own = find._playwright_path()
    assert str(own).startswith(str(tmp_path))
    assert "headless" not in own.parent.parent.name
    executable(own)
    found = find_browser(None)
    assert found is not None and (found.path, found.source) == (str(own), "Playwright's own")
    if sys.platform == "linux":
        for name in ("microsoft-edge", "google-chrome", "chromium"):
            executable(bare / name)
            found = find_browser(None)
            assert found is not None and found.path == str(bare / name)
            assert not found.named


@pytest.mark.skipif(sys.platform != "linux", reason="names of commands on Linux")
@pytest.mark.parametrize(
    ("name", "command"),
    [("chromium", "chromium-browser"), ("chrome", "google-chrome"), ("msedge", "microsoft-edge"),
     ("chrome-beta", "google-chrome-beta")],
)  # fmt: skip
def test_a_name_is_that_browser_only(
    bare: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    for other in ("chromium", "chrome", "chrome-beta", "msedge", "firefox", "webkit"):
        with pytest.raises(BrowserMissing) as missing:
            find_browser(other)
        assert missing.value.exit_code == 3
        assert other in str(missing.value)
        assert re.search("apt-get install -y chromium|playwright install", str(missing.value))
    path = executable(bare / command)
    for source in ("--browser", find.ENVIRONMENT):
        if source != "--browser":
            monkeypatch.setenv(source, name)
        found = find_browser(name if source == "--browser" else None)
        assert found == BrowserChoice(path=str(path), source=source, named=True)
    for other in {"chromium", "chrome", "chrome-beta", "msedge"} - {name}:
        with pytest.raises(BrowserMissing):
            find_browser(other)


def test_a_beta_is_never_taken_unasked(bare: Path) -> None:
    executable(bare / "google-chrome-beta")
    assert find_browser(None) is None


@pytest.mark.parametrize("engine", ["firefox", "webkit"])
def test_playwrights_own_builds(bare: Path, engine: find.Engine) -> None:
    """By name or by path; the message for a missing one has the command."""
    with pytest.raises(BrowserMissing, match=f"-m playwright install {engine}"):
        find_browser(engine)
    own = executable(find._playwright_path(engine))
    found = find_browser(engine)
    assert found is not None and (found.path, found.engine) == (str(own), engine)
    found = find_browser(str(own))
    assert found is not None and (found.path, found.engine) == (str(own), engine)


@pytest.mark.parametrize(
    ("file", "engine"), [("firefox-esr", "firefox"), ("firefox", "firefox"), ("Safari", "webkit")]
)
def test_installed_ones_that_playwright_cannot_drive(bare: Path, file: str, engine: str) -> None:
    path = executable(bare / file)
    with pytest.raises(UsageError, match="its own patched build") as refused:
        find_browser(str(path))
    assert f"--browser {engine}" in str(refused.value)
    assert f"-m playwright install {engine}" in str(refused.value)


async def test_finding_beside_a_running_loop(bare: Path) -> None:
    assert find_browser(None) is None


def test_setup_installs_and_says_so(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = bare / "chromium"
    make = f"printf '#!/bin/sh\\n' > {target}; /bin/chmod 755 {target}"
    commands = [[["/bin/sh", "-c", "echo no network >&2; exit 7"]], [["/bin/sh", "-c", make]]]
    monkeypatch.setattr(find, "_LINUX_PLACES", {"chromium": (str(target),)})
    monkeypatch.setattr(find, "_MAC_APPS", {"chromium": (str(target),)})
    monkeypatch.setattr(
        find, "_installers", lambda: iter([("first", commands[0]), ("second", commands[1])])
    )
    said: list[str] = []
    assert setup_browser(None, said.append).path == str(target)
    assert "first" in said[0] and "no network" in said[1]
    assert "second" in said[2] and str(target) in said[3]
    said.clear()
    assert setup_browser(None, said.append).path == str(target)
    assert len(said) == 1


def test_setup_that_fails_tells_the_command(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        find,
        "_installers",
        lambda: iter([("trying", [["/bin/sh", "-c", "echo deep trouble >&2; exit 3"]])]),
    )
    with pytest.raises(BrowserMissing) as caught:
        setup_browser(None, lambda _: None)
    words = str(caught.value)
    assert caught.value.exit_code == 3
    assert "install" in words and "deep trouble" in words and "--browser" in words


# --------------------------------------------------------------------------- a session


def alive(profile: Path) -> list[int]:
    """Processes of the browser that has this profile."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if any(str(profile) in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def assert_gone(profile: Path, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while (alive(profile) or profile.exists()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(profile)
    assert not profile.exists()


def profile_of(session: BrowserSession) -> Path:
    assert session._profile is not None and session._profile.exists()
    assert alive(session._profile)
    return session._profile


async def test_facts(choice: BrowserChoice) -> None:
    async with BrowserSession(choice) as session:
        facts = session.facts
        profile = profile_of(session)
    assert facts.version.split(".")[0].isdigit()
    assert facts.version.split(".")[0] in facts.user_agent
    assert "--enable-unsafe-webgpu" in facts.argv and "--headless=new" in facts.argv
    assert facts.headless
    # The process's own words, not the flags that were asked for.
    assert any(word.startswith("--user-data-dir=") for word in facts.argv)
    as_root = sys.platform == "linux" and os.geteuid() == 0
    assert ("--no-sandbox" in facts.argv) == as_root
    with Path(facts.executable).open("rb") as file:
        assert facts.executable_sha256 == hashlib.file_digest(file, "sha256").hexdigest()
    assert isinstance(facts.gpu_devices, tuple)
    assert_gone(profile, 0)


async def test_two_sessions_share_nothing(choice: BrowserChoice) -> None:
    async with BrowserSession(choice) as first, BrowserSession(choice) as second:
        profiles = {profile_of(first), profile_of(second)}
        assert len(profiles) == 2
    for profile in profiles:
        assert_gone(profile, 0)


async def test_an_exception_leaves_nothing(choice: BrowserChoice) -> None:
    profile = Path()
    with pytest.raises(ZeroDivisionError):
        async with BrowserSession(choice) as session, session.page():
            profile = profile_of(session)
            raise ZeroDivisionError
    assert_gone(profile, 0)


async def test_cancellations_leave_nothing(choice: BrowserChoice) -> None:
    started: asyncio.Future[Path] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with BrowserSession(choice) as session, session.page():
            started.set_result(profile_of(session))
            await asyncio.sleep(60)

    task = asyncio.ensure_future(work())
    profile = await started
    task.cancel()
    for _ in range(5):  # an impatient person
        await asyncio.sleep(0.02)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_gone(profile, 0)


async def test_a_cancelled_start_leaves_nothing(choice: BrowserChoice) -> None:
    def browsers() -> set[int]:
        return {p.pid for p in psutil.Process().children(recursive=True)}

    before = browsers()
    for delay in (0.0, 0.2, 0.4):
        task = asyncio.ensure_future(BrowserSession(choice).__aenter__())
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            session = await task
            await session.__aexit__(None, None, None)
    assert browsers() <= before


async def test_a_killed_browser_leaves_nothing(choice: BrowserChoice) -> None:
    async with BrowserSession(choice) as session:
        profile, lock = profile_of(session), session._lock
        assert session._process is not None
        session._process.kill()
        await asyncio.sleep(0.1)
    assert_gone(profile, 0)
    if sys.platform == "linux":
        assert lock is not None and not lock.exists()


@pytest.mark.parametrize("named", [True, False])
async def test_an_executable_that_is_no_browser(tmp_path: Path, named: bool) -> None:
    path = executable(tmp_path / "browser", "echo not me >&2; exit 1")
    wrong = BrowserChoice(path=str(path), source="--browser", named=named)
    with pytest.raises(BrowserMissing, match="did not start: not me"):
        await BrowserSession(wrong).__aenter__()


async def test_headed_without_a_display(
    choice: BrowserChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has displays by name")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(Unsupported, match="leave out --headed"):
        await BrowserSession(choice.model_copy(update={"headed": True})).__aenter__()


SCRIPT = """
import asyncio, signal, sys
from driver.browser import BrowserChoice, BrowserSession

# A shell's background jobs, and all they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    choice = BrowserChoice(path=sys.argv[1], source="test")
    async with BrowserSession(choice) as session, session.page():
        profile = [w for w in session.facts.argv if w.startswith("--user-data-dir=")][0]
        print(profile.split("=", 1)[1], flush=True)
        await asyncio.sleep(60)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def other_process(choice: BrowserChoice) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another Python that has a session open, in a process group of its own, and its profile."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, choice.path],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def test_ctrl_c_leaves_nothing(other_process: tuple[subprocess.Popen[str], Path]) -> None:
    process, profile = other_process
    assert profile.exists()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone in the group
    out, _ = process.communicate(timeout=60)
    assert "interrupted" in out
    assert_gone(profile, 1)


def test_a_killed_driver_leaves_nothing(other_process: tuple[subprocess.Popen[str], Path]) -> None:
    process, profile = other_process
    process.kill()
    process.wait(timeout=30)
    assert_gone(profile)
