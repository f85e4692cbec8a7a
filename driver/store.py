"""Receipt files: read as hostile data, written in one piece."""

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import rfc8785
from pydantic import ValidationError

from driver import layout
from driver.errors import ReceiptError, UsageError
from driver.receipt import parse
from driver.records import Calibration, CalibrationKey, Receipt

# Files of this project that are no receipts, by their format: what one is, and which command's.
_OTHERS = {
    "driver-ladder/1": ("a ladder", "driver ladder", "its pairs' receipts lie beside it"),
    "driver-kernels/1": ("a file of single kernels", "driver kernels --json", "it has no receipt"),
    "driver-geometry/1": ("a step's geometry", "driver geometry --json", "it has no receipt"),
}
MAX_BYTES = 64 * 2**20  # of text; as Python objects a receipt takes about ten times as much


def read_json(path: Path) -> Any:
    """JSON data of a receipt file.

    Raises ReceiptError when it is no regular file, cannot be read, is larger than 64 MiB, is not
    JSON, names a key twice, holds NaN or Infinity, or is nested too deeply.
    """
    return _parsed(path, _read(path))


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # reading it may never end
            raise ReceiptError(f"{path}: is not a regular file; copy its content into one")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # its size may change meanwhile
    except (OSError, ValueError) as error:
        raise ReceiptError(f"{path}: cannot be read ({error})") from error
    if len(data) > MAX_BYTES:
        raise ReceiptError(f"{path}: a receipt has at most {MAX_BYTES} bytes")
    return data


def _parsed(path: Path, data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
    except ValueError as error:
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


def read_receipt(path: Path) -> Any:
    """As `read_json`; raises ReceiptError as well where the file is another result of ours."""
    return hashed_receipt(path)[0]


def hashed_receipt(path: Path) -> tuple[Any, str]:
    """As `read_receipt`, and the SHA-256 of the bytes that were read."""
    raw = _read(path)
    data = _parsed(path, raw)
    other = _OTHERS.get(str(data.get("format"))) if isinstance(data, dict) else None
    if other:
        what, command, hint = other
        raise ReceiptError(f"{path}: this is {what}, written by `{command}`, no receipt; {hint}")
    return data, hashlib.sha256(raw).hexdigest()


def whole(path: Path, data: Any) -> Receipt:
    """A file's data as a receipt; raises ReceiptError with the file and what is wrong in it."""
    try:
        return parse(data)
    except ReceiptError as error:
        raise ReceiptError(f"{path}: {error}") from error


def file_sha256(path: Path) -> str | None:
    """Of a file's bytes; None where it cannot be read or is too large to be a receipt."""
    try:
        return hashlib.sha256(_read(path)).hexdigest()
    except ReceiptError:
        return None


def write_json(path: Path, data: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it.

    Raises UsageError when the folder cannot be written.
    """
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Like `write_json`, for text."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Like `write_json`, for anything."""
    path = path.resolve()  # through a link, to what it names
    check_target(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error})") from error


def page_path(receipt: Path) -> Path:
    """Where a receipt's page lies: beside it, under the same name."""
    return receipt.with_suffix(".html")


def calibration_path(key: CalibrationKey) -> Path:
    """The file of one machine, browser, preset and arm."""
    name = hashlib.sha256(rfc8785.dumps(key.model_dump(mode="json"))).hexdigest()
    return layout.data_dir() / "calibrations" / f"{name[:32]}.json"


def load_calibration(key: CalibrationKey) -> Calibration | None:
    """What is known of that arm here; None without a file, or where it is damaged."""
    path = calibration_path(key)
    try:
        found = Calibration.model_validate(read_json(path))
    except (ReceiptError, ValidationError):
        return None
    return found if found.key == key else None


def check_data() -> None:
    """Raises UsageError when calibrations could not be kept."""
    hint = "DRIVER_DATA names the folder of calibrations"
    check_writable(layout.data_dir() / "calibrations", hint)


def save_calibration(calibration: Calibration) -> Path:
    """Writes it to its place; raises UsageError where that cannot be written."""
    path = calibration_path(calibration.key)
    check_data()
    write_json(path, calibration.model_dump(mode="json"))
    return path


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


def check_writable(folder: Path, hint: str = "--out names the folder of receipts") -> None:
    """Raises UsageError when receipts could not be written into `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error}); {hint}") from error


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
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.80} stands twice")
        found[key] = value
    return found
