"""Whole runs in a real browser: the receipt, the exit code, what is left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ONE, WEBGPU
from terminals import Terminal

from driver import cli, jobs, machine, presets, report, store, workbench
from driver import plan as plan_module
from driver.browser import opening, session
from driver.errors import UsageError
from driver.jobs import JobMaker
from driver.layout import WEB
from driver.plan import evaluator
from driver.receipt import parse, verify
from driver.records import OthersCpu
from driver.server import JobServer, app

RunPreset = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def run(
    driver: Callable[..., tuple[int, str, str]],
    preset: Path,
    tmp_path: Path,
) -> RunPreset:
    """`driver run` in this process; gives the exit code, the receipts and what was printed.

    Every receipt that comes out has to verify, whatever its verdict, and its page lies beside it.
    """

    def go(*arguments: object, preset: object = preset) -> tuple[int, list[dict[str, Any]], str]:
        out = tmp_path / "receipts"
        code, printed, err = driver("run", "--preset", preset, "--out", out, *arguments)
        printed += err
        paths = sorted(out.glob("*.json"))
        found = [json.loads(path.read_text()) for path in paths]
        for path, receipt in zip(paths, found, strict=True):
            assert verify(receipt, evaluator()) == ([], [])
            assert path.with_suffix(".html").read_text() == report.html(parse(receipt))
        return code, found, printed

    return go


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No run leaves a browser or another child process."""
    yield
    deadline = time.monotonic() + 5
    while children := _browsers():
        assert time.monotonic() < deadline, children
        time.sleep(0.1)


def _browsers() -> list[str]:
    children = psutil.Process().children(recursive=True)
    return [c.name() for c in children if "chrom" in c.name() and c.status() != "zombie"]


def gates(receipt: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {gate["name"]: gate for gate in receipt["gates"]}


def test_wasm_against_wasm64(run: RunPreset) -> None:
    """Two arms that train: every numeric gate passes, and the receipt tells what ran."""
    code, (receipt,), printed = run(
        "--arms", f"wasm64:{ONE},wasm:threads=2+tile=4x8", "--blocks", 2
    )
    assert code == 0
    assert receipt["verdict"]["status"] == "unqualified"  # two blocks give no interval
    blocking = {n: g for n, g in gates(receipt).items() if g["gate_class"] == "blocking"}
    # So few steps do not tell whether it learned more than frequencies.
    assert {blocking.pop(f"beyond_unigrams.{side}")["status"] for side in "AB"} == {"unknown"}
    assert {g["status"] for g in blocking.values()} <= {"pass", "not-applicable"}, blocking
    for name in ("parity.grads", "parity.params", "curve.loss", "final.params", "repeat"):
        assert blocking[f"{name}.A"]["status"] == blocking[f"{name}.B"]["status"] == "pass"
    # 32- and 64-bit addresses, one thread and two, two tiles: the same bits.
    assert receipt["comparison"]["drift"]["loss"] == 0
    slots = receipt["slots"]
    assert [slot["side"] for slot in slots] in (list("ABBABAAB"), list("BAABABBA"))
    a = next(slot for slot in slots if slot["side"] == "A")
    assert a["ran"]["arm"] == "wasm64"
    assert a["ran"]["threads"] == 1
    assert a["memory"]["address_type"] == "i64"
    assert a["ran"]["plan_sha256"] == receipt["plan"]["sha256"]
    assert a["compile_ms"] > 0
    assert a["first_step_ms"] > 0
    assert len(a["sentinel_ms"]) == 5
    assert receipt["environment"]["page"]["cross_origin_isolated"] is True
    assert any(name.endswith(".wasm") for name in _artifacts(receipt))
    assert "unqualified" in printed
    assert "there will be no interval" in printed
    # Where a step's time goes is told where it is asked for.
    assert [arm["profile"] for arm in receipt["plan"]["arms"]] == [None, None]
    assert "profile" not in printed


def _artifacts(receipt: dict[str, Any]) -> list[str]:
    return [artifact["name"] for artifact in receipt["subject"]["artifacts"]]


def test_webgpu_on_a_software_adapter(run: RunPreset) -> None:
    """A software adapter is no error: everything numeric is checked, the verdict says so."""
    code, (receipt,), printed = run("--arms", "wasm:tile=6x8,webgpu", "--profile")
    if receipt["environment"]["adapter_verdict"] != "software":
        pytest.skip("this machine's adapter is not a software adapter")
    assert code == 0
    assert receipt["verdict"]["status"] == "unqualified"
    assert receipt["verdict"]["reasons"][0] == "software adapter"
    assert "unqualified: software adapter" in printed
    # Names and speed agree; the speed is told too.
    assert receipt["plan"]["arms"][1]["roofline"]["all_gflops"]
    assert receipt["environment"]["cpu_roofline"]["all_gflops"]
    assert "no more than a program on them" in receipt["environment"]["adapter_reasons"][-1]
    webgpu = next(slot for slot in receipt["slots"] if slot["side"] == "B")
    assert webgpu["ran"]["arm"] == "webgpu"
    assert webgpu["adapter"]
    variants = receipt["plan"]["arms"][1]["variants"]
    assert {trial["status"] for trial in variants} == {"ok"}
    assert {t["option"] for t in variants if t["chosen"]} == set(webgpu["ran"]["products"])
    assert "of it" in printed and "fastest product tried: " in printed
    for name in ("parity.grads.B", "parity.params.B", "curve.loss.B", "final.params.B"):
        assert gates(receipt)[name]["status"] == "pass"
    assert len(webgpu["sentinel_ms"]) == len(webgpu["gpu_sentinel_ms"]) == 5
    for arm in receipt["plan"]["arms"]:
        if arm["profile"] is None:
            assert arm["profile_reason"] == "this adapter has no timestamp-query"
            continue
        assert "adamw" in [op["op"] for op in arm["profile"]["ops"]]
        assert f"profile of {arm['side']} {arm['name']}" in printed


def test_without_shared_memory_and_simd(
    run: RunPreset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A page that is not isolated trains on one thread; the receipt and the report name it.

    Then another run takes the choices from that receipt and makes none.
    """
    left = {key: value for key, value in app._HEADERS.items() if "Cross-Origin" not in key}
    with monkeypatch.context() as patched:
        patched.setattr(app, "_HEADERS", left)
        code, (receipt,), printed = run("--arms", "wasm:simd=off,wasm64:tile=6x8")
    assert code == 0
    assert receipt["environment"]["page"]["cross_origin_isolated"] is False
    assert receipt["environment"]["threads"]["measured"] == []
    for slot in receipt["slots"]:
        assert (slot["ran"]["threads"], slot["ran"]["shared"]) == (1, "off")
        assert slot["memory"]["shared"] is False
    assert "ran without SIMD, 1 thread, 32-bit unshared memory" in printed
    assert "1 thread, 64-bit unshared memory" in printed
    assert any(name.endswith("-unshared.wasm") for name in _artifacts(receipt))

    (path,) = (tmp_path / "receipts").glob("*.json")
    earlier = path.rename(tmp_path / "earlier.receipt.json")
    monkeypatch.setattr(workbench, "kernel_op", None)  # whoever tunes would call it
    code, (pinned,), printed = run("--arms", "wasm64,wasm:simd=off", "--pin", earlier)
    assert code == 0
    a, b = pinned["plan"]["arms"]
    assert b["options"] == receipt["plan"]["arms"][0]["options"]
    assert a["options"] == receipt["plan"]["arms"][1]["options"]
    assert b["pinned"]["receipt_digest"] == receipt["digest"]
    assert b["pinned"]["side"] == "A"
    assert "simd" in a["pinned"]["options"]
    assert "simd" not in b["pinned"]["options"]
    assert pinned["environment"]["threads"] is None
    assert f"pinned from receipt {receipt['digest'][:12]} (A)" in printed


def test_require_hardware(run: RunPreset) -> None:
    """What is required and missing is said before the first slot, not after the last."""
    code, (receipt,), printed = run("--arms", f"null:ms=1,{WEBGPU}", "--require", "hardware")
    if receipt["environment"]["adapter_verdict"] == "hardware":
        pytest.skip("this machine has a hardware adapter")
    assert code == 1
    assert receipt["verdict"]["status"] == "failed"
    assert gates(receipt)["adapter"]["gate_class"] == "blocking"
    assert gates(receipt)["adapter"]["status"] == "fail"
    assert receipt["slots"] == []
    assert "failed: software adapter; errors failed: no slot ran" in printed


def test_no_webgpu(run: RunPreset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser without WebGPU: code 3 with the reason, and no receipt."""
    flags = tuple(f for f in opening.FLAGS if "webgpu" not in f)
    monkeypatch.setattr(opening, "FLAGS", (*flags, "--disable-features=WebGPU"))
    code, receipts, printed = run("--arms", "wasm,webgpu")
    if receipts:
        pytest.skip("this browser keeps its WebGPU")
    assert code == 3
    assert "no WebGPU" in printed


HOGS = """
import os, time
for _ in range(-(-os.cpu_count() // 4)):
    if not os.fork():  # its parent ends at once, so it is nobody's child that we know
        until = time.monotonic() + 120
        while time.monotonic() < until: pass
        os._exit(0)
"""


@pytest.fixture
def busy() -> Iterator[None]:
    """Processes on a quarter of the cores that are none of ours."""
    before = set(psutil.pids())
    subprocess.run([sys.executable, "-c", HOGS], check=True, timeout=30)
    hogs = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in before and HOGS in process.cmdline():
                hogs.append(process)
    assert hogs
    yield
    for hog in hogs:
        hog.kill()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that outlive their parent")
def test_a_machine_that_is_busy_during_the_run(
    run: RunPreset, busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the look before the run saw: here it saw nothing."""
    monkeypatch.setattr(machine, "others_cpu", lambda: OthersCpu(shares=(0.0,)))
    code, (receipt,), printed = run("--arms", "null:ms=200,null:ms=200", "--blocks", 1)
    assert code == 0
    assert all(0.1 < slot["others_cpu"] <= 1 for slot in receipt["slots"])
    quiet = gates(receipt)["quiet"]
    assert (quiet["status"], quiet["measured"] > 0.1) == ("fail", True)
    assert "in the median slot" in quiet["reason"]
    assert "of this machine's CPU time in slot 1: its block counts as suspect" in printed
    (block,) = receipt["comparison"]["blocks"]
    assert any("others used" in reason for reason in block["suspect"])


def test_null_arm_is_never_qualified(run: RunPreset) -> None:
    """Four blocks give an interval, whatever the machine makes of it; a fake is never qualified."""
    code, (receipt,), _ = run("--arms", "null:ms=4,null:ms=2", "--blocks", 4)
    assert code == 0
    assert receipt["verdict"]["status"] == "unqualified"
    assert gates(receipt)["arms"]["status"] == "fail"
    estimate = receipt["comparison"]["estimate"]
    assert 0 < estimate["low"] < estimate["ratio"] < estimate["high"]


@pytest.mark.slow
def test_auto_from_the_pilot_to_the_reproduction(
    run: RunPreset,
    driver: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The pilot's variance says how many blocks run; a reproduction has a pilot of its own."""
    monkeypatch.setattr(plan_module, "MOST_BLOCKS", 8)
    words = ("--arms", "null:ms=4,null:ms=2", "--blocks", "auto")
    code, (receipt,), printed = run(*words)
    assert code == 0
    assert "blocks auto: deviation" in printed
    asked = receipt["comparison"]["auto"]["blocks"]
    assert receipt["plan"]["auto"]["pilot"] == 6
    assert len(receipt["plan"]["order"]) == receipt["plan"]["auto"]["most"] == 8
    assert len(receipt["slots"]) == 4 * asked
    estimate = receipt["comparison"]["estimate"]
    assert estimate["blocks"] == asked
    assert estimate["degrees_of_freedom"] in (4, asked - 2)
    assert gates(receipt)["errors"]["status"] == gates(receipt)["blocks"]["status"] == "pass"

    (path,) = (tmp_path / "receipts").glob("*.json")
    _, printed, _ = driver("reproduce", path, "--out", tmp_path / "again", "--json")
    assert json.loads(printed)["receipt_digest"] == receipt["digest"]
    (again,) = (tmp_path / "again").glob("*.json")
    second = json.loads(again.read_text())
    assert verify(second, evaluator()) == ([], [])
    assert second["plan"]["auto"] == receipt["plan"]["auto"]
    assert len(second["slots"]) == 4 * second["comparison"]["auto"]["blocks"]


def test_nan(run: RunPreset) -> None:
    """A loss that becomes NaN is written as such, and fails the run although its times are fine."""
    code, (receipt,), _ = run("--arms", "null:ms=1,null:ms=1+nan_at=3")
    assert code == 1
    assert gates(receipt)["finite.B"]["status"] == "fail"
    assert gates(receipt)["finite.A"]["status"] == "pass"
    paths = {entry["path"] for entry in receipt["nonfinite"]}
    assert any("/losses/3" in path for path in paths)
    assert "No claim" in receipt["verdict"]["headline"]


@pytest.mark.parametrize("fault", ["crash_at", "hang_at"])
def test_a_slot_that_fails_ends_the_run(run: RunPreset, fault: str) -> None:
    """What was measured before is kept; nothing is tried again."""
    code, (receipt,), printed = run("--arms", f"null:ms=1,null:ms=1+{fault}=4", "--budget", "20s")
    assert code == 4
    assert receipt["verdict"]["status"] == "failed"
    slots = receipt["slots"]
    assert [slot["status"] for slot in slots].count("failed") == 1
    assert slots[-1]["status"] == "failed"
    assert slots[-1]["side"] == "B"
    assert slots[-1]["failure"]["message"]
    assert slots[-1]["losses"]  # those of the instructions that ended
    assert gates(receipt)["errors"]["status"] == "fail"
    assert ("programmed crash" if fault == "crash_at" else "no answer within") in printed


def test_parity_failure_stops_before_the_first_slot(
    run: RunPreset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arm that starts from other weights never gets to a timed loop."""
    offer = JobMaker.state

    def tampered(self: JobMaker, name: str, sections: Any, *more: Any, **named: Any) -> Any:
        changed = {what: flat.copy() for what, flat in sections.items()}
        changed["param"][0] += 0.05
        return offer(self, name, changed, *more, **named)

    monkeypatch.setattr(JobMaker, "state", tampered)
    code, (receipt,), printed = run("--arms", f"wasm:{ONE},wasm64:{ONE}")
    assert code == 1
    assert receipt["slots"] == []
    assert gates(receipt)["parity.grads.A"]["status"] == "fail"
    assert "parity.grads.A failed" in printed


@pytest.mark.parametrize("limit", ["reference", "reading"])
def test_a_model_that_is_too_large_for_the_reference(
    run: RunPreset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str
) -> None:
    """A forward pass alone is compared; what it cannot tell is unknown, with the reason.

    Sections that are too large are not read out either, and digests are made piece by piece."""
    if limit == "reference":
        monkeypatch.setattr(presets, "reference_bytes", lambda _: 1 << 50)
    else:
        monkeypatch.setattr(jobs, "READ_LIMIT_BYTES", 1 << 10)
        monkeypatch.setattr(jobs, "WHOLE_DIGEST_BYTES", 16 << 10)
        monkeypatch.setattr(jobs, "PIECE_BYTES", 4 << 10)
        web = tmp_path / "web"
        shutil.copytree(WEB, web)
        bench = (web / "bench.js").read_text()
        for constant, small in (("PIECE = 16 << 20", "PIECE = 1 << 10"),
                                ("HASH_LIMIT = 256 << 20", "HASH_LIMIT = 16 << 10")):  # fmt: skip
            assert bench.count(constant) == 1
            bench = bench.replace(constant, small)
        (web / "bench.js").write_text(bench)
        monkeypatch.setattr(session, "JobServer", lambda **given: JobServer(web, **given))
    code, (receipt,), printed = run("--arms", f"wasm64:tile=6x8,wasm64:{ONE}")
    assert code == 0
    assert receipt["verdict"]["status"] == "unqualified"
    words = {"reference": "the float64 reference needs about", "reading": "is not read out"}[limit]
    for name in ("parity.grads", "parity.params", "curve.loss", "final.params"):
        for side in "AB":
            gate = gates(receipt)[f"{name}.{side}"]
            assert gate["status"] == "unknown"
            assert words in gate["reason"]
    for name in ("parity.first_loss", "identity", "finite", "repeat"):
        assert gates(receipt)[f"{name}.A"]["status"] == "pass"
    assert gates(receipt)["parity.first_loss.B"]["measured"] < 1e-6
    export = gates(receipt)["parity.export.A"]["status"]
    assert export == ("pass" if limit == "reference" else "unknown")
    assert receipt["reference"]["losses"] == []
    assert receipt["reference"]["first_loss"] > 0
    assert words in receipt["reference"]["reason"]
    shas = {(slot["side"], slot["param_sha256"]) for slot in receipt["slots"]}
    assert len(shas) == 2
    reasons = {slot["param_reason"] for slot in receipt["slots"]}
    assert (reasons == {None}) == (limit == "reference")
    if limit == "reading":
        assert "state_pieces_sha256" in receipt["slots"][0]["ran"]
    assert "unknown" in printed


def test_a_machine_with_too_little_memory(run: RunPreset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is drawn or started, with the numbers."""
    state = machine.machine_state().model_copy(update={"memory_available_bytes": 8 * 2**30})
    monkeypatch.setattr(machine, "machine_state", lambda: state)
    code, receipts, printed = run("--arms", "wasm64,wasm64", preset="behemoth")
    assert code == 2
    assert receipts == []
    assert "11.28 GiB, but this machine has 8.00 GiB" in printed


@pytest.mark.slow
def test_behemoth(run: RunPreset) -> None:
    """8.5 GiB in one memory: two steps a slot, the first loss that of the reference."""
    if psutil.virtual_memory().available < presets.run_bytes(presets.load("behemoth")):
        pytest.skip("this machine has less than 11.3 GiB of memory to spare")
    code, (receipt,), _ = run("--arms", "wasm64,wasm64", preset="behemoth")
    assert code == 0
    for side in "AB":
        for name in ("parity.first_loss", "identity", "finite", "repeat"):
            assert gates(receipt)[f"{name}.{side}"]["status"] == "pass"
        assert gates(receipt)[f"parity.grads.{side}"]["status"] == "unknown"
    for slot in receipt["slots"]:
        assert len(slot["losses"]) == 2
        memory = slot["memory"]
        assert memory["address_type"] == "i64"
        assert memory["growths"] == 0
        assert 7.05 * 2**30 < memory["final_bytes"] < 9 * 2**30
        assert memory["sections_at"]["v"] > 4 * 2**30


@pytest.mark.parametrize(
    ("arms", "budget", "why"),
    [
        (f"wasm:{ONE},wasm64:{ONE}", "1s", "is used up "),
        ("null:ms=60000,null:ms=60000", "90s", "is too short for preset mini here"),
    ],
)
def test_budget_too_short(run: RunPreset, arms: str, budget: str, why: str) -> None:
    """Beforehand, with the time that it takes; as soon as it is known."""
    code, receipts, printed = run("--arms", arms, "--budget", budget)
    assert code == 2
    assert receipts == []
    assert why in printed
    assert "Use --budget" in printed


def test_several_presets(run: RunPreset, preset: Path, tmp_path: Path) -> None:
    """One receipt each, and a curve; a preset that cannot run leaves a blank."""
    wider = tmp_path / "wider.toml"
    wider.write_text(preset.read_text().replace('"mini"', '"wider"').replace("= 64", "= 96"))
    words = ("--arms", "null:ms=2,null:ms=1")
    code, receipts, printed = run(*words, preset=f"{preset},{wider}")
    assert code == 0
    assert {receipt["plan"]["preset"]["name"] for receipt in receipts} == {"mini", "wider"}
    curve = printed[printed.index("over presets") :]
    assert "mini" in curve
    assert "wider" in curve


def test_json_is_only_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    preset: Path,
    tmp_path: Path,
) -> None:
    words = ["driver", "run", "--preset", preset, "--arms", "null:ms=1,null:ms=1", "--json"]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out)["format"] == "driver-receipt/1"


def test_a_corpus_of_ones_own(run: RunPreset, shakespeare: Path) -> None:
    code, (receipt,), _ = run("--arms", f"wasm:{ONE},wasm:{ONE}", "--corpus", shakespeare)
    assert code == 0
    assert receipt["plan"]["corpus"]["size_bytes"] == shakespeare.stat().st_size
    assert receipt["plan"]["corpus"]["entropy_nats_per_byte"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(preset: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C leaves a readable receipt of what is there, no process, and code 130."""
    out = tmp_path / "receipts"
    command = [
        sys.executable, "-m", "driver", "run", "--preset", preset, "--arms",
        "null:ms=60,null:ms=60", "--out", out,
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("slot 2"):
                break
        time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        rest = process.stderr.read()
        assert process.wait(30) == 130, "".join(seen) + rest
    assert "interrupted" in rest
    assert "Traceback" not in rest
    _, alive = psutil.wait_procs(children, 5)
    assert not alive
    (path,) = out.glob("*.json")
    receipt = json.loads(path.read_text())
    assert verify(receipt, evaluator()) == ([], [])
    assert receipt["verdict"]["status"] == "failed"
    assert len(receipt["slots"]) == 1


def on_a_terminal(preset: Path, *words: object) -> list[object]:
    """A command whose slots last long enough to be seen."""
    return ["-m", "driver", "run", "--preset", preset, "--arms", "null:ms=300,null:ms=200", *words]


def test_json_on_a_terminal(preset: Path, tmp_path: Path) -> None:
    """The live view is on the terminal, stdout is a file: neither has anything of the other."""
    target = tmp_path / "printed"
    words = on_a_terminal(preset, "--json", "--out", tmp_path / "receipts")
    with Terminal(words, 100, stdout=target) as terminal:
        screen = terminal.until(lambda screen: "A/B" in screen.text)
        assert "block 1 of 1" in screen.text or "priming" in screen.text
        assert "null ms=300" in screen.text
        assert "raw: no interval, no claim before the end" in screen.text
        assert terminal.end() == 0
        assert terminal.sane
        assert "A/B" not in terminal.screen.text
        assert "{" not in terminal.screen.text
    assert json.loads(target.read_text())["format"] == "driver-receipt/1"


def test_ctrl_c_on_a_terminal(preset: Path, tmp_path: Path) -> None:
    """As a person types it; afterwards the terminal is as it was, and says where the receipt is."""
    with Terminal(on_a_terminal(preset, "--out", tmp_path), 40, echo=True) as terminal:
        terminal.until(lambda screen: "slot 2/4" in screen.text)
        terminal.type(b"\x03")
        assert terminal.end() == 130
        assert terminal.sane
        text = terminal.screen.text
        assert "interrupted; what was measured is in" in text
        assert "Traceback" not in text
        assert "slot 2" not in text


def test_a_budget_that_ends_in_the_preparation(run: RunPreset) -> None:
    """An arm too slow for the budget is no crash: the answer says how long the run needs."""
    words = ("--arms", "webgpu:matmul=naive,wasm", "--budget", "8s")
    code, receipts, printed = run(*words, preset="small")
    if receipts:
        pytest.skip("this machine's adapter is too fast for the test")
    assert code == 2, printed
    assert "Use --budget" in printed


def test_a_full_disk_loses_nothing(
    run: RunPreset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The receipt goes to the folder for temporary files instead, and the run says so."""
    write = store.write_json

    def full(path: Path, data: Any) -> None:
        if "receipts" in path.parts:
            raise UsageError(f"{path}: cannot be written (No space left on device)")
        write(path, data)

    monkeypatch.setattr(store, "write_json", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, receipts, printed = run("--arms", "null:ms=1,null:ms=1")
    assert (code, receipts) == (0, [])
    assert "No space left" in printed
    (spare,) = tmp_path.glob("*.receipt.json")
    assert verify(json.loads(spare.read_text()), evaluator()) == ([], [])
