"""For tests: a real pseudo-terminal to run commands on, and what its screen then shows."""

import os
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from fcntl import ioctl
from pathlib import Path
from types import TracebackType
from typing import Self

_CSI = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


class Screen:
    """What a terminal of that width shows of a stream: text, line feeds, moves up, erasures."""

    def __init__(self, columns: int, stream: bytes = b"") -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0
        self.cursor = True
        self.colours = False
        self.wrapped = False
        """A line was longer than the terminal is wide."""
        self.feed(stream.decode(errors="replace"))

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.rows).rstrip()

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            found = _CSI.match(text, at)
            if found:
                self._control(found[1], found[2])
                at = found.end()
            else:
                self._put(text[at])
                at += 1

    def _put(self, sign: str) -> None:
        if sign == "\r":
            self.column = 0
        elif sign == "\n":
            self._down()
        elif sign >= " ":
            if self.column == self.columns:
                self.wrapped = True
                self._down()
                self.column = 0
            row = self.rows[self.row]
            row.extend(" " * (self.column + 1 - len(row)))
            row[self.column] = sign
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    def _control(self, given: str, kind: str) -> None:
        if kind == "A":
            self.row = max(0, self.row - int(given or 1))
        elif kind == "K":
            assert given == "2"
            self.rows[self.row] = []
        elif kind == "m":
            codes = set(given.split(";"))
            self.colours |= any(re.fullmatch(r"[34]\d|9\d|10\d", code) for code in codes)
        elif given == "?25":
            self.cursor = kind == "h"
        else:
            raise AssertionError(f"the test's terminal does not know {given}{kind}")


class Terminal:
    """A command on a pseudo-terminal of its own, as its controlling terminal: Ctrl-C works.

    What is typed is shown where `echo` is set.
    """

    def __init__(
        self,
        command: Sequence[object],
        columns: int,
        env: Mapping[str, str] | None = None,
        stdout: Path | None = None,
        echo: bool = False,
    ) -> None:
        self.columns, self.output = columns, b""
        self._master, slave = os.openpty()
        termios.tcsetwinsize(self._master, (24, columns))
        if not echo:  # else a line feed that is typed moves the cursor
            settings = termios.tcgetattr(slave)
            settings[3] &= ~termios.ECHO
            termios.tcsetattr(slave, termios.TCSANOW, settings)
        self._before = termios.tcgetattr(self._master)
        self._target = stdout.open("wb") if stdout else None
        self._process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=slave, stdout=self._target or slave, stderr=slave,
            env=os.environ | {"TERM": "xterm-256color"} | dict(env or {}),
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0) and None,  # noqa: PLW1509
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)
        if self._target:
            self._target.close()

    @property
    def screen(self) -> Screen:
        return Screen(self.columns, self.output)

    def until(self, holds: Callable[[Screen], bool], within_s: float = 60) -> Screen:
        """The screen as soon as that holds of it."""
        end = time.monotonic() + within_s
        while not holds(self.screen):
            assert time.monotonic() < end, f"not within {within_s} s:\n{self.screen.text}"
            assert self._read(0.2) or self._process.poll() is None, self.screen.text
        return self.screen

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, columns: int) -> None:
        """From here on `screen` is what the new size gets."""
        while self._read(0.05):
            pass
        self.columns, self.output = columns, b""
        termios.tcsetwinsize(self._master, (24, columns))

    def end(self, within_s: float = 60) -> int:
        """Waits for the command's end; gives its exit code."""
        end = time.monotonic() + within_s
        while self._process.poll() is None:
            assert time.monotonic() < end, self.screen.text
            self._read(0.2)
        while self._read(0.1):
            pass
        return self._process.returncode

    def outlive(self) -> int:
        """Takes the terminal away and waits for the command's end; gives its exit code."""
        os.close(self._master)
        if self._target:
            self._target.close()
        return self._process.wait(60)

    @property
    def sane(self) -> bool:
        """Settings as they were, and the cursor there."""
        return termios.tcgetattr(self._master) == self._before and self.screen.cursor

    def _read(self, within_s: float) -> bool:
        try:
            if not select.select([self._master], [], [], within_s)[0]:
                return False
            data = os.read(self._master, 1 << 16)
        except OSError:  # Linux, when nobody has the other side open any more
            return False
        self.output += data
        return bool(data)
