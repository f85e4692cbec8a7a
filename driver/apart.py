"""The products of a step run apart from it: what a rung gains in them alone."""

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean

from driver.arms import GPU_TILES, TILE_OF, TILES, halves_of, split_of
from driver.errors import SlotError
from driver.jobs import kernel_op
from driver.records import Apart, ArmJob, Kernel, KernelSamples, ModelConfig, Product, RungProduct
from driver.tensors import StepProduct, products
from driver.workbench import Workbench, draw_inputs, kernel_of, samples_of

PASSES = 2  # the rungs in order, then in reverse, so that a steady change of the machine cancels
SAMPLES = 3  # of each kernel and pass
# What needs a page of its own: arm, instruction set, threads, precision.
Engine = tuple[str, str, int, str]


async def run_products(
    bench: Workbench,
    arms: Sequence[ArmJob],
    config: ModelConfig,
    on_page: Callable[[int], None],
    budget_s: float = math.inf,
) -> tuple[tuple[RungProduct, ...], ...]:
    """The step's products as each arm runs them; a kernel that arms share is run once a pass.

    `on_page` is told how many pages are done. There is one pass where two would take longer than
    `budget_s`. Raises SlotError.
    """
    work = products(config)
    engines: dict[Engine, ArmJob] = {}
    kernels: dict[Engine, dict[Kernel, None]] = {}
    for product in work:  # products outside: their kernels on different rungs run close together
        for arm in arms:
            engines.setdefault(engine_of(arm), arm)
            kernels.setdefault(engine_of(arm), {})[kernel_on(arm, product)] = None
    inputs = draw_inputs([kernel for found in kernels.values() for kernel in found], 0)

    samples: dict[tuple[Engine, Kernel], list[KernelSamples]] = {}
    digests: dict[tuple[Engine, Kernel], str] = {}
    done, began = 0, time.monotonic()
    for turn in range(PASSES):
        if turn and (time.monotonic() - began) * (turn + 1) / turn > budget_s:
            break
        way = 1 if turn % 2 == 0 else -1
        for engine, arm in list(engines.items())[::way]:
            order = list(kernels[engine])[::way]
            program = [kernel_op(kernel, SAMPLES) for kernel in order]
            outcome = await bench.ask(f"apart-{done}", arm, program, inputs)
            for kernel, result in zip(order, outcome.ops[1:], strict=True):
                samples.setdefault((engine, kernel), []).append(samples_of(result.detail))
                sha256 = str(result.detail["output_sha256"])
                if digests.setdefault((engine, kernel), sha256) != sha256:
                    raise SlotError(f"{kernel.product} gave other bits when it ran again")
            done += 1
            on_page(done)
    return tuple(
        tuple(
            RungProduct(
                option=product.option,
                count=product.count,
                kernel=kernel_on(arm, product),
                output_sha256=digests[engine_of(arm), kernel_on(arm, product)],
                passes=tuple(samples[engine_of(arm), kernel_on(arm, product)]),
            )
            for product in work
        )
        for arm in arms
    )


def page_count(arms: Sequence[ArmJob]) -> int:
    """Pages that `run_products` asks."""
    return PASSES * len({engine_of(arm) for arm in arms})


def engine_of(arm: ArmJob) -> Engine:
    """Kernels of one engine run in one page."""
    options = arm.options
    simd, f16 = str(options.get("simd", "")), str(options.get("f16", "off"))
    return arm.name, simd, int(options.get("threads", 1)), f16


def kernel_on(arm: ArmJob, product: StepProduct) -> Kernel:
    """The kernel that the arm runs a product by; a tile and a workgroup only where it has them."""
    kernel, tile = str(arm.options[product.option]), str(arm.options[TILE_OF[product.option]])
    if arm.name == "webgpu":
        tile = tile if kernel == "blocked" else GPU_TILES[0]
        fixed = kernel not in ("blocked", "naive")  # its workgroup is in its code
        workgroup = None if fixed else str(arm.options["workgroup"])
        split = split_of(arm.options, product.option, kernel)
        return kernel_of(product, kernel, tile, workgroup, split)
    return kernel_of(product, kernel, tile if kernel == "blocked" else tiles_of(arm)[0])


def gain(
    before: tuple[ArmJob, Sequence[RungProduct]], after: tuple[ArmJob, Sequence[RungProduct]]
) -> Apart:
    """What the products that the two arms run otherwise gained, all of a step together."""
    changed = [
        (a, b)
        for a, b in zip(before[1], after[1], strict=True)
        if _runs_otherwise((before[0], a), (after[0], b))
    ]
    options = tuple(option for option in TILE_OF if any(a.option == option for a, _ in changed))
    if not changed:
        return no_gain("both rungs run the same kernels", options)
    # Within a module no kernel, tile, number of threads or address type changes a number; on a GPU
    # each kernel sums in an order of its own.
    same_module = before[0].options.get("simd", "") == after[0].options.get("simd")
    wrong = [a for a, b in changed if same_module and a.output_sha256 != b.output_sha256]
    if wrong:
        return no_gain(f"the rungs gave other bits ({wrong[0].option})", options)
    turns = range(len(changed[0][0].passes))
    firsts = [total_ms([a for a, _ in changed], turn) for turn in turns]
    seconds = [total_ms([b for _, b in changed], turn) for turn in turns]
    return Apart(
        options=options,
        gain=sum(firsts) / sum(seconds),
        pass_gains=tuple(a / b for a, b in zip(firsts, seconds, strict=True)),
        before_ms=fmean(firsts),
        after_ms=fmean(seconds),
    )


def _runs_otherwise(before: tuple[ArmJob, RungProduct], after: tuple[ArmJob, RungProduct]) -> bool:
    """Another kernel runs the product, or the same one in another module, threads or precision."""
    (one, a), (other, b) = before, after
    if engine_of(one)[:3] != engine_of(other)[:3] or a.kernel != b.kernel:
        return True
    return halves_of(one.options, a.kernel.product) != halves_of(other.options, b.kernel.product)


def no_gain(reason: str, options: tuple[Product, ...] = ()) -> Apart:
    """Nothing to say, and why."""
    return Apart(
        options=options, gain=None, pass_gains=(), before_ms=None, after_ms=None, reason=reason
    )


def total_ms(found: Sequence[RungProduct], turn: int) -> float:
    """Time of a step in these products in one pass, by each one's fastest sample.

    As where tiles are chosen: what disturbs a machine only adds time.
    """
    return sum(
        product.count * min(product.passes[turn].samples_ms)
        / product.passes[turn].products_per_sample
        for product in found
    )  # fmt: skip


def tiles_of(arm: ArmJob) -> tuple[str, ...]:
    """Tiles that the arm's module has, its default first."""
    return TILES[str(arm.options["simd"])]
