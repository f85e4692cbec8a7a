"""What `driver kernels` found, as text."""

from collections.abc import Iterable

from rich.text import Text

from driver.arms import TILE_OF
from driver.kernels.case import sizes_label
from driver.records import (
    Kernel,
    KernelReport,
)
from driver.report.terminal import TextTable, new_console, number_text, text_of, write_line
from driver.wording import counted

_WIDE = 100  # columns from which quartiles are shown
_LEGEND = (
    "error/bound: largest error against float64 over its forward bound, at most 1. chunks: forks "
    "of one call / pieces of work in them. share: of the roofline around each sample, which is "
    "multiply-adds on registers for GFLOP/s, a triad over as much memory for GB/s. fastest: by the "
    "median speed."
)
_DISTURBED = 1.05  # a share that no kernel reaches by itself
_Cells = tuple[str, str, tuple[str | Text, ...], tuple[float, float] | None]


def kernels(found: KernelReport, width: int = 100, colour: bool = False) -> str:
    """What `driver kernels` measured: kernel by kernel a line per shape, the fastest marked."""
    console = new_console(width, colour)
    write_line(console, found.arm.replace(":", "  ", 1).replace("+", " "), "bold")
    load = number_text(found.load_before.get("load_1min"))
    where = counted(found.ran["threads"], "thread") if "threads" in found.ran else "one queue"
    write_line(console, f"{where}, load {load or 'not known'}")
    console.print()
    if found.fork:
        fork, (low, high) = found.fork, found.fork.fork_us_quartiles
        words = f"a fork and join of {counted(fork.threads, 'thread')}: {fork.fork_us:.3g} µs"
        times = f"{len(fork.samples_ms)} samples of {fork.forks_per_sample}"
        write_line(console, f"{words} ({low:.3g}–{high:.3g}), {times}")
        for uneven in fork.uneven:
            slow = uneven.by_thread[uneven.slow_thread]
            write_line(
                console,
                f"thread {uneven.slow_thread} {uneven.slowness} times slower than the others: it "
                f"ran {slow} of {uneven.chunks} chunks, they {sum(uneven.by_thread) - slow}",
            )
        return text_of(console)
    wide = width >= _WIDE
    spread = ("quartiles",) if wide else ()
    headings = ("kernel, shape", "tile", "chunks", "error/bound", "speed", *spread, "share", "")
    table = TextTable(headings, ("kernel, shape", "tile", ""), head=2)
    group = None
    for kernel, unit, cells, quartiles in [*_product_cells(found), *_operation_cells(found)]:
        lines = [cells]
        if kernel != group:
            lines.insert(0, (Text(kernel, style="bold"), "", "", "", unit, "", ""))
            group = kernel
        for line in lines:
            extra = [_spread(quartiles) if line is cells else ""] if wide else []
            table.add(*line[:5], *extra, *line[5:])
    console.print(table)
    console.print()
    for reason in _kernel_failures(found):
        write_line(console, f"FAIL: {reason}", "bold red")
    if best := _best_line(found):
        write_line(console, best)
    if disturbed := _disturbed_line(found):
        write_line(console, disturbed, "yellow")
    write_line(console, _LEGEND)
    return text_of(console)


def _product_cells(found: KernelReport) -> Iterable[_Cells]:
    """Kernel, unit, cells and quartiles of every product's line."""
    speeds: dict[tuple[object, ...], list[float]] = {}
    for row in found.rows:
        key = (row.kernel.product, row.kernel.M, row.kernel.N, row.kernel.K)
        speeds.setdefault(key, []).extend([row.gflops] if row.gflops else [])
    for row in sorted(found.rows, key=lambda row: list(TILE_OF).index(row.kernel.product)):
        k = row.kernel
        rivals = speeds[k.product, k.M, k.N, k.K]
        fastest = len(rivals) > 1 and row.gflops == max(rivals)
        cells = (
            f"  {k.M}×{k.N}×{k.K}", _words(k),
            _geometry(row.forks, row.chunks),
            "same bits" if row.same_bits else number_text(row.error_over_bound), _speed(row.gflops),
            f"{row.share:.0%}" if row.share else "", _failed(row.reason) or "fastest" * fastest,
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


def _words(kernel: Kernel) -> str:
    """The tile of the blocked kernel, on a GPU with workgroup and parts, or another's name."""
    return kernel.manner if kernel.kernel == "blocked" else kernel.kernel


def _best_line(found: KernelReport) -> str | None:
    """The fastest product of the run beside the fastest plain one of the same run."""
    timed = [row for row in found.rows if row.gflops]
    plain = [row for row in timed if row.kernel.kernel == "naive"]
    if not plain or len(plain) == len(timed):
        return None
    best, base = (max(rows, key=lambda row: row.gflops or 0) for rows in (timed, plain))
    k = best.kernel
    times = (best.gflops or 0) / (base.gflops or 1)
    return (
        f"fastest: {k.product} {k.M}×{k.N}×{k.K} {_words(k)}, {_speed(best.gflops)} GFLOP/s, "
        f"{times:.1f} times the fastest naive one"
    )


def _disturbed_line(found: KernelReport) -> str | None:
    """That the roofline was slower than a kernel, which only other work on the machine explains."""
    shares = [row.share or 0.0 for row in found.rows]
    shares += [row.share or 0.0 for row in found.operations]
    if max(shares, default=0.0) <= _DISTURBED:
        return None
    loads = [number_text(load.get("load_1min")) for load in (found.load_before, found.load_after)]
    return (
        f"shares up to {max(shares):.0%}: the roofline's samples were disturbed (load "
        f"{loads[0] or 'not known'} before, {loads[1] or 'not known'} after), so shares mean little"
    )


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
            yield f"{k.product} {k.M}×{k.N}×{k.K} {_words(k)}: {row.reason}"
    for other in found.operations:
        if other.reason:
            yield f"{other.name} {sizes_label(other.sizes)}: {other.reason}"
