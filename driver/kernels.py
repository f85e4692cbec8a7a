"""`driver kernels`: single kernels checked against float64, then timed beside the roofline."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driver import machine, presets
from driver.arms import AUTO, TILE_OF, TILES, ArmSpec, canonical, resolve
from driver.browser import BrowserChoice, BrowserSession
from driver.errors import UsageError
from driver.jobs import kernel_op
from driver.prepare import probe
from driver.records import (
    ArmJob,
    ForkTimes,
    Kernel,
    KernelReport,
    KernelRow,
    KernelSamples,
    Op,
    Product,
)
from driver.server import JobServer
from driver.tensors import F32, products
from driver.workbench import Workbench, draw_inputs, rates, samples_of, shares

OPS = ("matmul", *TILE_OF, "fork")
UNIT = 2.0**-24  # float32's unit roundoff
LARGEST = 1 << 30  # floats of the operands together
Shape = tuple[Product, int, int, int]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Request:
    """What is to be run."""

    spec: ArmSpec
    op: str
    shapes: tuple[Shape, ...]
    samples: int = 15
    seed: int = 1


def parse_shapes(text: str, op: str) -> tuple[Shape, ...]:
    """`preset:large` or `MxNxK`, joined by commas → each product once. Raises UsageError.

    A preset stands for the products of its step, as their operands lie; MxNxK for all three.
    """
    found: dict[Shape, None] = {}
    for part in text.split(","):
        name, colon, preset = part.strip().partition(":")
        size = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,6})x([1-9]\d{0,6})", part.strip())
        if colon and name == "preset":
            for p in products(presets.load(preset).model):
                found[p.layout, p.M, p.N, p.K] = None
        elif size:
            M, N, K = (int(n) for n in size.groups())
            for product in TILE_OF:
                found[product, M, N, K] = None
        else:
            raise UsageError(f"--shapes {part!r}: write preset:NAME or MxNxK, say 1536x768x192")
    for _, M, N, K in found:
        if max(M, N, K) > 1 << 20 or M * K + K * N + M * N > LARGEST:
            raise UsageError(f"--shapes {M}x{N}x{K}: too large for one kernel's memory here")
    return tuple(shape for shape in found if op in ("matmul", shape[0]))


async def run(request: Request, choice: BrowserChoice, say: Callable[[str], None]) -> KernelReport:
    """Checks every kernel, then times those that are right. Raises Unsupported and SlotError."""
    before = machine.machine_state()
    spec = request.spec
    async with JobServer() as server, BrowserSession(choice) as session:
        if request.op != "fork" and spec.options.get("threads") == AUTO:
            spec = spec.model_copy(update={"options": spec.options | {"threads": 1}})
        arm = resolve(spec, (await probe(session, server, [spec])).features)
        kernels = [] if request.op == "fork" else variants(request.shapes, spec, arm)
        bench = Workbench(session, server, deadline_s=120 + 8 * len(kernels))
        rows: list[KernelRow] = []
        fork = None
        if request.op == "fork":
            say(f"forks on {arm.options['threads']} threads")
            outcome = await bench.ask("forks", arm, [Op(op="fork", count=request.samples)])
            fork = fork_times(outcome.ops[-1].detail)
        else:
            inputs = draw_inputs(kernels, request.seed)
            say(f"checking {len(kernels)} kernels against float64")
            outcome = await bench.ask("check", arm, _checks(kernels), inputs)
            digests = [str(op.detail["output_sha256"]) for op in outcome.ops[1:]]
            rows = judge(kernels, digests, outcome.blobs, inputs)
            right = [row.kernel for row in rows if row.status == "ok"]
            if right:
                say(f"timing {len(right)} kernels")
                program = [kernel_op(kernel, request.samples) for kernel in right]
                outcome = await bench.ask("time", arm, program, inputs)
                given = {op.kernel: result.detail for op, result in
                         zip(program, outcome.ops[1:], strict=True)}  # fmt: skip
                rows = [
                    timed(row, digest, given.get(row.kernel))
                    for row, digest in zip(rows, digests, strict=True)
                ]
        facts = session.facts.model_dump(mode="json")
    return KernelReport(
        arm=canonical(arm.name, arm.options),
        op=request.op,
        seed=request.seed,
        ran=outcome.result.ran if outcome.result else {},
        machine=machine.machine_facts().model_dump(mode="json"),
        load_before=before.model_dump(mode="json"),
        load_after=machine.machine_state().model_dump(mode="json"),
        browser=facts,
        rows=tuple(rows),
        fork=fork,
    )


def variants(shapes: Sequence[Shape], spec: ArmSpec, arm: ArmJob) -> list[Kernel]:
    """The kernel that the arm's options choose, with every tile where that was left open."""
    if not spec.is_wasm:
        raise UsageError(f"arm {spec.name} has no kernels to run apart; use wasm or wasm64")
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


def _checks(kernels: Sequence[Kernel]) -> list[Op]:
    """Outputs are posted once per product and shape; the other tiles must have the same bits."""
    return [
        kernel_op(kernel, label=f"c{index}" if first else None)
        for index, (kernel, first) in enumerate(zip(kernels, _firsts(kernels), strict=True))
    ]


def _firsts(kernels: Sequence[Kernel]) -> list[bool]:
    shapes = [(k.product, k.M, k.N, k.K) for k in kernels]
    return [shape not in shapes[:index] for index, shape in enumerate(shapes)]


def judge(
    kernels: Sequence[Kernel], digests: Sequence[str], blobs: dict[str, bytearray], inputs: F32
) -> list[KernelRow]:
    """Parity of every kernel, before any is timed."""
    rows: list[KernelRow] = []
    first = ""
    right = True
    for index, (kernel, is_first) in enumerate(zip(kernels, _firsts(kernels), strict=True)):
        error: float | None = None
        same: bool | None = None
        if is_first:
            got = np.frombuffer(blobs[f"c{index}"], "<f4").reshape(kernel.M, kernel.N)
            error = error_over_bound(kernel, inputs, got)
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


def error_over_bound(kernel: Kernel, inputs: F32, got: F32) -> float:
    """Largest |C − C64| over γ·|A||B|, the bound of any order of K multiply-adds.

    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.5. NaN and a
    difference where the bound is 0 give infinity.
    """
    M, N, K = kernel.M, kernel.N, kernel.K
    left = inputs[: M * K].astype(np.float64)
    right = inputs[M * K : M * K + K * N].astype(np.float64)
    A = left.reshape(K, M).T if kernel.product == "mm_db" else left.reshape(M, K)
    B = right.reshape(N, K).T if kernel.product == "mm_da" else right.reshape(K, N)
    gamma = K * UNIT / (1 - K * UNIT)
    bound: F64 = gamma * (np.abs(A) @ np.abs(B))
    error: F64 = np.abs(got.astype(np.float64) - A @ B)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return float(np.nan_to_num(ratio, nan=np.inf, posinf=np.inf).max())


def timed(row: KernelRow, digest: str, detail: dict[str, object] | None) -> KernelRow:
    """The row with its samples; what was timed must have given what was checked."""
    if detail is None:
        return row
    if detail["output_sha256"] != digest:
        reason = "it gave other bits when it was timed than when it was checked"
        return row.model_copy(update={"status": "FAIL", "reason": reason})
    samples: KernelSamples = samples_of(detail)
    speed, share = rates(row.flops, samples), shares(row.flops, samples)
    return row.model_copy(
        update={
            "gflops": float(np.median(speed)),
            "gflops_quartiles": quartiles(speed),
            "share": float(np.median(share)),
            "share_quartiles": quartiles(share),
            "samples": samples,
        }
    )


def fork_times(detail: dict[str, object]) -> ForkTimes:
    """Times of one fork and join from a page's samples of many."""
    raw = {key: detail[key] for key in ("threads", "forks_per_sample", "samples_ms", "uneven")}
    each = np.asarray(raw["samples_ms"], np.float64) * 1e3 / float(str(raw["forks_per_sample"]))
    return ForkTimes.model_validate(
        raw | {"fork_us": float(np.median(each)), "fork_us_quartiles": quartiles(each.tolist())}
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, linear between neighbours."""
    low, high = np.quantile(np.asarray(values, np.float64), (0.25, 0.75))
    return float(low), float(high)
