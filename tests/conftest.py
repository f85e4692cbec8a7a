"""Shared fixtures: the browser and the page's server; the oracle's cases and the text, if any."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio

from driver import cli, layout
from driver.browser import BrowserChoice, BrowserSession, find_browser
from driver.layout import PRESETS, WEB
from driver.prepare import probe
from driver.server import JobServer
from driver.workbench import Workbench

# What a terminal or a parent process says of widths and colours (pytest-xdist sets COLUMNS) must
# not reach the reports that tests read.
for _name in (
    "TERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "COLORTERM", "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
):  # fmt: skip
    os.environ.pop(_name, None)

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
# Arms with nothing left to choose, for runs that are not about choosing: each spares some pages.
ONE = "threads=1+tile=6x8"
WEBGPU = "webgpu:matmul=blocked+tile=8x8+split_db=1+workgroup=8x8"
GOLDEN = ("tiny", "tiny-jitter", "strong")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the independent oracle's cases."""
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip("the oracle's cases (../shared/golden) are not on this machine")
    return folder


@pytest.fixture(scope="session")
def check_case() -> Path:
    """The script that compares a result with an oracle's answer."""
    script = SHARED / "check_case.py"
    if not script.is_file():
        pytest.skip("../shared/check_case.py is not on this machine")
    return script


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """Real text."""
    text = SHARED / "data" / "tinyshakespeare.txt"
    if not text.is_file():
        pytest.skip("../shared/data/tinyshakespeare.txt is not on this machine")
    return text


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own. The compiler keeps its objects (zig/), which take it minutes."""
    compilers = layout.cache_dir() / "zig"
    compilers.mkdir(parents=True, exist_ok=True)
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "zig").symlink_to(compilers.resolve())
    monkeypatch.setenv("DRIVER_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def browser() -> BrowserChoice:
    """The browser that the driver finds here."""
    choice = find_browser(None)
    if choice is None:
        pytest.skip("no browser on this machine; `driver setup` gets one")
    return choice


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def session(browser: BrowserChoice) -> AsyncIterator[BrowserSession]:
    """One browser process for all tests of a module."""
    async with BrowserSession(browser) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server() -> AsyncIterator[JobServer]:
    """Serves the project's page."""
    async with JobServer() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def broken(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """Serves the page with one of its files replaced; `{real}` in a text is the real one's name."""
    running: list[JobServer] = []

    async def serve(file: str, text: str) -> JobServer:
        folder = tmp_path_factory.mktemp("web") / "web"
        shutil.copytree(WEB, folder)
        (folder / file).rename(folder / f"real_{file}")
        (folder / file).write_text(text.replace("{real}", f"./real_{file}"))
        server = await JobServer(folder).__aenter__()
        running.append(server)
        return server

    yield serve
    for server in running:
        await server.__aexit__(None, None, None)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gpu_bench(browser: BrowserChoice) -> AsyncIterator[tuple[Workbench, dict[str, Any]]]:
    """A workbench and the page's features; skips where WebGPU is missing."""
    async with JobServer() as server, BrowserSession(browser) as session:
        features = (await probe(session, server)).features
        if not features["webgpu"]["available"]:
            pytest.skip(f"this browser offers no WebGPU here: {features['webgpu']['reason']}")
        yield Workbench(session, server, deadline_s=300), features


@pytest.fixture
def driver(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `driver …` in this process; gives exit code, stdout and stderr. Never a traceback."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["driver", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    """The tiny preset, smaller still and with short windows: nothing here is about time."""
    text = (PRESETS / "tiny.toml").read_text()
    changes = {
        "name": '"mini"', "n_layer": 1, "n_head": 2, "d_model": 16, "d_ff": 64, "ctx": 16,
        "batch": 4, "warmup_steps": 2, "warmup_ms": 1, "windows": 2, "window_ms": 20,
        "max_steps_per_window": 8, "blocks": 1, "budget": '"300s"',
    }  # fmt: skip
    lines = []
    for line in text.splitlines():
        key = line.partition("=")[0].strip()
        lines.append(f"{key} = {changes.pop(key)}" if key in changes else line)
    assert not changes
    path = tmp_path / "mini.toml"
    path.write_text("\n".join(lines))
    return path


# Shared machines are slow at times; how long an example takes is never what a test is about.
# The same examples every time, so that a change that passes here passes everywhere;
# HYPOTHESIS_PROFILE=explore looks for new ones.
for _name, _fixed in (("driver", True), ("explore", False)):
    hypothesis.settings.register_profile(
        _name,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        derandomize=_fixed,
        database=None,
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "driver"))
