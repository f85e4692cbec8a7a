"""Receipt → text for a terminal or a log."""

import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driver.arms import TILE_OF
from driver.doctor import DoctorReport
from driver.kernels.case import sizes_label
from driver.records import (
    Apart,
    ArmPlan,
    ArmSummary,
    Estimate,
    Gate,
    KernelReport,
    LadderPair,
    LadderReport,
    Profile,
    Receipt,
    Side,
    Slot,
)
from driver.tensors import executed_flops

_MARK = {"pass": "pass", "fail": "FAIL", "unknown": "unknown", "not-applicable": "n/a"}
_STYLE = {"pass": "green", "fail": "bold red", "unknown": "yellow", "not-applicable": "dim"}
_CHECK_STYLE = {"ok": "green", "missing": "bold red", "warning": "yellow", "unknown": "yellow"}
_VERDICT_STYLE = {"qualified": "bold green", "unqualified": "bold yellow", "failed": "bold red"}
_WIDE = 100  # columns from which quartiles are shown
_LEGEND = (
    "error/bound: largest error against float64 over its forward bound, at most 1. chunks: forks "
    "of one call / pieces of work in them. share: of the roofline around each sample, which is "
    "multiply-adds on registers for GFLOP/s, a triad over as much memory for GB/s."
)
_Cells = tuple[str, str, tuple[str | Text, ...], tuple[float, float] | None]
# Unicode's control, format, surrogate, private and unassigned characters and line separators.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def text(receipt: Receipt, width: int = 100, colour: bool = False) -> str:
    """The receipt as a readable page of text."""
    console = _console(width, colour)
    _page(console, receipt)
    return _text_of(console)


def svg(receipt: Receipt, width: int = 120) -> str:
    """The same page as a picture of a terminal, SVG."""
    console = Console(
        file=io.StringIO(), width=width, record=True, force_terminal=True, highlight=False,
        markup=False,
    )  # fmt: skip
    _page(console, receipt)
    # Without the web fonts that rich would fetch: the picture is one file.
    picture = console.export_svg(title="driver report")
    return re.sub(r"@font-face \{[^}]*\}\s*", "", picture)


def _page(console: Console, receipt: Receipt) -> None:
    plan, comparison = receipt.plan, receipt.comparison
    _line(console, f"{plan.preset.get('name')}: {plan.question}", "bold")
    _line(console, verdict_line(receipt), _VERDICT_STYLE[receipt.verdict.status])
    console.print()
    for arm in plan.arms:
        # With spaces, so that it wraps between options.
        name, _, options = arm.canonical.partition(":")
        _line(console, f"{arm.side}  {name}  {options.replace('+', ' ')}".rstrip())
        if arm.pinned:
            p = arm.pinned
            source = f"receipt {p.receipt_digest[:12]} ({p.side})"
            _line(console, f"   pinned from {source}: {', '.join(p.options)}")
        for line in _what_ran(receipt, arm.side):
            _line(console, f"   {line}")
    if receipt.environment.threads:
        _line(console, f"threads: {receipt.environment.threads.reason}")
    console.print()
    console.print(_arms_table(receipt))
    console.print()
    _line(console, _estimate_line(comparison.estimate, receipt))
    for line in _curve_lines(receipt):
        _line(console, line)
    console.print()
    console.print(_slots_table(receipt.slots))
    console.print()
    for arm in plan.arms:
        _profile_of(console, arm)
    console.print(_gates_table(receipt.gates))
    console.print()
    _line(console, verdict_line(receipt), _VERDICT_STYLE[receipt.verdict.status])
    _line(console, receipt.verdict.headline)


def verdict_line(receipt: Receipt) -> str:
    """`unqualified: software adapter; …`."""
    reasons = "; ".join(receipt.verdict.reasons)
    return f"{receipt.verdict.status}: {reasons}" if reasons else receipt.verdict.status


def curve_over_presets(rows: Sequence[tuple[str, int, Receipt | None]]) -> str:
    """One line per preset, small to large; a point that was not measured stays blank."""
    console = _console(100, False)
    table = Table(title="over presets", box=None, pad_edge=False)
    for heading in (
        "preset",
        "parameters",
        "A ms/step",
        "B ms/step",
        "A/B",
        "95% interval",
        "verdict",
    ):
        table.add_column(heading, justify="left" if heading in ("preset", "verdict") else "right")
    for name, parameters, receipt in rows:
        if receipt is None:
            _row(table, name, f"{parameters:,}", "", "", "", "", "")
            continue
        a, b = receipt.comparison.arms
        estimate = receipt.comparison.estimate
        _row(
            table, name, f"{parameters:,}", _number(a.median_step_ms), _number(b.median_step_ms),
            _number(estimate.ratio), _interval(estimate), receipt.verdict.status,
        )  # fmt: skip
    console.print(table)
    return _text_of(console)


def machine_checks(found: DoctorReport, width: int = 100, colour: bool = False) -> str:
    """What `driver doctor` found: a line per check, and what to do where something is missing."""
    console = _console(width, colour)
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "status", "found"):
        table.add_column(heading, overflow="fold")
    for check in found.checks:
        _row(table, check.name, Text(check.status, style=_CHECK_STYLE[check.status]), check.value)
        if check.remedy and check.status != "ok":
            _row(table, "", "", Text(f"→ {check.remedy}", style="bold"))
    console.print(table)
    return _text_of(console)


def kernels(found: KernelReport, width: int = 100, colour: bool = False) -> str:
    """What `driver kernels` measured: kernel by kernel a line per shape, the best tile marked."""
    console = _console(width, colour)
    _line(console, found.arm.replace(":", "  ", 1).replace("+", " "), "bold")
    load = _number(found.load_before.get("load_1min"))
    _line(console, f"{found.ran.get('threads')} thread(s), load {load or 'not known'}")
    console.print()
    if found.fork:
        fork, (low, high) = found.fork, found.fork.fork_us_quartiles
        words = f"a fork and join of {fork.threads} thread(s): {fork.fork_us:.3g} µs"
        times = f"{len(fork.samples_ms)} samples of {fork.forks_per_sample}"
        _line(console, f"{words} ({low:.3g}–{high:.3g}), {times}")
        for uneven in fork.uneven:
            slow = uneven.by_thread[uneven.slow_thread]
            _line(
                console,
                f"thread {uneven.slow_thread} {uneven.slowness} times slower than the others: it "
                f"ran {slow} of {uneven.chunks} chunks, they {sum(uneven.by_thread) - slow}",
            )
        return _text_of(console)
    wide = width >= _WIDE
    table = Table(box=None, pad_edge=False)
    for heading in ("kernel, shape", "tile", "chunks", "error/bound", "speed", "quartiles",
                    "share", ""):  # fmt: skip
        if wide or heading != "quartiles":
            left = heading in ("kernel, shape", "tile", "")
            table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    group = None
    for kernel, unit, cells, spread in [*_product_cells(found), *_operation_cells(found)]:
        lines = [cells]
        if kernel != group:
            lines.insert(0, (Text(kernel, style="bold"), "", "", "", unit, "", ""))
            group = kernel
        for line in lines:
            extra = [_spread(spread) if line is cells else ""] if wide else []
            _row(table, *line[:5], *extra, *line[5:])
    console.print(table)
    console.print()
    for reason in _kernel_failures(found):
        _line(console, f"FAIL: {reason}", "bold red")
    _line(console, _LEGEND)
    return _text_of(console)


def _product_cells(found: KernelReport) -> Iterable[_Cells]:
    """Kernel, unit, cells and quartiles of every product's line."""
    best: dict[tuple[object, ...], float] = {}
    for row in found.rows:
        key = (row.kernel.product, row.kernel.M, row.kernel.N, row.kernel.K)
        best[key] = max(best.get(key, 0.0), row.share or 0.0)
    for row in sorted(found.rows, key=lambda row: list(TILE_OF).index(row.kernel.product)):
        k = row.kernel
        first = row.share and row.share == best[k.product, k.M, k.N, k.K]
        cells = (
            f"  {k.M}×{k.N}×{k.K}", k.tile if k.kernel == "blocked" else k.kernel,
            _geometry(row.forks, row.chunks),
            "same bits" if row.same_bits else _number(row.error_over_bound), _speed(row.gflops),
            f"{row.share:.0%}" if row.share else "", _failed(row.reason) or "best" * bool(first),
        )  # fmt: skip
        yield k.product, "GFLOP/s", cells, row.gflops_quartiles


def _operation_cells(found: KernelReport) -> Iterable[_Cells]:
    """The same of every other operation's line."""
    for row in found.operations:
        cells = (
            f"  {sizes_label(row.sizes)}", "", _geometry(row.forks, row.chunks),
            f"{row.error_over_bound:.2g}", _speed(row.rate),
            f"{row.share:.0%}" if row.share else "", _failed(row.reason),
        )  # fmt: skip
        yield row.name, row.unit, cells, row.rate_quartiles


def _geometry(forks: int | None, chunks: int | None) -> str:
    return "" if forks is None else f"{forks}/{chunks}"


def _speed(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _spread(values: tuple[float, float] | None) -> str:
    return f"{values[0]:.3g}–{values[1]:.3g}" if values else ""


def _failed(reason: str | None) -> str | Text:
    return Text("FAIL", style="bold red") if reason else ""


def _kernel_failures(found: KernelReport) -> Iterable[str]:
    """What is wrong with each kernel that is."""
    for row in found.rows:
        if row.reason:
            k = row.kernel
            tile = k.tile if k.kernel == "blocked" else k.kernel
            yield f"{k.product} {k.M}×{k.N}×{k.K} {tile}: {row.reason}"
    for other in found.operations:
        if other.reason:
            yield f"{other.name} {sizes_label(other.sizes)}: {other.reason}"


def ladder(found: LadderReport, width: int = 100, colour: bool = False) -> str:
    """What `driver ladder` measured: a line per rung, then what lost or did not help."""
    console = _console(width, colour)
    name = found.preset.get("name")
    _line(
        console, f"{name}: {found.axis} of {found.arm.partition(':')[0]}, {found.meaning}", "bold"
    )
    usable = [rung for rung in found.rungs if rung.status == "ok"]
    same = set.intersection(*(set(rung.options.items()) for rung in usable)) if usable else set()
    shared = " ".join(f"{key}={value}" for key, value in sorted(same))
    _line(console, f"the same on every rung: {shared or 'nothing'}")
    for rung in usable:
        own = " ".join(f"{k}={v}" for k, v in sorted(set(rung.options.items()) - same))
        _line(console, f"  {rung.label}  {own}".rstrip())
    console.print()
    console.print(_rungs_table(found))
    if found.fastest or found.fastest_apart:
        _line(
            console,
            f"fastest: {found.fastest or 'unknown'} end to end, {found.fastest_apart or 'unknown'} "
            "in the products apart (by the gains above, one after another)",
        )
    for pair in found.pairs:
        if pair.apart.reason:
            _line(console, f"{pair.before} → {pair.after}: products apart: {pair.apart.reason}")
        if pair.claims and pair.reasons:
            reasons = "; ".join(pair.reasons)
            _line(console, f"{pair.before} → {pair.after}: {pair.verdict}: {reasons}")
    console.print()
    lost = ladder_losses(found)
    _line(console, "what lost or did not help:" + ("" if lost else " nothing"), "bold")
    for line in lost:
        _line(console, f"  {line}")
    console.print()
    _line(console, f"budget {found.budget_s:.0f} s. {found.budget_rule}", "dim")
    if found.interrupted:
        _line(console, "interrupted: pairs are missing", "bold yellow")
    return _text_of(console)


def ladder_losses(found: LadderReport) -> list[str]:
    """A sentence for every rung that was not shown to be faster than the one before it."""
    lines = [f"{r.label} does not run here: {r.reason}" for r in found.rungs if r.reason]
    for pair in found.pairs:
        step = f"{pair.before} → {pair.after}"
        if not pair.claims:
            lines.append(f"{step}: no claim: {'; '.join(pair.reasons)}")
            continue
        times = f"{_number(pair.ratio)} times as fast [{_pair_interval(pair)}]"
        apart = f", {_number(pair.apart.gain)} in its products" if pair.apart.gain else ""
        words = {"slower": "lost", "equivalent": "made no difference", "unsure": "no proven gain"}
        if pair.word in words:
            why = f" ({pair.ratio_reason})" if pair.ratio_reason else ""
            lines.append(f"{step}: {words[pair.word]}: {times}{apart}{why}")
        elif pair.apart.gain and pair.apart.gain < 1:
            lines.append(f"{step}: lost in its products alone: {times}{apart}")
    return lines


def _rungs_table(found: LadderReport) -> Table:
    """Every rung beside what the one before it took in the same run."""
    table = Table(box=None, pad_edge=False)
    for heading in (found.axis, "ms/step", "before", "times as fast", "95% interval", "",
                    "products apart", "verdict"):  # fmt: skip
        left = heading in (found.axis, "", "verdict")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    pairs = {pair.after: pair for pair in found.pairs}
    first = next((pair for pair in found.pairs), None)
    for rung in found.rungs:
        pair = pairs.get(rung.label)
        if rung.status == "unsupported":
            _row(table, rung.label, "", "", "", "", Text("unsupported", style="yellow"), "", "")
        elif pair is None:
            ms = first.before_step_ms if first and first.before == rung.label else None
            _row(table, rung.label, _number(ms), "", "", "", "", "", "")
        else:
            _row(
                table, rung.label, _number(pair.after_step_ms), _number(pair.before_step_ms),
                _number(pair.ratio) if pair.claims else "no claim",
                _pair_interval(pair) if pair.claims else "",
                (pair.word or "") if pair.claims else "", _apart(pair.apart),
                Text(pair.verdict) if pair.verdict else "no receipt",
            )  # fmt: skip
    return table


def _pair_interval(pair: LadderPair) -> str:
    if pair.low is None or pair.high is None:
        return "no interval"
    return f"{pair.low:.4g} to {pair.high:.4g}"


def _apart(apart: Apart) -> str:
    """The gain, and that of each pass alone, which shows what it is worth."""
    if apart.gain is None:
        return "–"
    return f"{apart.gain:.4g} ({', '.join(f'{gain:.3g}' for gain in apart.pass_gains)})"


def _console(width: int, colour: bool) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=colour, highlight=False, markup=False,
        no_color=not colour,
    )  # fmt: skip


def _visible(text: str) -> str:
    """Without what steers a terminal or hides: receipts and pages are written by strangers."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNSEEN else c
        for c in text
    )


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(_visible(text), style=style))


def _row(table: Table, *cells: str | Text) -> None:
    # In a cell a message may keep its line breaks: they cannot look like a line of the report.
    table.add_row(
        *(
            "\n".join(map(_visible, cell.split("\n")))
            if isinstance(cell, str)
            else Text(_visible(cell.plain), style=cell.style)
            for cell in cells
        )
    )


def _text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())


def _arms_table(receipt: Receipt) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in (
        "",
        "arm",
        "ms/step",
        "quartiles",
        "GFLOP/s",
        "of roofline",
        "windows",
        "first step ms",
        "compile ms",
    ):
        table.add_column(
            heading, justify="left" if heading in ("", "arm") else "right", overflow="fold"
        )
    for summary in receipt.comparison.arms:
        mine = [slot for slot in receipt.slots if slot.side == summary.side]
        _row(
            table, summary.side, summary.arm.partition(":")[0], _number(summary.median_step_ms),
            _quartiles(summary),
            _number(summary.gflops), _share(receipt, summary), str(summary.windows),
            _number(_first(slot.first_step_ms for slot in mine)),
            _number(_first(slot.compile_ms for slot in mine)),
        )  # fmt: skip
    return table


def _what_ran(receipt: Receipt, side: Side) -> Iterator[str]:
    """Module and memory in plain words, as the arm's last slot with any told them."""
    slot = next((s for s in reversed(receipt.slots) if s.side == side and s.memory), None)
    if slot is None:
        return
    ran, memory = slot.ran, slot.memory
    if "simd" in ran:
        simd = {"scalar": "without SIMD", "simd128": "SIMD", "relaxed": "relaxed SIMD"}
        level = simd.get(str(ran["simd"]), str(ran["simd"]))
        threads = "1 thread" if ran.get("threads") == 1 else f"{ran.get('threads')} threads"
        bits = {"i32": "32-bit", "i64": "64-bit"}.get(str(memory.get("address_type")), "unknown")
        kind = "shared " if memory.get("shared") is True else "unshared "
        yield f"ran {level}, {threads}, {bits} {kind}memory"
    sizes = [
        f"{_mebibytes(memory[key])} {words}"
        for key, words in (
            ("initial_bytes", "at first"),
            ("maximum_bytes", "at most"),
            ("final_bytes", "at the end"),
        )
        if key in memory
    ]
    growths = f", {memory['growths']} growths" if "growths" in memory else ""
    if sizes:
        yield f"memory {', '.join(sizes)}{growths}"


def _mebibytes(value: object) -> str:
    """A size from a page, which may have said anything."""
    return f"{value / 2**20:.1f} MiB" if isinstance(value, int | float) else repr(value)


def _share(receipt: Receipt, summary: ArmSummary) -> str:
    """Executed FLOPs per second over the all-thread roofline of the arm."""
    roofline = next(arm.roofline for arm in receipt.plan.arms if arm.side == summary.side)
    peak = median(roofline.all_gflops) if roofline and roofline.all_gflops else 0.0
    if not peak > 0 or not summary.median_step_ms:
        return ""
    reached = executed_flops(receipt.plan.config) / summary.median_step_ms / 1e6
    return f"{reached / peak:.0%}"


def _estimate_line(estimate: Estimate, receipt: Receipt) -> str:
    if estimate.ratio is None:
        return f"no ratio: {estimate.reason}"
    interval = _interval(estimate) or "no interval"
    words = {
        "faster": "B is faster than A",
        "slower": "B is slower than A",
        "equivalent": f"A and B are equivalent within {receipt.plan.margin:.0%}",
        "unsure": "unsure which is faster",
    }[estimate.word]
    why = f" ({estimate.reason})" if estimate.reason else ""
    return (
        f"time of A / time of B = {estimate.ratio:.4g}  [{interval}]  {estimate.blocks} block(s): "
        f"{words}{why}"
    )


def _curve_lines(receipt: Receipt) -> list[str]:
    comparison, lines = receipt.comparison, []
    for arm in receipt.plan.arms:
        error = comparison.curve_errors.get(arm.side)
        if error and error.loss is not None:
            lines.append(
                f"{arm.side} against the float64 reference over {error.steps} steps: loss "
                f"{error.loss:.1e}, gradient norm {_small(error.grad_norm)} relative"
            )
    drift = comparison.drift
    if drift.loss is not None:
        lines.append(f"A against B over {drift.steps} common steps: loss {drift.loss:.1e} relative")
    return lines


def _slots_table(slots: Sequence[Slot]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in (
        "slot",
        "block",
        "side",
        "status",
        "ms/step by window",
        "last loss",
        "sentinel ms",
    ):
        left = heading in ("side", "status", "ms/step by window")
        table.add_column(heading, justify="left" if left else "right")
    for slot in slots:
        windows = " ".join(_number(ms / max(1, slot.steps_per_window)) for ms in slot.windows_ms)
        status: str = slot.status
        if slot.failure:
            status += f" ({slot.failure.kind}: {slot.failure.message})"
        _row(
            table, str(slot.index), str(slot.block), slot.side, status, windows,
            f"{slot.losses[-1]:.4f}" if slot.losses else "",
            _number(min(slot.sentinel_ms) if slot.sentinel_ms else None),
        )  # fmt: skip
    return table


def _profile_of(console: Console, arm: ArmPlan) -> None:
    """Where a step's time goes, the longest first, or why that is not known; else nothing."""
    profile = arm.profile
    if profile:
        _line(console, f"profile of {arm.side} {arm.name}", "bold")
        console.print(_profile_table(profile))
        _line(console, _cost_line(profile))
    elif arm.profile_reason:
        _line(console, f"no profile of {arm.side} {arm.name}: {arm.profile_reason}")
    if profile or arm.profile_reason:
        console.print()


def _profile_table(profile: Profile) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("operation", "calls", "ms/step", "share", "GFLOP/s"):
        left = heading == "operation"
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for op in sorted(profile.ops, key=lambda op: -op.ms):
        _row(table, op.op, str(op.calls), _number(op.ms), _percent(op.share), _number(op.gflops))
    whole, outside = profile.wall_profiled_ms, profile.uncovered_ms
    share = outside / whole if whole else None
    _row(table, "outside of them", "", _number(outside), _percent(share), "")
    return table


def _cost_line(profile: Profile) -> str:
    cost, spread = profile.cost, profile.cost_range
    words = "not known" if cost is None else f"{cost - 1:+.1%} of a step"
    if spread:
        words += f" ({spread[0] - 1:+.1%} to {spread[1] - 1:+.1%} over {profile.rounds} round(s))"
    return (
        f"the profiler's own cost: {words}; {_number(profile.wall_ms)} ms/step without it, "
        f"{_number(profile.wall_profiled_ms)} with it, windows of {profile.samples.steps} step(s)"
    )


def _gates_table(gates: Sequence[Gate]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("gate", "class", "status", "reason"):
        table.add_column(heading, overflow="fold")
    for gate in gates:
        _row(
            table, gate.name, gate.gate_class, Text(_MARK[gate.status], style=_STYLE[gate.status]),
            gate.reason,
        )  # fmt: skip
    return table


def _quartiles(summary: ArmSummary) -> str:
    if summary.quartile1_step_ms is None or summary.quartile3_step_ms is None:
        return ""
    return f"{_number(summary.quartile1_step_ms)}–{_number(summary.quartile3_step_ms)}"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.4g} to {estimate.high:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _small(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1e}"


def _first(values: Iterable[float | None]) -> float | None:
    return next((v for v in values if v is not None), None)
