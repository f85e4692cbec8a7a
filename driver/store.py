"""Receipt files: read as hostile data, written in one piece."""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from driver.errors import ReceiptError, UsageError

MAX_BYTES = 256 * 2**20


def read_json(path: Path) -> Any:
    """JSON data of a receipt file.

    Raises ReceiptError when it cannot be read, is larger than 256 MiB, is not JSON, names a key
    twice, holds NaN or Infinity, or is nested too deeply.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # a device or pipe has no size to ask for
        if len(data) > MAX_BYTES:
            raise ReceiptError(f"{path}: a receipt has at most {MAX_BYTES} bytes")
        text = data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ReceiptError(f"{path}: cannot be read ({error})") from error
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_small_int,
            object_pairs_hook=_unique,
        )
    except RecursionError as error:
        raise ReceiptError(f"{path}: nested too deeply for a receipt") from error
    except ValueError as error:
        raise ReceiptError(f"{path}: not the JSON of a receipt ({error})") from error


def write_json(path: Path, data: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it.

    Raises UsageError when the folder cannot be written.
    """
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Like `write_json`, for text."""
    path = path.resolve()  # through a link, to what it names
    check_target(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_target(path: Path) -> None:
    """Raises UsageError unless `path` is, or can become, a regular file in a folder that exists."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file and will not be replaced; name another")
    if not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be written: there is no folder {path.parent}; make it first"
        )


def check_writable(folder: Path) -> None:
    """Raises UsageError when receipts could not be written into `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be written ({error})") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:30]} is beyond float64")
    return value


def _small_int(text: str) -> int:
    value = int(text) if len(text) <= 20 else 2**64
    if abs(value) >= 2**53:  # where float64 begins to leave integers out
        raise ValueError(f"the integer {text[:30]} is 2^53 or more")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r:.80} stands twice")
    return found
