"""Commands as a person types them: exit codes, messages, what goes to stdout."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import receipts

from driver import cli
from driver.cases import Case, write_case
from driver.errors import BrowserMissing
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
    not_a_browser = tmp_path / "browser"
    not_a_browser.write_text("no")
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
        "bad budget": ([*run, "--budget", "soon"], "soon"),
        "bad require": ([*run, "--require", "luck"], "luck"),
        "out is a file": ([*run, "--out", str(file)], str(file)),
        "browser is no program": ([*run, "--browser", str(not_a_browser)], str(not_a_browser)),
        "browser missing": ([*run, "--browser", str(tmp_path / "none")], "none"),
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


@pytest.mark.parametrize("command", ["presets", "arms"])
def test_json_is_only_json(driver: Run, command: str) -> None:
    code, out, _ = driver(command, "--json")
    assert code == 0
    assert json.loads(out)


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


def test_version(driver: Run) -> None:
    code, out, _ = driver("--version")
    assert code == 0
    assert out.startswith("driver 0.")


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
