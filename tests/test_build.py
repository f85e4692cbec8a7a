"""The build: same bytes everywhere, safe side by side, readable when it fails."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from driver import build, layout, wasm_binary
from driver.errors import BuildError


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources that a test may break."""
    folder = tmp_path / "copy" / "wasm_src"
    shutil.copytree(layout.WASM_SRC, folder)
    monkeypatch.setattr(layout, "WASM_SRC", folder)
    return folder


def refuse(*_: object) -> None:
    raise AssertionError("the compiler was called")


def test_all_modules_differ_and_are_described() -> None:
    artifacts = build.build_all()
    assert len({artifact.sha256 for artifact in artifacts}) == 12
    for artifact in artifacts:
        data = artifact.path.read_bytes()
        assert data.startswith(b"\0asm\1\0\0\0")
        assert (artifact.bytes, artifact.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert artifact.compiler.startswith("ziglang 0.")
        assert "-ffp-contract=off" in artifact.flags
        assert artifact.path.is_relative_to(layout.cache_dir())
        # a second memory where panels lie apart
        apart = "wasm64" in artifact.name and "scalar" not in artifact.name
        assert (build._PANELS_APART in artifact.flags) is apart
        shared = "unshared" not in artifact.name
        entry = b"\x03env\x06panels\x02" + bytes([3 if shared else 1, 0, 0x80, 0x80, 4])
        assert data.count(entry) == apart


MODULE = b"\0asm\1\0\0\0"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (b"", "no WebAssembly module"),
        (b"\0asm\2\0\0\0", "no WebAssembly module"),
        (MODULE, "imports nothing"),
        (MODULE + b"\2\x50\1", "ends within its section 2"),
        (MODULE + b"\2\x80", "ends within a number"),
    ],
)
def test_what_no_memory_can_be_added_to(module: bytes, words: str) -> None:
    with pytest.raises(BuildError, match=words):
        wasm_binary.import_memory(module, "panels", maximum_pages=1, shared=False)


def test_sizes_of_several_bytes_are_kept() -> None:
    """128 imports, so that their number and their section's size grow by a byte."""
    one = b"\3env\1f\0\0"
    body = bytes([127]) + 127 * one
    section = wasm_binary._leb(len(body)) + body
    rest = b"\0\4\2abc"  # a custom section
    got = wasm_binary.import_memory(
        MODULE + b"\2" + section + rest, "panels", maximum_pages=65536, shared=True
    )
    new = b"\x80\1" + 127 * one + b"\3env\6panels\2\3\0\x80\x80\4"
    assert got == MODULE + b"\2" + wasm_binary._leb(len(new)) + new + rest


def test_second_build_comes_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build_wasm("simd128", "wasm32")
    monkeypatch.setattr(build, "_zig", refuse)
    assert build.build_wasm("simd128", "wasm32") == first
    assert build.build_wasm("simd128", "wasm") == first  # the arm's name


@pytest.mark.parametrize("address", build.ADDRESS)
def test_same_bytes_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    found = []
    for place in ("here", "quite/another/place"):
        folder = tmp_path / place / "wasm_src"
        shutil.copytree(layout.WASM_SRC, folder)
        monkeypatch.setattr(layout, "WASM_SRC", folder)
        monkeypatch.setenv("DRIVER_CACHE", str(tmp_path / place / "cache"))
        artifact = build.build_wasm("relaxed", address)
        found.append((artifact.sha256, build.source_digest()))
        data = artifact.path.read_bytes()
        assert str(tmp_path).encode() not in data
        assert str(Path.home()).encode() not in data
    assert found[0] == found[1]


def test_a_changed_source_is_another_module(cache: Path, sources: Path) -> None:
    before, digest = build.build_wasm("scalar", "wasm32"), build.source_digest()
    gelu = sources / "gelu.c"
    gelu.write_text(gelu.read_text().replace("#define CHUNK 8192", "#define CHUNK 4096"))
    assert build.build_wasm("scalar", "wasm32").sha256 != before.sha256
    assert build.source_digest() != digest


def test_two_processes_build_at_once(cache: Path) -> None:
    code = (
        "from driver.build import build_wasm as made\n"
        "for kind in (('scalar', 'wasm32'), ('relaxed', 'wasm64')): print(made(*kind).sha256)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=layout.ROOT,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert len(set(outputs[0][0].split())) == 2
    assert not [path for path in (cache / "wasm").iterdir() if path.name.startswith(".")]


def test_compiler_errors_are_readable(cache: Path, sources: Path) -> None:
    (sources / "gelu.c").write_text('#include "gpt.h"\nint broken(void) { return missing; }\n')
    with pytest.raises(BuildError) as caught:
        build.build_wasm("relaxed", "wasm64")
    message = str(caught.value)
    assert "wasm_src/gelu.c:2" in message
    assert "missing" in message
    assert str(cache) not in message
    assert ".building" not in message


def test_linker_errors_are_readable(cache: Path, sources: Path) -> None:
    (sources / "gelu.c").unlink()
    with pytest.raises(BuildError, match="undefined symbol: gelu_row"):
        build.build_wasm("relaxed", "wasm32")
    with pytest.raises(BuildError, match="undefined symbol: gelu_row"):
        build.build_wasm("relaxed", "wasm32")  # a failure leaves nothing behind


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry, name: (entry / name).write_bytes((entry / name).read_bytes()[:-1]),
        lambda entry, name: (entry / name).unlink(),
        lambda entry, name: (entry / "entry.json").write_text("{"),
        lambda entry, name: (entry / "entry.json").unlink(),
        lambda entry, name: (entry / "entry.json").write_text('{"format": "x", "sha256": ""}'),
    ],
)
def test_a_damaged_entry_is_built_again(cache: Path, damage: object) -> None:
    first = build.build_wasm("scalar", "wasm32")
    damage(first.path.parent, first.name)  # type: ignore[operator]
    again = build.build_wasm("scalar", "wasm32")
    assert again == first
    assert hashlib.sha256(again.path.read_bytes()).hexdigest() == first.sha256


def test_an_unusable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("DRIVER_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="DRIVER_CACHE"):
        build.build_wasm("scalar", "wasm32")


def test_unknown_names() -> None:
    with pytest.raises(BuildError, match="simd='avx'"):
        build.build_wasm("avx", "wasm32")
    with pytest.raises(BuildError, match="address='wasm16'"):
        build.build_wasm("scalar", "wasm16")


def test_wgsl_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "WEBGPU_SRC", tmp_path)
    (tmp_path / "gelu_forward.wgsl").write_bytes(b"// one\n")
    (tmp_path / "notes.txt").write_bytes(b"no kernel")
    found = build.gather_wgsl()
    assert list(found) == ["gelu_forward.wgsl"]
    artifact = found["gelu_forward.wgsl"]
    assert artifact.sha256 == hashlib.sha256(b"// one\n").hexdigest()
    assert (artifact.bytes, artifact.flags, artifact.compiler) == (7, (), "")
