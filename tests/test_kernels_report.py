"""What `driver kernels` prints: which tile is marked, and when shares mean little."""

from driver import report
from driver.arms import TILES
from driver.records import Kernel, KernelReport, KernelRow


def a_report(*rows: tuple[float | None, float | None], **more: object) -> KernelReport:
    """One product; a row for each (GFLOP/s, share), each of another tile."""
    return KernelReport.model_validate(
        {
            "arm": "wasm", "op": "mm_fwd", "seed": 1, "ran": {"threads": 1}, "machine": {},
            "load_before": {"load_1min": 3.5}, "load_after": {}, "browser": {},
            "rows": [a_row(tile, *row) for tile, row in zip(TILES["relaxed"], rows, strict=False)],
        }
        | more
    )  # fmt: skip


def a_row(tile: str, gflops: float | None, share: float | None) -> KernelRow:
    return KernelRow(
        kernel=Kernel(product="mm_fwd", kernel="blocked", tile=tile, M=8, N=8, K=8),
        status="FAIL" if gflops is None else "ok", reason="wrong" if gflops is None else None,
        error_over_bound=0.5, same_bits=None, flops=1024, gflops=gflops, share=share,
    )  # fmt: skip


def marked(found: KernelReport) -> list[str]:
    """Tiles of the lines that end with the mark."""
    lines = [line.split() for line in report.kernels(found, 120).splitlines()]
    return [line[1] for line in lines if line and line[-1] == "fastest" and len(line) > 3]


def test_the_fastest_by_speed_is_marked_whatever_the_shares() -> None:
    assert marked(a_report((7.59, 0.35), (12.7, 0.23), (9.0, 0.2))) == ["5x8"]


def test_one_tile_alone_is_not_the_fastest() -> None:
    assert marked(a_report((7.59, 0.35))) == []
    assert marked(a_report((7.59, 0.35), (None, None))) == []


def test_disturbed_rooflines_are_said() -> None:
    page = report.kernels(a_report((7.59, 7.0), (12.7, 0.23)), 200)
    assert "shares up to 700%: the roofline's samples were disturbed (load 3.5 before" in page
    assert "disturbed" not in report.kernels(a_report((7.59, 1.05), (12.7, 0.23)), 200)
    assert "disturbed" not in report.kernels(a_report((None, None)), 200)
