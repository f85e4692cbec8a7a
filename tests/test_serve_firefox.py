"""`driver serve` in Firefox through its own driver, Marionette; where there is a Firefox."""

import base64
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from driver.plan import evaluator
from driver.receipt import verify

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 180.0


class Firefox:
    """A headless Firefox; messages are `length:[0, id, command, parameters]`."""

    def __init__(self, program: str, profile: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
        self._process = subprocess.Popen(
            [program, "--headless", "--marionette", "--no-remote", "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._socket = self._connect(port)
        self._data = b""
        self._asked = 0
        self._read()  # it greets first
        self.call("WebDriver:NewSession", acceptInsecureCerts=True)

    def _connect(self, port: int) -> socket.socket:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            except OSError:
                assert time.monotonic() < until and self._process.poll() is None
                time.sleep(0.2)

    def call(self, command: str, **parameters: Any) -> Any:
        """What a command of Marionette gives."""
        self._asked += 1
        message = json.dumps([0, self._asked, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def script(self, text: str) -> Any:
        """The value of an expression in the page."""
        return self.call("WebDriver:ExecuteScript", script=f"return {text}", args=[])["value"]

    def click(self, selector: str) -> None:
        """As a person does, with the mouse."""
        found = self.call("WebDriver:FindElement", using="css selector", value=selector)["value"]
        self.call("WebDriver:ElementClick", id=next(iter(found.values())))

    def until(self, condition: str) -> None:
        """Waits until an expression in the page is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.script(condition):
            assert time.monotonic() < end, self.script("document.body.innerText")
            time.sleep(0.2)

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        taken = self.call("WebDriver:TakeScreenshot", full=True)["value"]
        path.write_bytes(base64.b64decode(taken))

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError, AssertionError):
            self.call("Marionette:Quit", flags=["eForceQuit"])
        self._socket.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> Any:
        while b":" not in self._data:
            self._more()
        length, _, rest = self._data.partition(b":")
        self._data = rest
        while len(self._data) < int(length):
            self._more()
        message, self._data = self._data[: int(length)], self._data[int(length) :]
        return json.loads(message)

    def _more(self) -> None:
        part = self._socket.recv(1 << 16)
        assert part, "Firefox closed the connection"
        self._data += part


@pytest.fixture
def firefox() -> Iterator[Firefox]:
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("no Firefox on this machine; on Debian: apt-get install firefox-esr")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        running = Firefox(program, Path(profile))
        try:
            yield running
        finally:
            running.close()


@contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """`driver serve`; gives its address."""
    words = [sys.executable, "-m", "driver", "serve", "--no-open", *map(str, arguments)]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield next(line.strip() for line in process.stdout if line.strip().startswith("http"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("lan", [False, True])
def test_a_run_in_firefox(firefox: Firefox, preset: Path, tmp_path: Path, lan: bool) -> None:
    """32-bit WebAssembly with threads against itself on one thread: the same bits, checked by all
    gates; on loopback and over HTTPS behind the certificate made on the spot."""
    arguments: list[object] = ["--preset", preset, "--out", tmp_path / "out"]
    arguments += ["--arms", "wasm:threads=2,wasm:threads=1", *(["--lan"] if lan else [])]
    with serving(*arguments) as address:
        firefox.call("WebDriver:Navigate", url=address)
        firefox.until("!document.querySelector('#setup').hidden")
        assert firefox.script("self.crossOriginIsolated") is True
        firefox.click("#start")
        firefox.until("!document.querySelector('#result').hidden")
        assert firefox.script("document.querySelector('#problem').textContent") == ""
    (path,) = (tmp_path / "out").glob("*.receipt.json")
    receipt = json.loads(path.read_text())
    assert verify(receipt, evaluator()) == ([], [])
    browser = receipt["environment"]["browser"]
    assert browser["name"] == "Firefox"
    failed = [gate for gate in receipt["gates"] if gate["status"] == "fail"]
    assert [gate for gate in failed if gate["gate_class"] == "blocking"] == []
    assert receipt["comparison"]["drift"]["loss"] == 0
    assert {slot["ran"]["threads"] for slot in receipt["slots"]} == {1, 2}
