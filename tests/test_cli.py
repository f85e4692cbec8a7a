"""Commands as a person types them: exit codes, messages, what goes to stdout."""

import inspect
import itertools
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import receipts
import typer
from terminals import Terminal

from driver import __version__, cli, layout, threads, versions
from driver.arms import parse_arm
from driver.cases import Case, write_case
from driver.cli import complete
from driver.errors import BrowserMissing, Unsupported
from driver.later import later
from driver.records import ModelConfig
from driver.tensors import initial_state

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A small case file."""
    config = ModelConfig(
        n_layer=1, n_head=2, d_model=8, d_ff=32, ctx=5, batch=2, vocab=11, lr=1e-3, beta1=0.9,
        beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0,
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 11, (3, 2, 6)).astype(np.int32)
    path = tmp_path / "small.case.safetensors"
    write_case(path, Case(config, tokens, initial_state(config, 1)))
    return path


def bad_usage(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """Name → arguments and what the message has to say; all of them end with code 2."""
    short = tmp_path / "short.txt"
    short.write_bytes(b"abc")
    file = tmp_path / "file"
    file.write_text("")
    run = ["run", "--preset", "tiny"]
    return {
        "unknown preset": (["run", "--preset", "tinny"], "tiny"),
        "no preset": (["run", "--preset", ","], "driver presets"),
        "one of several unknown": (["run", "--preset", "tiny,nope"], "nope"),
        "unknown arm": ([*run, "--arms", "wasm,webgpuu"], "webgpu"),
        "one arm": ([*run, "--arms", "wasm"], "two arms"),
        "three arms": ([*run, "--arms", "wasm,wasm,wasm"], "two arms"),
        "unknown option": ([*run, "--arms", "wasm:thread=2,wasm"], "threads"),
        "bad value": ([*run, "--arms", "wasm:threads=0,wasm"], "threads=0"),
        "bad choice": ([*run, "--arms", "wasm:simd=avx,wasm"], "simd=avx"),
        "numpy in run": ([*run, "--arms", "numpy,wasm"], "replay"),
        "corpus missing": ([*run, "--corpus", str(tmp_path / "none")], "none"),
        "corpus is a folder": ([*run, "--corpus", str(tmp_path)], "folder"),
        "corpus too short": ([*run, "--corpus", str(short)], "33"),
        "blocks 0": ([*run, "--blocks", "0"], "--blocks 0"),
        "blocks negative": ([*run, "--blocks", "-1"], "--blocks -1"),
        "blocks not a number": (
            [*run, "--blocks", "two"],
            "--blocks two: expected a number, or auto",
        ),
        "negative seed": ([*run, "--seed", "-1"], "--seed -1"),
        "huge seed": ([*run, "--seed", str(2**53)], "--seed"),
        "bad budget": ([*run, "--budget", "soon"], "--budget: soon is not a duration"),
        "bad budget of a ladder": (
            ["ladder", "--preset", "tiny", "--axis", "simd", "--budget", "nan"],
            "--budget: nan is not a duration",
        ),
        "bad budget of a calibration": (["calibrate", "--budget", "0"], "--budget: the duration 0"),
        "bad timeout": (
            ["replay", "tiny", "--arm", "numpy", "--out", str(tmp_path / "y"), "--timeout", "x"],
            "--timeout: x is not a duration",
        ),
        "a budget that is too long": (
            [*run, "--budget", "99999999999h"],
            "--budget: the duration 99999999999h is too long: at most 30 days",
        ),
        "neither a case nor a preset": (
            ["replay", "nope", "--arm", "numpy", "--out", str(tmp_path / "y")],
            "no such file, and no preset of that name; presets are tiny, small",
        ),
        "a name that no file can have": (
            ["replay", "n" * 5000, "--arm", "numpy", "--out", str(tmp_path / "y")],
            "no such file",
        ),
        "a receipt's name that no file can have": (["verify", "n" * 5000], "cannot be read"),
        "too few blocks to calibrate": (
            ["calibrate", "--blocks", "2"],
            "--blocks 2: a calibration needs at least 4 blocks",
        ),
        "below a range": (["history", "list", "--last", "0"], "'--last': 0 should be greater"),
        "above a range": ([*run, "--server-port", "65536"], "'--server-port': 65536 should be"),
        "no number": (["calibrate", "--runs", "1e2"], "'--runs': 1e2 should be a whole number"),
        "an empty number": (["calibrate", "--runs", ""], "'--runs': an empty value"),
        "bad require": ([*run, "--require", "luck"], "luck"),
        "out is a file": ([*run, "--out", str(file)], str(file)),
        "wasm at behemoth": (["run", "--preset", "behemoth", "--arms", "wasm,wasm64"], "wasm64"),
        "unknown command": (["fly"], "fly"),
        "unknown flag": ([*run, "--fast"], "--fast"),
        "case missing": (
            ["replay", str(tmp_path / "x"), "--arm", "numpy", "--out", str(tmp_path / "y")],
            "no such file",
        ),
        "case foreign": (
            ["replay", str(short), "--arm", "numpy", "--out", str(tmp_path / "y")],
            "safetensors",
        ),
        "receipt missing": (["verify", str(tmp_path / "none.json")], "none.json"),
        "receipt foreign": (["report", str(short)], "JSON"),
    }


@pytest.mark.parametrize("name", sorted(bad_usage(Path(tempfile.mkdtemp()))))
def test_bad_usage_is_answered(
    driver: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = bad_usage(tmp_path)[name]
    code, out, err = driver(*arguments)
    assert code == 2, err
    assert expected in (out + err).replace("\n", " ").replace("│", "")
    assert "Traceback" not in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_out_not_writable(driver: Run, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    code, _, err = driver("run", "--preset", "tiny", "--out", tmp_path / "receipts")
    assert code == 2
    assert "cannot be written" in err


def test_no_browser_at_all(
    driver: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Path
) -> None:
    """Nothing found and nothing could be installed: code 3, and the command for the person."""

    def nothing(explicit: str | None, say: Callable[[str], None]) -> None:
        raise BrowserMissing("no browser; run: apt-get install chromium")

    monkeypatch.setattr(cli.frame, "setup_browser", nothing)
    for command in (
        ["run", "--preset", "tiny", "--out", tmp_path],
        ["replay", case, "--arm", "wasm", "--out", tmp_path / "r"],
        ["setup"],
    ):
        code, _, err = driver(*command)
        assert code == 3
        assert "apt-get install chromium" in err


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize("kind", ["missing", "no program", "does not start", "cannot be driven"])
def test_a_browser_that_is_not_there(
    driver: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by_environment: bool
) -> None:
    """Code 3; and the doctor's table has it as a gap beside everything else, with what to do."""
    path = tmp_path / ("firefox" if kind == "cannot be driven" else "browser")
    if kind != "missing":
        path.write_text("#!/bin/sh\nexit 0\n")
        path.chmod(0o644 if kind == "no program" else 0o755)
    given = [] if by_environment else ["--browser", path]
    if by_environment:
        monkeypatch.setenv("DRIVER_BROWSER", str(path))
    code, out, _ = driver("doctor", "--json", *given)
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert code == 3
    assert checks["browser"]["status"] == "missing"
    assert str(path) in checks["browser"]["value"] or "Playwright" in checks["browser"]["value"]
    assert checks["browser"]["remedy"]
    assert checks["python"]["status"] == "ok"
    code, _, err = driver("geometry", "--preset", "tiny", *given)
    assert code == (2 if kind == "cannot be driven" else 3)
    assert str(path) in err


def test_the_table_of_a_machine_without_its_browser(driver: Run) -> None:
    code, out, err = driver("doctor", "--browser", "/nope")
    assert code == 3
    assert err == ""
    assert "'/nope' (from --browser) does not exist" in out
    assert "→ Give the path of a Chromium" in out
    assert "Not ready: without browser no arm runs" in " ".join(out.split())


def test_null_has_nothing_to_replay(driver: Run, case: Path, tmp_path: Path) -> None:
    code, _, err = driver("replay", case, "--arm", "null", "--out", tmp_path / "r")
    assert code == 2
    assert "does not train" in err


@pytest.mark.parametrize("steps", [0, -1, 4])
def test_replay_steps_out_of_range(driver: Run, case: Path, tmp_path: Path, steps: int) -> None:
    code, _, err = driver(
        "replay", case, "--arm", "numpy", "--out", tmp_path / "r", "--steps", steps
    )
    assert code == 2
    assert "3 steps" in err


def test_replay_out_in_missing_folder(driver: Run, case: Path, tmp_path: Path) -> None:
    code, _, err = driver("replay", case, "--arm", "numpy", "--out", tmp_path / "a" / "r")
    assert code == 2
    assert "there is no folder" in err


def test_replay_numpy(driver: Run, case: Path, tmp_path: Path) -> None:
    code, out, _ = driver("replay", case, "--arm", "numpy", "--out", tmp_path / "r", "--steps", 2)
    assert code == 0
    assert out.startswith("2 steps")
    assert (tmp_path / "r").is_file()


def without_browser(receipt: Path, db: Path) -> dict[str, list[object]]:
    """Command → arguments, for every one that prints JSON and needs no browser."""
    return {
        "--version": [],
        "presets": [],
        "arms": [],
        "build": [],
        "doctor": [],  # with nothing found, as the test has it
        "verify": [receipt],
        "compare": [receipt, receipt],
        "history add": [receipt, "--db", db],
        "history list": ["--db", db],
        "history query": ["SELECT 1 AS one", "--db", db],
        "history compare": [receipt, "--db", db],
    }


# In a real run: tests of these names, and test_run.py, look at their JSON.
IN_A_BROWSER = {"run", "kernels", "geometry", "ladder", "reproduce", "calibrate"}


def test_json_is_only_json(
    driver: Run, receipt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.machine, "find_browser", lambda _: None)
    monkeypatch.setenv("DRIVER_DATA", str(tmp_path / "data"))
    commands = without_browser(receipt, tmp_path / "history.duckdb")
    for command, arguments in commands.items():
        _, out, err = driver(*command.split(), *arguments, "--json")
        assert json.loads(out), (command, err)
        assert out.lstrip().startswith(("{", "["))
    groups = (("", cli.app), ("history ", cli.history.app))
    have = {
        prefix + str(found.name or "")
        for prefix, group in groups
        for found in group.registered_commands
        if found.callback and "as_json" in inspect.signature(found.callback).parameters
    }
    assert have | {"--version"} == set(commands) | IN_A_BROWSER


@pytest.mark.parametrize("of", ["receipt", "kernels", "ladder"])
def test_schema(driver: Run, of: str) -> None:
    code, out, _ = driver("schema", of)
    assert code == 0
    assert json.loads(out)["properties"]["format"]["const"] == f"driver-{of}/1"
    assert driver("schema")[1] == driver("schema", "receipt")[1]


def test_every_command_has_an_example(driver: Run) -> None:
    _, out, _ = driver("--help")
    names = [command.name or command.callback.__name__ for command in cli.app.registered_commands]
    assert len(names) >= 10
    for name in names:
        assert name in out
        code, text, _ = driver(name, "--help")
        assert code == 0
        assert f"Example: driver {name}" in text


def commands_of(app: Any, *before: str) -> dict[tuple[str, ...], Any]:
    """Every command of a group and of the groups in it, by its words."""
    found: dict[tuple[str, ...], Any] = {before: app}
    for info in app.registered_commands:
        found[(*before, info.name or info.callback.__name__)] = info.callback
    for group in app.registered_groups:
        found |= commands_of(group.typer_instance, *before, group.name)
    return found


@pytest.mark.parametrize("columns", [50, 80, 120])
@pytest.mark.parametrize("words", commands_of(cli.app), ids=" ".join)
def test_help_fits_the_terminal(
    driver: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int
) -> None:
    """Whole words, and no type where an option takes no value."""
    monkeypatch.setenv("COLUMNS", str(columns))
    code, text, _ = driver(*words, "--help")
    assert code == 0
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text and "bool" not in text
    command = commands_of(cli.app)[words]
    said = command.info.help if isinstance(command, cli.frame.App) else command.__doc__
    for word in (said or "").split():
        assert word in text or "-" in word  # may be broken there


def parameters() -> dict[str, tuple[list[str], Any]]:
    """Every option and argument that takes a value, of every command."""
    found = {}

    def look(command: Any, *words: str) -> None:
        for name, one in getattr(command, "commands", {}).items():
            look(one, *words, name)
        for param in command.params:
            if not getattr(param, "is_flag", False):
                found[" ".join([*words, param.name])] = ([*words], param)

    look(typer.main.get_command(cli.app))
    return {name: one for name, one in found.items() if "completion" not in name}


@pytest.mark.parametrize("name", parameters())
def test_an_empty_value_is_refused_by_name(driver: Run, name: str) -> None:
    """Else a path becomes the folder `.`, and a list of names all of them."""
    words, param = parameters()[name]
    for value in ("", " "):
        given = [value] if param.param_type_name == "argument" else [param.opts[0], value]
        code, out, err = driver(*words, *given)
        assert code == 2
        said = " ".join((out + err).replace("│", "").split())
        assert "an empty value" in said
        assert (param.metavar if param.param_type_name == "argument" else param.opts[0]) in said


def not_a_receipt(sealed: dict[str, Any]) -> dict[str, str]:
    """What a file holds that is JSON and no receipt → what has to be said of it."""
    changed = sealed | {"x": 1}
    lists = sealed | {"plan": [], "slots": {}}
    return {
        "null": "a receipt is a JSON object, this is null",
        "[1]": "a receipt is a JSON object, this is a list",
        '"x"': "a receipt is a JSON object, this is text",
        json.dumps(changed): "x is no key that is known here",
        json.dumps(lists): "plan should be an object with keys; slots should be a list",
    }


@pytest.mark.parametrize("number", range(5))
def test_a_file_that_is_no_receipt_is_named_in_words(
    driver: Run, tmp_path: Path, number: int
) -> None:
    """Whatever reads it: the file, and neither Python's words nor Pydantic's."""
    text, said = [*not_a_receipt(receipts.parts().sealed()).items()][number]
    path = tmp_path / "wrong.receipt.json"
    path.write_text(text)
    for words in (
        ["verify", path],
        ["report", path],
        ["compare", path, path],
        ["history", "add", path, "--db", tmp_path / "h.duckdb"],
        ["history", "compare", path, "--db", tmp_path / "h.duckdb"],
        ["reproduce", path],
        ["run", "--preset", "tiny", "--pin", path],
    ):
        code, out, err = driver(*words)
        assert code in (1, 2)
        assert "wrong.receipt.json" in out + err, words
        assert said in " ".join((out + err).split()), words


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_regular_file_is_not_read(
    driver: Run, receipt: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that read it would wait for ever."""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(name)
        if kind == "pipe":
            os.mkfifo("x")
        else:
            listening.bind("x")
        for words in (
            ["verify", "x"],
            ["report", "x"],
            ["compare", receipt, "x"],
            ["reproduce", "x"],
            ["history", "add", "x"],
            ["history", "list", "--db", "x"],
            ["history", "compare", "x"],
            ["history", "compare", receipt, "--baseline", "x", "--db", "x"],
            ["replay", "x", "--arm", "numpy", "--out", "y"],
            ["replay", "tiny", "--arm", "numpy", "--out", "y", "--corpus", "x"],
            ["run", "--preset", "tiny", "--pin", "x"],
            ["run", "--preset", "./x"],
            ["run", "--preset", "tiny", "--corpus", "x"],
            ["geometry", "--preset", "./x"],
        ):
            code, out, err = driver(*words)
            assert code == 2, words
            assert "not a regular file" in out + err or "not a file" in out + err, (words, err)


def test_paragraphs_of_help_flow(driver: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lines end where the terminal's do, not where the source's do."""
    monkeypatch.setenv("COLUMNS", "120")
    _, text, _ = driver("history", "add", "--help")
    assert "from the raw data. What is no receipt is named and left out (code 2), what" in text


def test_version(driver: Run) -> None:
    code, out, _ = driver("--version")
    assert code == 0
    assert out.startswith("driver 0.")
    _, printed, _ = driver("--version", "--json")
    found = json.loads(printed)
    revision, dirty = layout.revision()
    assert found["driver"] == __version__
    assert found["source_revision"] == revision
    assert found["source_dirty"] is dirty
    for key in ("compiler", "python", "numpy", "playwright"):
        assert re.match(r"\d+\.\d+", found[key])
        assert found[key] in out
    assert (revision or "not known") in out


def test_version_of_an_installed_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit that pip recorded, and nothing where there is none or another thing stands."""
    monkeypatch.setattr(layout, "revision", lambda: (None, None))

    class Recorded:
        version = "1.0"

        def __init__(self, text: str | None) -> None:
            self.text = text

        def read_text(self, _: str) -> str | None:
            return self.text

    commit = "0123456789abcdef0123456789abcdef01234567"
    wheel = {"url": "https://example.org/driver.whl", "archive_info": {}}
    git = {"url": "https://example.org", "vcs_info": {"vcs": "git", "commit_id": commit}}
    evil = {"vcs_info": {"commit_id": "\x1b[2J"}}
    for record, expected in ((git, commit), (wheel, None), (evil, None), ("x", None), (None, None)):
        text = json.dumps(record) if record else None
        monkeypatch.setattr(metadata, "distribution", lambda _, text=text: Recorded(text))
        found = versions.versions()
        assert found.source_revision == expected
        assert (expected or "not known") in versions.text(found)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert versions.versions().compiler is None
    assert "compiler    not installed" in versions.text(versions.versions())


def test_json_before_a_command(driver: Run) -> None:
    code, _, err = driver("--json", "presets")
    assert code == 2
    assert "driver presets --json" in err


# What is typed and, after TAB, offered.
OFFERED = {
    "driver run --preset ti": ["tiny"],
    "driver run --preset tiny,sm": ["tiny,small"],
    "driver run --preset none": [],
    "driver run --arms wasm,we": ["wasm,webgpu"],
    "driver replay --arm nu": ["null", "numpy"],
    "driver ladder --preset behe": ["behemoth"],
    "driver ladder --axis th": ["threads"],
    "driver kernels --op layern": ["layernorm"],
    "driver calibrate --arm wasm": ["wasm", "wasm64"],
    "driver cali": ["calibrate"],
}
COMPLETING = """
import contextlib, io, json, os, sys
from driver import cli
os.environ["_DRIVER_COMPLETE"] = "complete_bash"
answers = {}
for words in json.loads(sys.argv[1]):
    sys.argv = ["driver"]
    os.environ |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        cli.main()
    answers[words] = out.getvalue().split()
print(json.dumps(answers))
"""


def test_completion() -> None:
    """As bash asks for it."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLETING, json.dumps([*OFFERED])],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == OFFERED


def test_completion_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in ("mine/a.toml", "mine/b.txt", "top.toml"):
        (tmp_path / name).write_text("")
    assert complete.preset_names("./") == ["./mine/", "./top.toml"]
    assert complete.preset_names("mine/") == ["mine/a.toml"]
    assert complete.preset_names(f"{tmp_path}/t") == [f"{tmp_path}/top.toml"]
    assert complete.preset_names("none/x") == []


@pytest.mark.parametrize(
    ("count", "code", "expected"),
    [(4096, 2, "expected 1 to 256 (this machine has"), (256, 3, "usable cores")],
)
@pytest.mark.parametrize("command", [["run", "--preset", "tiny", "--arms"], ["kernels", "--arm"]])
def test_absurd_numbers_of_threads(
    driver: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    command: list[str], count: int, code: int, expected: str,
) -> None:  # fmt: skip
    """Refused with the number of cores, before a browser is looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.frame, "setup_browser", None)
    monkeypatch.setattr(cli.frame.machine, "usable_cores", lambda: 3)
    arm = f"wasm:threads={count}"
    found, _, err = driver(*command, f"{arm},{arm}" if command[0] == "run" else arm)
    assert found == code
    assert expected in err
    assert f"threads={count}" in err
    assert code == 2 or "3 usable cores" in err


def test_more_threads_than_cores_may_be_asked_for() -> None:
    for cores, count in ((1, 16), (2, 16), (8, 32), (128, 256)):
        threads.check_count(parse_arm(f"wasm:threads={count}"), cores)
    threads.check_count(parse_arm("wasm"), 1)
    threads.check_count(parse_arm("webgpu"), 1)
    with pytest.raises(Unsupported, match="threads=33, and this machine has 8 usable"):
        threads.check_count(parse_arm("wasm64:threads=33"), 8)


@pytest.mark.parametrize("columns", [40, 120])
def test_reports_keep_to_the_width(receipt: Path, columns: int) -> None:
    """That of the terminal, or COLUMNS where stdout is none; colours unless NO_COLOR says no."""
    words = ["-m", "driver", "report", receipt]
    with Terminal(words, columns) as terminal:
        assert terminal.end() == 0
        assert terminal.screen.colours
        assert not terminal.screen.wrapped
    with Terminal(words, columns, {"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.output
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | {"COLUMNS": str(columns)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert done.stdout.strip().splitlines() == terminal.screen.text.strip().splitlines()


def test_an_encoding_without_our_signs(receipt: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "driver", "report", receipt],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout


def test_only_what_draws_imports_matplotlib(receipt: Path) -> None:
    """A third of a second of every command otherwise; scipy's parts the same."""
    script = (
        "import sys; from driver import cli, report; from driver.receipt import parse\n"
        "slow = ('matplotlib', 'scipy.stats', 'scipy.optimize', 'scipy.special')\n"
        "print([name for name in slow if name in sys.modules])\n"
        "import json; report.html(parse(json.load(open(sys.argv[1]))))\n"
        "print('matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, receipt], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "True"]


def test_a_module_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seldom_used.py").write_text("import sys\nsys.seldom = 1\nvalue = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = later("seldom_used")
    assert not hasattr(sys, "seldom")
    assert module.value == 3
    assert later("seldom_used") is module
    monkeypatch.delattr(sys, "seldom")
    monkeypatch.delitem(sys.modules, "seldom_used")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        later("no_such_module")


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    """A valid receipt."""
    path = tmp_path / "run.receipt.json"
    path.write_text(json.dumps(receipts.parts().sealed()))
    return path


def test_report_says_that_a_receipt_was_edited(driver: Run, receipt: Path) -> None:
    code, out, _ = driver("report", receipt)
    assert code == 0
    assert "INVALID" not in out
    receipt.write_text(receipt.read_text().replace('"qualified"', '"failed"'))
    code, out, _ = driver("report", receipt)
    assert code == 1
    assert out.startswith("INVALID receipt")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
@pytest.mark.parametrize("command", [["presets"], ["schema"], ["arms", "--json"]])
def test_stdout_that_cannot_be_written(command: list[str]) -> None:
    """A full device or a reader that left: a sentence or nothing, no traceback."""
    words = [sys.executable, "-m", "driver", *command]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "stdout cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


CLOSED = [combination for n in (1, 2, 3) for combination in itertools.combinations((0, 1, 2), n)]
CLOSING = """
import os, sys
for number in map(int, sys.argv[1].split(",")):
    os.close(number)
os.execv(sys.executable, [sys.executable, "-m", "driver", *sys.argv[2:]])
"""


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_streams_that_are_closed(receipt: Path, tmp_path: Path, closed: tuple[int, ...]) -> None:
    """They count as the null device: the code is the command's own, nothing lands elsewhere."""
    page = tmp_path / "page.html"
    drawing = [(["report", receipt, "--html", page], 0)] if len(closed) == 1 else []
    for words, code in (*drawing, (["verify", receipt], 0), (["verify", tmp_path / "none"], 2)):
        done = subprocess.run(
            [sys.executable, "-c", CLOSING, ",".join(map(str, closed)), *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
    if drawing:
        assert page.read_text().startswith("<!")
        assert page.read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize("also_stderr", [False, True])
@pytest.mark.parametrize("words", [["verify"], ["presets"], ["--help"], ["schema", "--help"]])
def test_a_reader_that_left(receipt: Path, words: list[str], also_stderr: bool) -> None:
    """Never code 1, which says that a receipt is invalid."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "driver", *words, *([receipt] if words == ["verify"] else [])],
        stdout=writing, stderr=writing if also_stderr else subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == 2
    assert not done.stderr


def test_targets_that_are_no_files(driver: Run, case: Path, receipt: Path, tmp_path: Path) -> None:
    """Before anything is computed; and what is there stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for target in (pipe, tmp_path):
        for command in (
            ["replay", case, "--arm", "numpy", "--out", target],
            ["report", receipt, "--svg", target],
        ):
            code, _, err = driver(*command)
            assert code == 2, err
    assert pipe.is_fifo()


def test_halves_that_an_adapter_lacks(driver: Run, case: Path, tmp_path: Path) -> None:
    target = tmp_path / "result.safetensors"
    code, _, err = driver("replay", case, "--arm", "webgpu:f16=compute", "--out", target)
    if code == 0:
        pytest.skip("this adapter has shader-f16")
    assert code == 3
    if "offers no WebGPU" in err:
        pytest.skip("no WebGPU here")
    assert "f16=compute needs the feature shader-f16, which this adapter lacks" in err
    assert not target.exists()


def test_a_cache_that_cannot_be_written(
    driver: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRIVER_CACHE", str(tmp_path / "file"))
    code, _, err = driver("run", "--preset", "tiny", "--out", tmp_path / "receipts")
    assert code == 3
    assert "DRIVER_CACHE" in err


@pytest.mark.parametrize(
    "words",
    [["--preset", "tiny,,small"], ["--preset", "tiny", "--tracking-url", "not a url"]],
)
def test_more_bad_usage(driver: Run, tmp_path: Path, words: list[str]) -> None:
    code, _, err = driver("run", *words, "--out", tmp_path)
    assert code == 2
    assert words[-1] in err


def test_interrupted_while_it_starts(tmp_path: Path) -> None:
    """Ctrl-C in an import that swallows every exception still ends it, with one line."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(1000): pass\n"
        "except BaseException:\n"
        "    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "driver", "presets"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "driver: interrupted\n")
