"""The workflows: pinned, with the least rights, and their steps run here as they stand."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from receipts import parts

from driver.browser import BrowserChoice
from driver.layout import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCRIPTS = [*sorted((GITHUB / "scripts").glob("*.sh")), ROOT / ".ci" / "run", ROOT / ".ci" / "setup"]
# Digests of releases, as many public repositories pin them.
PINS = {
    "actions/checkout": ("08c6903cd8c0fde910a37f88322edcfb5dd907a8", "v5.0.0"),
    "actions/setup-python": ("a26af69be951a213d495a4c3e4e4022e16d87065", "v5.6.0"),
    "actions/cache": ("0400d5f644dc74513175e3cd8d07132dd4860809", "v4.2.4"),
    "actions/cache/restore": ("0400d5f644dc74513175e3cd8d07132dd4860809", "v4.2.4"),
    "actions/upload-artifact": ("ea165f8d65b6e75b540449e92b4886f43607fa02", "v4.6.2"),
    "actions/download-artifact": ("d3f86a106a0bac45b974a628896c90dbdf5c8093", "v4.3.0"),
}

pytestmark = pytest.mark.skipif(not GITHUB.is_dir(), reason="installed from a wheel")


def name(path: Path) -> str:
    return path.name


def loaded(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def steps(workflow: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", ())


def test_all_workflows_are_looked_at() -> None:
    assert [path.stem for path in WORKFLOWS] == ["bench", "ci", "nightly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_actions_are_pinned_by_digest_with_the_version_beside_it(path: Path) -> None:
    for line in path.read_text().splitlines():
        if "uses:" not in line or "./.github/workflows/" in line:
            continue
        found = re.fullmatch(r"\s*(?:- )?uses: ([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
        assert found, line
        assert PINS[found[1]] == (found[2], found[3])


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_rights_are_the_least(path: Path) -> None:
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    # YAML 1.1 reads the key `on` as a truth value.
    triggers = workflow.get("on", workflow.get(True))
    assert set(triggers) <= {
        "push",
        "pull_request",
        "schedule",
        "workflow_dispatch",
        "workflow_call",
    }
    for job in workflow["jobs"].values():
        assert "permissions" not in job
        assert "secrets" not in job
        assert "uses" in job or job["timeout-minutes"] <= 60
    assert "secrets." not in path.read_text()
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # What a person can type into a branch's name or an input never becomes shell.
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_steps_run_what_is_in_this_repository(path: Path) -> None:
    for step in steps(loaded(path)):
        command = step.get("run", "").split(" ")[0]
        if command and command != "sudo":
            assert os.access(ROOT / command, os.X_OK), command


def test_what_is_called_takes_what_it_is_given() -> None:
    inputs = loaded(GITHUB / "workflows" / "bench.yml")[True]["workflow_call"]["inputs"]
    calls = 0
    for path in WORKFLOWS:
        for job in loaded(path)["jobs"].values():
            if job.get("uses") == "./.github/workflows/bench.yml":
                calls += 1
                given = set(job["with"])
                assert given <= set(inputs)
                assert {key for key, value in inputs.items() if value.get("required")} <= given
                runner = str(job["with"]["runner"])
                assert runner == "${{ toJSON(matrix.runner) }}" or json.loads(runner)
    assert calls == 3


def test_every_setting_of_the_bench_is_one_that_the_script_knows() -> None:
    script = (GITHUB / "scripts" / "bench.sh").read_text()
    job = loaded(GITHUB / "workflows" / "bench.yml")["jobs"]["bench"]
    for key in set(job["env"]) - {"DRIVER_BROWSER"}:
        assert f"{key}=${{{key}" in script, key


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_scripts_are_whole(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --------------------------------------------------------------------------- run here


Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs one of the scripts with these settings, and this driver in its PATH."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: there is no base")
    tools = tmp_path / "tools"
    tools.mkdir()
    shim = tools / "driver"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m driver "$@"\n')
    shim.chmod(0o755)

    def run(which: str, **settings: object) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "DRIVER_DATA": str(tmp_path / "data"),
        }
        environment.pop("GITHUB_STEP_SUMMARY", None)
        return subprocess.run(
            [GITHUB / "scripts" / which],
            env=environment | {key: str(value) for key, value in settings.items()},
            capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path,
        )  # fmt: skip

    return run


def test_a_night_on_one_machine_and_the_history_of_all(
    script: Script, preset: Path, browser: BrowserChoice, tmp_path: Path
) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "other.receipt.json").write_text(json.dumps(parts(blocks=1).sealed()))
    (earlier / "bad.receipt.json").write_text("{")
    out, summary = tmp_path / "bench", tmp_path / "summary.md"
    done = script("bench.sh", PRESET=preset, ARM="null:ms=1", BASE="", OUT=out, EARLIER=earlier,
                  NAME="here", BUDGET="60s", GITHUB_STEP_SUMMARY=summary,
                  DRIVER_BROWSER=browser.path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = summary.read_text()
    assert text.startswith("## here\n")
    assert "### Against earlier runs: no regression proved" in text
    assert "<html" in (out / "report.html").read_text()
    assert list(ElementTree.parse(out / "junit.xml").getroot().iter("testcase"))
    assert (out / "trend.svg").read_text().startswith("<?xml")

    # Two machines' artefacts, as they lie after a download.
    new = tmp_path / "new"
    for machine in ("bench-a", "bench-b"):
        (new / machine / "receipts").mkdir(parents=True)
        for receipt in (out / "receipts").glob("*.receipt.json"):
            (new / machine / "receipts" / receipt.name).write_bytes(receipt.read_bytes())
    joined = tmp_path / "joined"
    done = script("join.sh", EARLIER=earlier, NEW=new, OUT=joined)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in joined.iterdir()} == {
        "history.duckdb", "receipts.parquet", "summary.md", "trend.svg",
    }  # fmt: skip
    assert "2 receipts" in (joined / "summary.md").read_text()
    assert len(list(earlier.iterdir())) == 3


def test_a_run_that_fails_is_told_with_its_code(
    script: Script, preset: Path, browser: BrowserChoice, tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    settings = {"PRESET": preset, "BASE": "", "OUT": out, "DRIVER_BROWSER": browser.path}
    done = script("bench.sh", ARM="null:ms=1+crash_at=1", **settings)
    assert done.returncode == 4, done.stderr
    assert "failed" in (out / "summary.md").read_text()
    assert (out / "report.html").is_file()
    (out / "summary.md").unlink()
    done = script("bench.sh", ARM="nonsense", **settings)
    assert done.returncode == 2
    assert "no receipt, exit code 2" in (out / "summary.md").read_text()


def test_the_picture_of_the_terminal_is_of_a_real_run(
    preset: Path, browser: BrowserChoice, tmp_path: Path
) -> None:
    """The view in the middle of the run, and what it ended with; one file that fetches nothing."""
    words = ["--preset", preset, "--arms", "null:ms=20,null:ms=10"]
    done = subprocess.run(
        [sys.executable, GITHUB / "scripts" / "terminal_picture.py", "terminal.svg", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "DRIVER_BROWSER": browser.path},
        capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "receipts").glob("*.receipt.json")
    question = json.loads(kept.read_text())["plan"]["question"]
    picture = (tmp_path / "terminal.svg").read_text()
    for said in ("slot 4 of 4", "null ms=20", "A/B", question[:60], "unqualified"):
        assert said in shown(picture)
    assert "font-face" not in picture and "url(http" not in picture


def shown(picture: str) -> str:
    """The words of an SVG picture of a terminal."""
    return "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")


def test_pictures_that_the_readme_shows_are_there() -> None:
    names = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(names) >= 3
    for name in names:
        assert (ROOT / name).stat().st_size < 200_000, name
    assert "A/B" in shown((GITHUB / "terminal.svg").read_text())


@pytest.mark.slow
def test_a_change_against_its_base(
    script: Script, preset: Path, browser: BrowserChoice, tmp_path: Path
) -> None:
    """HEAD against the last revision whose sources were others, as a night runs it."""
    found = subprocess.run(
        ["git", "rev-list", "-2", "HEAD", "--", "wasm_src"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    if len(found) < 2:
        pytest.skip("the sources never changed")
    out = tmp_path / "bench"
    done = script("bench.sh", PRESET=preset, ARM="wasm:threads=1", BASE=found[1], OUT=out,
                  DRIVER_BROWSER=browser.path)  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    (receipt,) = (out / "receipts").glob("*.receipt.json")
    a, b = json.loads(receipt.read_text())["plan"]["arms"]
    assert (a["options"]["source"], "source" in b["options"]) == (found[1], False)
    assert "the same run" in (out / "compare.md").read_text()
