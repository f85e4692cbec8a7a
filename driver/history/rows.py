"""A receipt's file → its rows. Strangers' receipts: whatever is wrong with one is a reason."""

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from glob import glob, has_magic
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from types import MappingProxyType

from driver import store
from driver.calibration import calibration_key
from driver.compare import Level, arm_level, browser_major
from driver.errors import ReceiptError
from driver.parity import ADAPTER_IDENTITY, SIDES
from driver.plan import evaluator
from driver.power import t_quantile
from driver.receipt import Examination, examine
from driver.receipt.sealing import sha256
from driver.records import (
    ArmPlan,
    Evaluator,
    HistoryReceipt,
    HistorySlot,
    Receipt,
    Refused,
    Slot,
)
from driver.stats import step_ms

PATTERN = "*.receipt.json"
_PARALLEL_FROM = 200  # files: below that, starting processes takes longer than reading
_COLLECT_EVERY = 50_000  # objects
_LONGEST = 2000  # letters of a stranger's text that are kept


@dataclass(frozen=True)
class Rows:
    """One receipt's rows."""

    receipt: HistoryReceipt
    slots: tuple[HistorySlot, ...]
    file_sha256: str = ""


@dataclass(frozen=True)
class Seen:
    """What the database has of a file that this very program has read before, byte for byte."""

    digest: str
    invalid: bool
    fault: str | None


# --------------------------------------------------------------------------- files


def find(places: list[str]) -> tuple[list[Path], list[Refused]]:
    """The receipts in files, folders and patterns, each once; and what has none."""
    found: dict[Path, Path] = {}
    empty = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            files = sorted(file for file in path.rglob(PATTERN) if file.is_file())
        elif not path.exists() and has_magic(place):
            # Path.glob takes no absolute patterns.
            files = [Path(file) for file in sorted(glob(place, recursive=True))]  # noqa: PTH207
        else:
            files = [path]
        if not files:
            empty.append(Refused(file=place, reason=f"no file {PATTERN} is there"))
        found |= {file.resolve(): file for file in files}
    return list(found.values()), empty


def read_all(
    files: list[Path],
    seen: Mapping[str, Seen] = MappingProxyType({}),
    told: Callable[[int, int], None] = lambda *_: None,
) -> list[Rows | Seen | Refused]:
    """The rows of every file, in the order of the files; many are read by several processes.

    `seen` has, by the SHA-256 of their bytes, files that need not be computed again. `told` hears,
    file by file, how many of the others are done, and of how many.
    """
    known = [seen.get(store.file_sha256(file) or "") if seen else None for file in files]
    fresh = [file for file, found in zip(files, known, strict=True) if found is None]
    made: list[Rows | Refused] = []
    for one in _read_each(fresh):
        made.append(one)
        told(len(made), len(fresh))
    left = iter(made)
    return [next(left) if one is None else one for one in known]


def _read_each(files: list[Path]) -> Iterator[Rows | Refused]:
    processes = min(cpu_count() or 1, 8)
    if len(files) < _PARALLEL_FROM or processes == 1:
        yield from map(read, files)
        return
    chunk = max(1, min(50, len(files) // (4 * processes)))
    # What is read has no cycles; looking for some costs a tenth of the time.
    with ProcessPoolExecutor(
        processes, get_context("spawn"), gc.set_threshold, (_COLLECT_EVERY,)
    ) as pool:
        yield from pool.map(read, files, chunksize=chunk)


def read(file: Path) -> Rows | Refused:
    """The rows of one file; Refused, with the reason, where it is no receipt."""
    try:
        data, file_sha256 = store.hashed_receipt(file)
        checked = examine(data, _evaluator())
        if checked.receipt is None or checked.derived is None:
            return Refused(file=str(file), reason=checked.faults[0])
        return replace(rows_of(checked, file.name), file_sha256=file_sha256)
    except ReceiptError as error:
        return Refused(file=str(file), reason=str(error).removeprefix(f"{file}: "))


def read_one(file: Path) -> tuple[Receipt, Rows]:
    """A receipt to build on, and its rows. Raises ReceiptError for one that does not hold."""
    data = store.read_receipt(file)
    checked = examine(data, _evaluator())
    if checked.faults or checked.receipt is None:
        raise ReceiptError(f"{file}: INVALID: {checked.faults[0]} (driver verify says more)")
    return checked.receipt, rows_of(checked, file.name)


@cache
def _evaluator() -> Evaluator:
    return evaluator()


# --------------------------------------------------------------------------- rows


def rows_of(checked: Examination, file: str) -> Rows:
    """The rows of a receipt that could be evaluated."""
    receipt = checked.receipt
    assert receipt and checked.derived
    comparison, gates, verdict = checked.derived
    plan, environment = receipt.plan, receipt.environment
    estimate = comparison.estimate
    keys = [calibration_key(plan, environment, which) for which in (0, 1)]
    a, b = (arm_level(receipt, side) for side in SIDES)
    first, second = plan.arms
    wrong = [*checked.faults, *checked.unconfirmed]
    return Rows(
        HistoryReceipt(
            digest=checked.content_digest,
            file=_short(file),
            added_utc=datetime.now(UTC).replace(tzinfo=None),
            frozen_utc=moment(plan.frozen_utc),
            checked=checked.status,
            fault=_short(wrong[0]) if wrong else None,
            preset=_short(str(plan.preset.get("name"))),
            machine=_short(
                f"{keys[0].cpu}, {keys[0].cores_usable or '?'} cores, {keys[0].system} "
                f"{keys[0].architecture}"
            ),
            browser=_short(browser_major(receipt)),
            browser_version=_short(str(environment.browser.get("version"))),
            adapter=_short(next((key.adapter for key in keys if key.adapter), "")),
            adapter_verdict=environment.adapter_verdict,
            arm_a=_short(first.name),
            arm_b=_short(second.name),
            canonical_a=_short(first.canonical),
            canonical_b=_short(second.canonical),
            label_a=label(first),
            label_b=label(second),
            series_a=series(receipt, 0),
            series_b=series(receipt, 1),
            revision=receipt.subject.revision and _short(receipt.subject.revision),
            dirty=receipt.subject.dirty,
            driver_version=_short(receipt.subject.driver_version),
            seed=plan.seed,
            blocks=estimate.blocks,
            ratio=estimate.ratio,
            ratio_low=estimate.low,
            ratio_high=estimate.high,
            word=estimate.word,
            margin=plan.margin,
            ms_a=_middle(a), ms_a_low=_edge(a, -1), ms_a_high=_edge(a, 1),
            variance_a=a and a.part and a.part.variance, freedom_a=a and a.part and a.part.df,
            ms_b=_middle(b), ms_b_low=_edge(b, -1), ms_b_high=_edge(b, 1),
            variance_b=b and b.part and b.part.variance, freedom_b=b and b.part and b.part.df,
            loss_a=comparison.arms[0].last_loss,
            loss_b=comparison.arms[1].last_loss,
            verdict=verdict.status,
            verdict_stated=receipt.verdict.status,
            reasons=tuple(map(_short, verdict.reasons)),
            gates_failed=tuple(
                gate.name for gate in gates if gate.status not in ("pass", "not-applicable")
            ),
            headline=_short(verdict.headline),
        ),
        tuple(_slot(slot, checked.content_digest) for slot in receipt.slots),
    )  # fmt: skip


def _slot(slot: Slot, content_digest: str) -> HistorySlot:
    return HistorySlot(
        digest=content_digest, slot=slot.index, block=slot.block, position=slot.position,
        side=slot.side, arm=_short(slot.arm), status=slot.status,
        failure=_short(f"{slot.failure.kind}: {slot.failure.message}") if slot.failure else None,
        started_utc=moment(slot.started_utc), step_ms=step_ms(slot),
        steps_per_window=slot.steps_per_window, windows_ms=tuple(slot.windows_ms),
        compile_ms=slot.compile_ms, upload_ms=slot.upload_ms, first_step_ms=slot.first_step_ms,
        steps=len(slot.losses), last_loss=slot.losses[-1] if slot.losses else None,
        sentinel_ms=tuple(slot.sentinel_ms), gpu_sentinel_ms=tuple(slot.gpu_sentinel_ms),
    )  # fmt: skip


def series(receipt: Receipt, which: int) -> str:
    """The same for runs of arm `which` whose times can be compared: the key of its calibrations,
    the corpus, and all that tells two adapters apart."""
    adapter = receipt.environment.adapter if receipt.plan.arms[which].name == "webgpu" else None
    key = {
        "key": calibration_key(receipt.plan, receipt.environment, which).model_dump(mode="json"),
        "corpus": receipt.plan.corpus.sha256,
        "adapter": {name: adapter.get(name) for name in ADAPTER_IDENTITY} if adapter else None,
    }
    return sha256(key)[:32]


def label(arm: ArmPlan) -> str:
    """The arm as asked for: without the tiles that are tuned, and without its source's name."""
    options = {
        key: "REV" if key == "source" else value
        for key, value in arm.options.items()
        if not key.startswith("tile_")
    }
    return _short(f"{arm.name}:" + "+".join(f"{key}={options[key]}" for key in sorted(options)))


def moment(text: str) -> datetime | None:
    """A time in UTC, without its zone, as the database keeps it; None for what is none."""
    try:
        found = datetime.fromisoformat(text)
        return None if found.utcoffset() is None else found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _middle(level: Level | None) -> float | None:
    return None if level is None else _exp(level.log)


def _edge(level: Level | None, sign: int) -> float | None:
    if level is None or level.part is None:
        return None
    half = t_quantile(level.part.df) * math.sqrt(level.part.variance)
    return _exp(level.log + sign * half)


def _exp(log: float) -> float:
    return math.exp(max(-700.0, min(log, 700.0)))


def _short(text: str) -> str:
    """What the database can keep of a stranger's text."""
    return text[:_LONGEST].replace("\0", "�")
