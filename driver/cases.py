"""Case and result files: training problems and their answers, as safetensors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from driver.errors import CaseError, UsageError
from driver.faults import in_words
from driver.records import ModelConfig
from driver.tensors import State, table

CASE_FORMAT = "driver-case/1"
RESULT_FORMAT = "driver-result/1"


@dataclass(frozen=True)
class Case:
    """A training problem: tokens int32 (steps, B, T+1) and the initial parameters by name."""

    config: ModelConfig
    tokens: NDArray[np.int32]
    state: State

    @property
    def steps(self) -> int:
        """Number of batches, one per training step."""
        return int(self.tokens.shape[0])


@dataclass(frozen=True)
class Result:
    """What an arm made of a case: first `grads` (before clipping), last `params`."""

    losses: NDArray[np.float64]
    grad_norms: NDArray[np.float64]
    grads: Mapping[str, NDArray[Any]]
    params: Mapping[str, NDArray[Any]]


def read_case(path: Path) -> Case:
    """Reads and checks a case file.

    Raises CaseError when the file cannot be read, is of another format, or its tensors do not fit
    its configuration.
    """
    metadata, arrays = _read(path)
    found = metadata.get("format")
    if found != CASE_FORMAT:
        raise CaseError(f"{path}: format is {found!r}, expected {CASE_FORMAT!r}")
    config = _config(path, metadata.get("config"))

    wanted = {f"param/{slot.name}": slot.shape for slot in table(config)}
    missing = sorted(wanted.keys() - arrays.keys())
    if missing:
        raise CaseError(f"{path}: lacks {len(missing)} tensors, first {missing[0]!r}")
    foreign = sorted(arrays.keys() - wanted.keys() - {"tokens"})
    if foreign:
        raise CaseError(f"{path}: has {len(foreign)} unknown tensors, first {foreign[0]!r}")
    state: State = {}
    for key, shape in wanted.items():
        array = arrays[key]
        if array.shape != shape:
            raise CaseError(
                f"{path}: {key} has shape {array.shape}, its configuration asks for {shape}"
            )
        if array.dtype != np.float32:
            raise CaseError(f"{path}: {key} is {array.dtype}, expected float32")
        if not np.isfinite(array).all():
            raise CaseError(f"{path}: {key} holds numbers that are not finite")
        state[key.removeprefix("param/")] = array
    return Case(config, _tokens(path, config, arrays.get("tokens")), state)


def write_case(path: Path, case: Case) -> None:
    """Writes a case file; raises UsageError when `path` cannot be written."""
    arrays: dict[str, NDArray[Any]] = {"tokens": case.tokens}
    arrays |= {f"param/{name}": array for name, array in case.state.items()}
    config = json.dumps(case.config.model_dump())
    _write(path, arrays, {"format": CASE_FORMAT, "config": config})


def write_result(path: Path, result: Result) -> None:
    """Writes a result file; raises UsageError when `path` cannot be written."""
    arrays: dict[str, NDArray[Any]] = {"losses": result.losses, "grad_norms": result.grad_norms}
    arrays |= {f"grad/{name}": array for name, array in result.grads.items()}
    arrays |= {f"param/{name}": array for name, array in result.params.items()}
    _write(path, arrays, {"format": RESULT_FORMAT})


def _read(path: Path) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    if not path.is_file():
        raise CaseError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
    try:
        with safe_open(path, "np") as file:
            return file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise CaseError(f"{path}: not a readable safetensors file ({error})") from error


def _config(path: Path, text: str | None) -> ModelConfig:
    if text is None:
        raise CaseError(f"{path}: its metadata has no `config`")
    try:
        return ModelConfig.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "config"
        # What is wrong with all of it, or lacks, has no value of its own to show.
        whole = isinstance(first["input"], dict)
        value = "" if whole else f" (value {first['input']!r:.200})"
        raise CaseError(f"{path}: config: {where}: {in_words(first)}{value}") from error


def _tokens(path: Path, config: ModelConfig, tokens: NDArray[Any] | None) -> NDArray[np.int32]:
    if tokens is None:
        raise CaseError(f"{path}: lacks `tokens`")
    expected = (config.batch, config.ctx + 1)
    if tokens.ndim != 3 or tokens.shape[1:] != expected or tokens.shape[0] < 1:
        raise CaseError(
            f"{path}: tokens has shape {tokens.shape}, "
            f"expected (steps, {expected[0]}, {expected[1]})"
        )
    if tokens.dtype != np.int32:
        raise CaseError(f"{path}: tokens is {tokens.dtype}, expected int32")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= config.vocab:
        raise CaseError(
            f"{path}: tokens run from {low} to {high}, outside the vocabulary of {config.vocab}"
        )
    return tokens


def _write(path: Path, arrays: dict[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    contiguous = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    try:
        save_file(contiguous, path.resolve(), metadata=metadata)
        path.chmod(0o644)  # the library's own default is for the owner alone
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be written ({error})") from error
