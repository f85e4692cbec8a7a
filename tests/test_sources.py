"""`source=REV|DIR`: arms of another revision or folder, measured against this one."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from conftest import ONE

from driver import layout, sources
from driver.arms import parse_arm
from driver.errors import ArmError, BuildError, LackError
from driver.jobs import wasm_digest
from driver.records import ArmJob
from driver.server import JobServer

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project's kernels and page."""
    folder = tmp_path / "copy"
    for name in sources.FOLDERS:
        shutil.copytree(layout.ROOT / name, folder / name)
    return folder


def git(folder: Path, *arguments: str) -> str:
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy as a repository with one commit, in the place of the project's own."""
    git(copy, "init", "-q")
    git(copy, "add", ".")
    git(copy, "commit", "-qm", "all")
    monkeypatch.setattr(layout, "ROOT", copy)
    return copy


def source_of(arm: str) -> str:
    return str(sources.located(parse_arm(arm)).options["source"])


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


# --------------------------------------------------------------------------- naming


@pytest.mark.usefixtures("cache")
def test_a_folder_is_named_by_its_digest(copy: Path) -> None:
    name = source_of(f"wasm:source={copy}")
    assert name.startswith("sha256-")
    assert source_of(f"wasm64:threads=1+source={copy}") == name
    assert source_of(f"wasm:source={name}") == name  # as a receipt has it
    kept = sources.folder_of(name)
    assert (kept / "wasm_src" / "gpt.c").read_bytes() == (copy / "wasm_src/gpt.c").read_bytes()
    (copy / "wasm_src" / "gpt.c").write_text("// another")
    assert source_of(f"wasm:source={copy}") != name
    assert (kept / "wasm_src" / "gpt.c").read_bytes() != b"// another"
    (copy / "notes.txt").write_text("not a part of an arm")


@pytest.mark.usefixtures("cache")
def test_a_damaged_copy_in_the_cache_is_put_anew(copy: Path) -> None:
    name = source_of(f"wasm:source={copy}")
    file = sources.folder_of(name) / "wasm_src" / "gelu.c"
    file.write_text("// damaged")
    with pytest.raises(ArmError, match="not in this machine's cache"):
        source_of(f"wasm:source={name}")
    assert source_of(f"wasm:source={copy}") == name
    assert file.read_bytes() == (copy / "wasm_src" / "gelu.c").read_bytes()


@pytest.mark.usefixtures("cache")
def test_a_revision_is_named_in_full(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD").strip()
    (repository / "wasm_src" / "gpt.c").write_text("// not committed")
    assert {source_of(f"wasm:source={name}") for name in ("HEAD", head[:8], head)} == {head}
    assert b"not committed" not in (sources.folder_of(head) / "wasm_src/gpt.c").read_bytes()
    assert f"+source={head}+" in sources.located(parse_arm("webgpu:source=HEAD")).canonical


@pytest.mark.usefixtures("cache", "repository")
@pytest.mark.parametrize("text", ["nope", "--all", "HEAD~99", "HEAD:wasm_src", "x" * 5000])
def test_neither_folder_nor_revision(text: str) -> None:
    with pytest.raises(ArmError, match="neither a folder nor a revision"):
        source_of(f"wasm:source={text}")


@pytest.mark.usefixtures("cache")
def test_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "ROOT", tmp_path)
    with pytest.raises(LackError, match=r"not a git checkout .* name a folder"):
        source_of("wasm:source=HEAD")


@pytest.mark.usefixtures("cache")
def test_folders_without_what_an_arm_needs(copy: Path) -> None:
    shutil.rmtree(copy / "wasm_src")
    with pytest.raises(ArmError, match=r"has no wasm_src/gpt\.h"):
        source_of(f"wasm:source={copy}")
    source_of(f"webgpu:source={copy}")
    shutil.rmtree(copy / "webgpu_src")
    with pytest.raises(ArmError, match=r"has no webgpu_src/\*\.wgsl"):
        source_of(f"webgpu:source={copy}")


def test_arms_without_sources() -> None:
    with pytest.raises(ArmError, match="unknown option 'source'"):
        parse_arm("null:source=HEAD")
    assert "source" not in parse_arm("wasm").canonical


@pytest.mark.usefixtures("cache")
def test_a_source_that_does_not_compile_is_named(copy: Path) -> None:
    replace_in(copy / "wasm_src" / "layernorm.c", "#define EPS 1e-5", "#define EPS nonsense")
    spec = sources.located(parse_arm("wasm:simd=simd128+source=" + str(copy)))
    arm = ArmJob(name="wasm", module=spec.module, options=spec.options)
    with pytest.raises(
        BuildError, match=rf"wasm_src/layernorm\.c[\s\S]*source={spec.options['source']}"
    ):
        wasm_digest(arm)


# --------------------------------------------------------------------------- serving


@pytest.mark.usefixtures("cache")
async def test_only_what_an_arm_reaches_is_served(copy: Path) -> None:
    name = source_of(f"wasm:source={copy}")
    files = sources.modules_of(name, "arm_wasm.js")
    assert {"arm_wasm.js", "pool.js", "errors.js", "arm_wasm_memory.js"} <= set(files)
    assert not {"main.js", "bench.js", "arm_webgpu.js"} & set(files)
    async with JobServer() as server, aiohttp.ClientSession() as client:
        server.put_modules(name, files)
        for path, status in {
            f"source/{name}/arm_wasm.js": 200,
            f"source/{name}/bench.js": 404,
            f"source/{name}/%2e%2e%2fwasm_src%2fgpt.c": 404,
            f"source/{'0' * 40}/arm_wasm.js": 404,
        }.items():
            async with client.get(server.base_url + path) as response:
                assert response.status == status, path


# --------------------------------------------------------------------------- running


def run(driver: Run, preset: Path, tmp_path: Path, arms: str) -> tuple[int, dict[str, Any], str]:
    """One short run; gives exit code, receipt and the words on stderr."""
    code, out, err = driver(
        "run", "--preset", preset, "--arms", arms, "--blocks", 1, "--budget", "600s", "--json",
        "--out", tmp_path / "receipts",
    )  # fmt: skip
    return code, json.loads(out) if out else {}, err


def digests(receipt: dict[str, Any]) -> list[str]:
    """What each arm's module was, as it must say itself."""
    return [arm["expected"]["module_sha256"] for arm in receipt["plan"]["arms"]]


def test_head_is_the_same_arm(
    driver: Run, preset: Path, tmp_path: Path, repository: Path, browser: object
) -> None:
    code, receipt, err = run(driver, preset, tmp_path, f"wasm:{ONE}+source=HEAD,wasm:{ONE}")
    assert code == 0, err
    head = git(repository, "rev-parse", "HEAD").strip()
    a, b = receipt["plan"]["arms"]
    assert f"source={head}" in a["canonical"]
    assert {**a["options"], "source": None} == {**b["options"], "source": None}
    assert len(set(digests(receipt))) == 1
    # How many steps a window has is each arm's own affair, and depends on the machine.
    common = min(len(slot["losses"]) for slot in receipt["slots"])
    assert len({tuple(slot["losses"][:common]) for slot in receipt["slots"]}) == 1
    artifacts = {found["name"]: found["sha256"] for found in receipt["subject"]["artifacts"]}
    assert artifacts[f"{head}/web/arm_wasm.js"] == artifacts["web/arm_wasm.js"]
    module = next(name for name in artifacts if name.startswith("gpt-"))
    assert artifacts[f"{head}/{module}"] == artifacts[module]


def test_a_changed_constant_is_caught(
    driver: Run, preset: Path, tmp_path: Path, copy: Path, browser: object
) -> None:
    """The other source is really what runs: its numbers are wrong, and its digest another."""
    replace_in(copy / "wasm_src" / "layernorm.c", "#define EPS 1e-5", "#define EPS 1e-2")
    code, receipt, err = run(driver, preset, tmp_path, f"wasm:{ONE}+source={copy},wasm:{ONE}")
    assert code == 1, err
    assert len(set(digests(receipt))) == 2
    failed = {gate["name"] for gate in receipt["gates"] if gate["status"] == "fail"}
    assert any(name.startswith("parity.") and name.endswith(".A") for name in failed), failed
    assert not any(name.endswith(".B") for name in failed), failed
    assert str(copy) not in json.dumps(receipt)


def test_a_page_module_that_lacks_something(
    driver: Run, preset: Path, tmp_path: Path, copy: Path, browser: object
) -> None:
    replace_in(copy / "web" / "arm_wasm.js", "    workbench: workbench(", "    older: workbench(")
    code, _, err = run(driver, preset, tmp_path, f"wasm:threads=1+source={copy},wasm")
    assert code in (3, 4)
    assert "no kernels to run apart" in err


def test_another_version_of_the_interface(
    driver: Run, preset: Path, tmp_path: Path, copy: Path, browser: object
) -> None:
    module = copy / "web" / "arm_wasm.js"
    module.write_text(module.read_text() + "export const ARM_INTERFACE = 99;\n")
    code, _, err = run(driver, preset, tmp_path, f"wasm:{ONE}+source={copy},wasm:{ONE}")
    assert code == 4
    assert "version 99 of the arms' interface, this page 1" in err
    assert "source=sha256-" in err
