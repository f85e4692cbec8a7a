"""The products of a step: which kernels and tiles, right or not, and how fast."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from driver.arms import AUTO, TILE_OF, TILES, ArmSpec, Value, gpu_variants, halves_of
from driver.errors import UsageError
from driver.jobs import kernel_op
from driver.kernels.shapes import Shape
from driver.kernels.timing import figures, refused
from driver.records import ArmJob, Kernel, KernelRow, KernelSamples, Op
from driver.tensors import F32
from driver.workbench import (
    at_once,
    error_over_bound,
    gpu_kernels,
    in_parts,
    rates,
    samples_of,
)


def variants(
    shapes: Sequence[Shape], spec: ArmSpec, arm: ArmJob, features: Mapping[str, Any]
) -> list[Kernel]:
    """The kernels that the arm's options choose; every one and every tile that was left open.

    On a GPU (`features`: the page's) every variant that it offers, and cuts that can win.
    """
    if spec.name == "webgpu":
        return [
            choice
            for product, M, N, K in shapes
            for kernel in gpu_kernels(
                spec, arm, gpu_variants(features), product, product, (M, N, K)
            )
            for choice in (kernel, *_cuts(kernel, spec, features))
        ]
    if not spec.is_wasm:
        raise UsageError(f"arm {spec.name} has no kernels to run apart; use wasm, wasm64 or webgpu")
    found = []
    for product, M, N, K in shapes:
        kernel, option = arm.options[product], TILE_OF[product]
        every = kernel == "blocked" and spec.options[option] == AUTO
        tiles = TILES[str(arm.options["simd"])] if every else (str(arm.options[option]),)
        found += [
            Kernel.model_validate(
                {"product": product, "kernel": kernel, "tile": tile, "M": M, "N": N, "K": K}
            )
            for tile in tiles
        ]
    return found


def _cuts(kernel: Kernel, spec: ArmSpec, features: Mapping[str, Any]) -> list[Kernel]:
    """The same product with its depth cut, where that is left open."""
    can = (kernel.product, kernel.kernel) == ("mm_db", "blocked")
    return in_parts(kernel, at_once(features)) if can and spec.options["split_db"] == AUTO else []


def checks(kernels: Sequence[Kernel], same_sums: bool = True) -> list[Op]:
    """Outputs are posted once per product and shape; the other tiles must have the same bits.

    Where kernels sum in different orders, as on a GPU, each is posted.
    """
    return [
        kernel_op(kernel, label=f"c{index}" if first else None)
        for index, (kernel, first) in enumerate(
            zip(kernels, _firsts(kernels, same_sums), strict=True)
        )
    ]


def _firsts(kernels: Sequence[Kernel], same_sums: bool) -> list[bool]:
    shapes = [(k.product, k.M, k.N, k.K) for k in kernels]
    return [not same_sums or shape not in shapes[:index] for index, shape in enumerate(shapes)]


def judge(
    kernels: Sequence[Kernel],
    digests: Sequence[str],
    blobs: dict[str, bytearray],
    inputs: F32,
    same_sums: bool = True,
    go_on: Callable[[], None] = lambda: None,
    options: Mapping[str, Value] = MappingProxyType({}),
) -> list[KernelRow]:
    """Parity of every kernel, before any is timed. `go_on` is called before each and may raise.

    `options` are the arm's: which products use halves.
    """
    rows: list[KernelRow] = []
    first = ""
    right = True
    for index, (kernel, is_first) in enumerate(
        zip(kernels, _firsts(kernels, same_sums), strict=True)
    ):
        go_on()
        error: float | None = None
        same: bool | None = None
        if is_first:
            got = np.frombuffer(blobs[f"c{index}"], "<f4").reshape(kernel.M, kernel.N)
            error = error_over_bound(kernel, inputs, got, halves_of(options, kernel.product))
            first, right = digests[index], error <= 1
            reason = None if right else f"{error:.3g} times the bound"
        else:
            same = digests[index] == first
            reason = None if same else "other bits than the first tile's"
            reason = reason if right else "the first tile of this product and shape is wrong"
        rows.append(
            KernelRow(
                kernel=kernel,
                status="FAIL" if reason else "ok",
                reason=reason,
                error_over_bound=error,
                same_bits=same,
                flops=2 * kernel.M * kernel.N * kernel.K,
            )
        )
    return rows


def placed(row: KernelRow, detail: dict[str, Any], elsewhere: dict[str, Any]) -> KernelRow:
    """The row with its geometry; `elsewhere` is what it gave on another number of threads."""
    row = row.model_copy(update={"forks": detail["forks"], "chunks": detail["chunks"]})
    if row.reason is None and elsewhere["output_sha256"] != detail["output_sha256"]:
        reason = "other bits on another number of threads"
        return row.model_copy(update={"status": "FAIL", "reason": reason})
    return row


def timed(row: KernelRow, digest: str, detail: dict[str, Any] | None) -> KernelRow:
    """The row with its samples; what was timed must have given what was checked."""
    if detail is None:
        return row
    if failed := refused(row, digest, detail):
        return failed
    samples: KernelSamples = samples_of(detail)
    found = figures("gflops", rates(row.flops, samples), samples.roofline_gflops)
    return row.model_copy(update=found | {"samples": samples})
