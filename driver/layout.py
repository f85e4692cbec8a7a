"""Where the project's own files and its cache live."""

import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import platformdirs

from driver.errors import LackError

_PACKAGE = Path(__file__).resolve().parent
# A checkout keeps the sources beside the package; a wheel carries them inside it.
ROOT = (
    _PACKAGE.parent if (_PACKAGE.parent / "wasm_src" / "gpt.h").exists() else _PACKAGE / "_project"
)

WASM_SRC = ROOT / "wasm_src"
WEBGPU_SRC = ROOT / "webgpu_src"
WEB = ROOT / "web"
PRESETS = ROOT / "presets"


def cache_dir() -> Path:
    """The cache folder, outside the source tree; `DRIVER_CACHE` names another one."""
    override = os.environ.get("DRIVER_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("browser-train-driver"))


def data_dir() -> Path:
    """Where calibrations are kept; `DRIVER_DATA` names another folder."""
    override = os.environ.get("DRIVER_DATA")
    return Path(override) if override else Path(platformdirs.user_data_dir("browser-train-driver"))


def check_cache() -> None:
    """Raises LackError when the cache folder cannot be written."""
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise LackError(
            f"the build cache {folder} cannot be written ({error.strerror or error}); "
            "name another folder with DRIVER_CACHE=…"
        ) from error


def evaluator_sha256() -> str:
    """SHA-256 over the sources that turn raw data into numbers, gates and verdicts."""
    hasher = hashlib.sha256()
    for name in (
        "adapter",
        "calibration",
        "parity/measures",
        "parity/gates",
        "parity/precision",
        "power",
        "profile",
        "receipt/checking",
        "receipt/deriving",
        "receipt/sealing",
        "reference",
        "replicas",
        "stats",
        "wording",
    ):
        hasher.update((_PACKAGE / f"{name}.py").read_bytes())
    return hasher.hexdigest()


@cache
def program_sha256() -> str:
    """SHA-256 over all Python sources of this installation: the same program, the same answers."""
    hasher = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        hasher.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
        hasher.update(hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()


def revision() -> tuple[str | None, bool | None]:
    """The checkout's git commit, and whether it has changes; None and None without a repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(*arguments: str) -> str:
    # Only a repository of the project's own: an installed wheel may lie inside somebody else's.
    if not (ROOT / ".git").exists():
        raise OSError("not a checkout")
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
