"""Kernels → artifacts: wasm_src through ziglang, WGSL gathered, digests, a cache.

A module's cache key is the digest of its sources, the flags and the compiler's version, so an
entry never goes stale. Entries are written to a temporary folder and renamed into place: two
processes may build at once, and the one that comes second finds the same bytes. Each entry carries
the digest of its module; one that no longer matches is built again.

The compiler runs inside a copy of the sources and sees relative paths only, so the same source and
compiler give the same bytes whatever the folder.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from driver import layout, wasm_binary
from driver.errors import BuildError
from driver.records import Record

SIMD = ("scalar", "simd128", "relaxed")
ADDRESS = ("wasm32", "wasm64")

_FORMAT = "build/1"  # of the cache's entries
_FEATURES = {"scalar": "", "simd128": "+simd128", "relaxed": "+simd128+relaxed_simd"}
# 4 GiB is all that 32 bits address; 16 GiB is the most that browsers give to 64 bits.
_MAX_MEMORY_BYTES = {"wasm32": 1 << 32, "wasm64": 1 << 34}
# With 64-bit addresses the panels of products lie in a second memory (wasm_src/panels.h).
_PANELS_APART = "-DPANELS_APART"
_PANELS_PAGES = 1 << 16  # as many as 32 bits address
_CPU = "generic+bulk_memory+mutable_globals+sign_ext+nontrapping_fptoint"
_COMPILE = (
    "-O3",
    "-std=c11",
    "-ffreestanding",
    "-nostdlib",
    "-ffp-contract=off",  # else vector bodies fuse multiply-adds and their tails do not
    "-fno-math-errno",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror",
)
_LINK = (
    "--no-entry",
    "--import-memory",
    "--initial-memory=1048576",
    "-z",
    "stack-size=65536",
    "--export=__stack_pointer",
    "--export=__heap_base",
    "--strip-debug",
    "--fatal-warnings",
)


# Flags of a receipt that may be passed to the compiler although they are not ours.
_HARMLESS = re.compile(
    r"-O[0-3sz]|-std=c\d\d|-mcpu=[a-z0-9_+]{1,200}|-ffp-contract=(off|on|fast)"
    r"|--(initial|max)-memory=\d{1,12}|stack-size=\d{1,12}"
)


class Artifact(Record):
    """One file that an arm loads. `flags` and `compiler` are empty for what is not compiled."""

    name: str
    path: Path
    sha256: str
    bytes: int
    flags: tuple[str, ...]
    compiler: str


# --------------------------------------------------------------------------- what callers use


def build_wasm(
    simd: str, address: str, shared: bool = True, folder: Path | None = None
) -> Artifact:
    """The module of one feature level ("scalar", "simd128", "relaxed") and address type.

    The address type is "wasm32" or "wasm64"; "wasm", the arm's name, means the former. Without
    shared memory a module has no threads, and runs where a browser has none. `folder` holds
    other sources than this project's own.
    """
    address = "wasm32" if address == "wasm" else address
    if simd not in SIMD or address not in ADDRESS:
        raise BuildError(
            f"no module simd={simd!r} address={address!r}; "
            f"simd is one of {', '.join(SIMD)}, address one of {', '.join(ADDRESS)}"
        )
    name = _module_name(simd, address, shared)
    flags, link = _flags(simd, address, shared)
    sources = _sources(folder or layout.WASM_SRC)
    key = _digest_of(
        [_FORMAT, _compiler(), *flags, "link", *link],
        [(path.name, path.read_bytes()) for path in sources],
    )
    entry = layout.cache_dir() / "wasm" / f"{key[:32]}-{name.removesuffix('.wasm')}"
    found = _cached(entry, name, flags + link)
    if found is None:
        _compile_into(entry, name, sources, flags, link)
        found = _cached(entry, name, flags + link)
    if found is None:
        raise BuildError(f"{name} was built, but {entry} does not hold what was written there")
    return found


def rebuild_wasm(name: str, flags: Sequence[str]) -> Artifact:
    """The module of that name, compiled now with these flags, whatever the cache holds.

    `flags` may be a stranger's: only those that this project's builds use are passed on, with other
    numbers, optimisation levels or features in them. Raises BuildError for any other name or flag,
    and where the sources do not compile. The artefact's file is gone when this returns.
    """
    kinds = {_module_name(*kind): kind for kind in itertools.product(SIMD, ADDRESS, (True, False))}
    if name not in kinds:
        raise BuildError(f"no module {name!r:.60}; known are {', '.join(kinds)}")
    ours = [flag for part in _flags(*kinds[name]) for flag in part]
    strange = [f for f in flags if f not in ours and not _HARMLESS.fullmatch(f)]
    if strange:
        raise BuildError(f"{name}: the flag {strange[0]!r:.60} is none of this project's")
    at = next((i for i, flag in enumerate(flags) if flag in ("-mwasm64", "--no-entry")), None)
    if at is None:
        raise BuildError(f"{name}: its flags name no linker's part (--no-entry)")
    compile_flags, link = tuple(flags[:at]), tuple(flags[at:])
    with tempfile.TemporaryDirectory(prefix="driver-rebuild-") as folder:
        entry = Path(folder) / "entry"
        _compile_into(entry, name, _sources(layout.WASM_SRC), compile_flags, link)
        made = _cached(entry, name, compile_flags + link)
    if made is None:
        raise BuildError(f"{name} was built, but does not hold what was written")
    return made


def build_all() -> list[Artifact]:
    """All modules, compiled side by side."""
    kinds = itertools.product(SIMD, ADDRESS, (True, False))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda kind: build_wasm(*kind), kinds))


def gather_wgsl(folder: Path | None = None) -> dict[str, Artifact]:
    """Every WGSL kernel by file name, the project's own or those of another folder.

    Nothing is compiled here, the browser does that.
    """
    found: dict[str, Artifact] = {}
    for path in sorted((folder or layout.WEBGPU_SRC).glob("*.wgsl")):
        data = path.read_bytes()
        found[path.name] = Artifact(
            name=path.name,
            path=path,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            flags=(),
            compiler="",
        )
    return found


def source_digest() -> str:
    """SHA-256 over names and bytes of all C and WGSL sources."""
    paths = [*_sources(layout.WASM_SRC), *sorted(layout.WEBGPU_SRC.glob("*.wgsl"))]
    return _digest_of(["sources"], [(path.name, path.read_bytes()) for path in paths])


# --------------------------------------------------------------------------- cache


class _Entry(Record):
    """What stands beside a cached module."""

    format: Literal["build/1"]
    sha256: str


def _cached(entry: Path, name: str, flags: tuple[str, ...]) -> Artifact | None:
    """The module in `entry`, or None where it is missing or damaged."""
    try:
        noted = _Entry.model_validate_json((entry / "entry.json").read_bytes())
        data = (entry / name).read_bytes()
    except (OSError, ValidationError):
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != noted.sha256:
        return None
    return Artifact(
        name=name,
        path=entry / name,
        sha256=sha256,
        bytes=len(data),
        flags=flags,
        compiler=_compiler(),
    )


def _install(made: Path, entry: Path, name: str, flags: tuple[str, ...]) -> None:
    """Renames `made` to `entry`; a damaged entry is moved away first, a good one is kept."""
    for _ in range(10):
        try:
            made.rename(entry)
            return
        except OSError:
            if _cached(entry, name, flags) is not None:
                return  # another process was first, with the same bytes
            try:
                entry.rename(made.with_name(made.name + ".damaged"))
            except OSError:
                continue
    raise BuildError(f"{entry} cannot be replaced; remove that folder and build again")


# --------------------------------------------------------------------------- compiler


def _compile_into(
    entry: Path, name: str, sources: list[Path], flags: tuple[str, ...], link: tuple[str, ...]
) -> None:
    """Compiles a copy of `sources` in a temporary folder and installs the module as `entry`."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=entry.parent) as folder:
            scratch = Path(folder) / "src"
            scratch.mkdir()
            for path in sources:
                shutil.copyfile(path, scratch / path.name)
            objects = []
            for path in sources:
                if path.suffix == ".c":
                    objects.append(path.stem + ".o")
                    _zig(scratch, ["cc", *flags, "-c", path.name, "-o", objects[-1]])
            _zig(scratch, ["wasm-ld", *link, *objects, "-o", name])
            data = (scratch / name).read_bytes()
            if _PANELS_APART in flags:
                data = wasm_binary.import_memory(
                    data, "panels", maximum_pages=_PANELS_PAGES, shared="--shared-memory" in link
                )
            made = Path(folder) / "entry"
            made.mkdir()
            (made / name).write_bytes(data)
            sha256 = hashlib.sha256(data).hexdigest()
            (made / "entry.json").write_text(json.dumps({"format": _FORMAT, "sha256": sha256}))
            _install(made, entry, name, flags + link)
    except OSError as error:
        raise BuildError(
            f"cannot build {name} in {entry.parent}: {error.strerror or error}. "
            "DRIVER_CACHE names another cache folder"
        ) from error


def _flags(simd: str, address: str, shared: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Flags of `zig cc` and of `zig wasm-ld`; the latter since `zig cc` takes no 64-bit maximum."""
    features = _FEATURES[simd] + ("+atomics" if shared else "")
    panels = (_PANELS_APART,) if address == "wasm64" and simd != "scalar" else ()
    target = ("-target", f"{address}-freestanding", f"-mcpu={_CPU}{features}", *panels)
    memory = ("--shared-memory",) if shared else ()
    link = (*_LINK, *memory, f"--max-memory={_MAX_MEMORY_BYTES[address]}")
    return (*target, *_COMPILE), ("-mwasm64", *link) if address == "wasm64" else link


def _module_name(simd: str, address: str, shared: bool) -> str:
    return f"gpt-{simd}-{address}{'' if shared else '-unshared'}.wasm"


def _sources(folder: Path) -> list[Path]:
    found = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    if not found:
        raise BuildError(f"no C sources in {folder}; the installation is incomplete")
    return found


@cache
def _compiler() -> str:
    """Name and version of the compiler, for the cache key and the receipt."""
    out = subprocess.run(
        [sys.executable, "-m", "ziglang", "version"],
        capture_output=True,
        text=True,
        check=False,
    )
    if out.returncode != 0:
        raise BuildError(
            "the C compiler does not start; it comes with the package ziglang "
            f"(pip install ziglang): {out.stderr.strip()}"
        )
    return f"ziglang {out.stdout.strip()}"


def _zig(folder: Path, arguments: list[str]) -> None:
    zig_cache = str(layout.cache_dir().resolve() / "zig")
    out = subprocess.run(
        [sys.executable, "-m", "ziglang", *arguments],
        cwd=folder,
        env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache},
        capture_output=True,
        text=True,
        check=False,
    )
    if out.returncode != 0:
        raise BuildError(_readable(out.stderr or out.stdout, folder))


def _readable(message: str, folder: Path) -> str:
    """The compiler's message with the sources' own folder name before each file."""
    text = message.replace(f"{folder.resolve()}{os.sep}", "").replace(f"{folder}{os.sep}", "")
    text = re.sub(r"(?m)^(\./)?(?=[\w-]+\.[ch]:\d+)", f"{layout.WASM_SRC.name}/", text)
    return "the kernels did not compile:\n" + text.strip()


def _digest_of(words: list[str], files: list[tuple[str, bytes]]) -> str:
    """SHA-256 over lengths and bytes, so that no two lists give the same stream."""
    digest = hashlib.sha256()
    parts = [word.encode() for word in words]
    for name, data in files:
        parts += [name.encode(), data]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
