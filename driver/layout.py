"""Where the project's own files and its cache live."""

import os
from pathlib import Path

import platformdirs

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
