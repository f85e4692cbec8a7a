"""An arm's kernels asked apart from its step: the roofline, single products, tuning."""

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from driver.arms import AUTO, GPU_TILES, SPLITS, TILE_OF, TILES, ArmSpec, split_of
from driver.browser import Session
from driver.draws import normals
from driver.errors import SlotError
from driver.jobs import NO_MODEL, JobMaker, kernel_op, open_op, roofline_op
from driver.measure import JobOutcome, expect_result, run_job
from driver.parity import half_product_error, product_error
from driver.records import ArmJob, Kernel, KernelSamples, ModelConfig, Op, Product, Roofline
from driver.server import JobServer
from driver.tensors import F32, StepProduct, products

Key = TypeVar("Key")
ROOFLINE_SAMPLES = 9
TUNING_SAMPLES = 3
# Another tile than the default must be faster by this much, or noise would choose.
WORTHWHILE = 0.02
# Workgroups of 64 invocations that a large GPU has in work at the same time: about 130 processors
# with eight each. WebGPU tells no number of processors.
GPU_AT_ONCE = 1024
# A part's product is written and read once more by the pass that adds: 8 bytes an element. At this
# depth that stands against 128 FLOPs an element, about what a GPU does meanwhile.
LEAST_DEPTH = 64


class Workbench:
    """Asks one page per question; a job there has no model, so its memory is the kernels' own."""

    def __init__(self, session: Session, server: JobServer, deadline_s: float) -> None:
        self._session = session
        self._server = server
        self._maker = JobMaker(server, NO_MODEL)
        self._deadline_s = deadline_s

    async def ask(
        self,
        name: str,
        arm: ArmJob,
        program: Sequence[Op],
        inputs: F32 | None = None,
        assets: Mapping[str, bytes] = MappingProxyType({}),
    ) -> JobOutcome:
        """Runs a program after opening the arm. Raises Unsupported and SlotError.

        `inputs` are the products', `assets` what operations name.
        """
        job = self._maker.job(name, arm, {}, None, [open_op(), *program])
        given = dict(assets)
        if inputs is not None:
            given["inputs"] = inputs.astype("<f4").tobytes()
        urls = {key: self._server.put(f"{key}.bin", data) for key, data in given.items()}
        job = job.model_copy(update={"assets": job.assets | urls})
        outcome = await run_job(self._session, self._server, job, deadline_s=self._deadline_s)
        for url in urls.values():
            self._server.drop(url)
        return expect_result(outcome, f"arm {arm.name} failed on the workbench", arm.name)

    async def roofline(self, name: str, arm: ArmJob) -> Roofline | None:
        """What the arm could reach at most, null where it cannot be asked."""
        outcome = await self.ask(name, arm, [roofline_op(ROOFLINE_SAMPLES)])
        found = outcome.ops[-1].detail["roofline"]
        return Roofline.model_validate(found) if found else None

    async def tune(self, name: str, arm: ArmJob, spec: ArmSpec, config: ModelConfig) -> ArmJob:
        """The arm with the fastest tile for each blocked product whose tile was left open.

        A tile cannot change a number, only the time.
        """
        open_products = [
            option for option, tile in TILE_OF.items()
            if spec.options[tile] == AUTO and arm.options[option] == "blocked"
        ]  # fmt: skip
        work = [product for product in products(config) if product.option in open_products]
        tiles = TILES[str(arm.options["simd"])]
        if not work:
            return arm
        program = [
            kernel_op(kernel_of(product, "blocked", tile), TUNING_SAMPLES, alone=True)
            for product in work
            for tile in tiles
        ]
        outcome = await self.ask(name, arm, program, draw_inputs([op.kernel for op in program], 0))
        # The best sample: what disturbs a machine only adds time.
        cost = {(option, tile): 0.0 for option in open_products for tile in tiles}
        results = iter(outcome.ops[1:])
        for product in work:
            for tile in tiles:
                best = max(rates(product.flops, samples_of(next(results).detail)))
                cost[product.option, tile] += product.count * product.flops / best
        chosen = {
            TILE_OF[option]: cheapest([(tile, cost[option, tile]) for tile in tiles])
            for option in open_products
        }
        return arm.model_copy(update={"options": arm.options | chosen})


def cheapest(costs: Sequence[tuple[Key, float]]) -> Key:
    """The first unless another costs less by what is worth a change."""
    best = min(costs, key=lambda one: one[1])
    return best[0] if best[1] < costs[0][1] * (1 - WORTHWHILE) else costs[0][0]


def gpu_kernels(
    spec: ArmSpec,
    arm: ArmJob,
    available: Sequence[str],
    option: Product,
    layout: Product,
    sizes: tuple[int, int, int],
    open_tiles: Sequence[str] = GPU_TILES,
) -> list[Kernel]:
    """The kernels by which a GPU may run a product M,N,K: each choice that the arm leaves open.

    The tile of the blocked variant is among them. The workgroup is not, as it is one for all
    products, nor is a cut of the depth (`in_parts`).
    """
    M, N, K = sizes
    chosen = str(arm.options[option]), str(arm.options[TILE_OF[option]])
    names = available if spec.options[option] == AUTO else chosen[:1]
    tiles = open_tiles if spec.options[TILE_OF[option]] == AUTO else chosen[1:]
    pairs = [
        (name, tile) for name in names for tile in (tiles if name == "blocked" else chosen[1:])
    ]
    # What runs when nothing is measured comes first.
    pairs.sort(key=lambda pair: pair != chosen)
    return [
        Kernel.model_validate(
            {"product": layout, "kernel": name, "tile": tile,
             "workgroup": str(arm.options["workgroup"]), "M": M, "N": N, "K": K,
             "split": split_of(arm.options, option, name)}
        )
        for name, tile in pairs
    ]  # fmt: skip


def at_once(features: Mapping[str, Any]) -> int:
    """About how many workgroups an adapter has in work at the same time.

    A program's are those of the machine's cores; a GPU does not say.
    """
    program = (features.get("webgpu") or {}).get("is_fallback") is True
    return int(features.get("usable_threads") or 1) if program else GPU_AT_ONCE


def in_parts(kernel: Kernel, most: int) -> list[Kernel]:
    """The blocked product Aᵀ·dC with its depth cut wherever that can win: half as many parts leave
    some of `most` workgroups at the same time idle, and each part is deep enough."""
    whole = gpu_workgroups(kernel)
    worth = [
        split for split in map(int, SPLITS[1:])
        if whole * split // 2 < most and split * LEAST_DEPTH <= kernel.K
    ]  # fmt: skip
    return [kernel.model_copy(update={"split": split}) for split in worth]


def gpu_workgroups(kernel: Kernel) -> int:
    """Workgroups of a blocked product, for each part of its depth."""
    (tall, wide), (across, down) = _pair(kernel.tile), _pair(kernel.workgroup)
    return math.ceil(kernel.M / (tall * down)) * math.ceil(kernel.N / (wide * across))


def _pair(text: str | None) -> tuple[int, int]:
    first, _, second = str(text).partition("x")
    return int(first), int(second)


def kernel_of(
    product: StepProduct, kernel: str, tile: str, workgroup: str | None = None, split: int = 1
) -> Kernel:
    """A step's product as the page runs it."""
    return Kernel.model_validate(
        {"product": product.layout, "kernel": kernel, "tile": tile, "workgroup": workgroup,
         "M": product.M, "N": product.N, "K": product.K, "split": split}
    )  # fmt: skip


def error_over_bound(kernel: Kernel, inputs: F32, got: F32, f16: str = "off") -> float:
    """Largest error over its bound of a product (M,N) that the page made of `inputs`.

    Where it reads halves (`f16`), the exact product is that of the right side's halves; `compute`
    has a bound of its own.
    """
    M, N, K = kernel.M, kernel.N, kernel.K
    left = inputs[: M * K].astype(np.float64)
    right = inputs[M * K : M * K + K * N].astype(np.float64)
    a = left.reshape(K, M).T if kernel.product == "mm_db" else left.reshape(M, K)
    b = right.reshape(N, K).T if kernel.product == "mm_da" else right.reshape(K, N)
    if f16 != "off":
        b = b.astype(np.float16).astype(np.float64)
    of = half_product_error if f16 == "compute" else product_error
    return of(a, b, got.astype(np.float64))


def draw_inputs(kernels: Sequence[Kernel | None], seed: int) -> F32:
    """Normals for the largest of the kernels: A is the first M·K of them, B the K·N after it."""
    most = max(k.M * k.K + k.K * k.N for k in kernels if k)
    return normals(np.random.Philox(key=seed), most).astype(np.float32)


def samples_of(detail: dict[str, object]) -> KernelSamples:
    """The samples in what a kernel instruction gave."""
    return KernelSamples.model_validate(
        {key: value for key, value in detail.items() if key in KernelSamples.model_fields}
    )


def rates(flops: int, samples: KernelSamples) -> list[float]:
    """Each sample in GFLOP/s. Raises SlotError as `speeds` does."""
    return speeds(flops * samples.products_per_sample, samples.samples_ms)


def speeds(work: float, samples_ms: Sequence[float]) -> list[float]:
    """Samples of `work` floating-point operations or bytes each, in 1e9/s.

    Raises SlotError where a sample took no time.
    """
    if min(samples_ms) <= 0:
        raise SlotError(
            f"a sample took {min(samples_ms):g} ms by the page's clock, which is too coarse or was "
            "set back meanwhile; run again"
        )
    return [work / ms / 1e6 for ms in samples_ms]


def over_roofline(speeds: Sequence[float], tops: Sequence[float]) -> list[float]:
    """Each speed over the mean of the two figures around it: tops[i] before it, [i + 1] after."""
    around = [(before + after) / 2 for before, after in itertools.pairwise(tops)]
    return [speed / top for speed, top in zip(speeds, around, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, linear between neighbours."""
    low, high = np.quantile(np.asarray(values, np.float64), (0.25, 0.75))
    return float(low), float(high)
