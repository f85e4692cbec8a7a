"""Which variant of the WGSL products runs on this adapter: right first, then the fastest.

Products fall into classes: those of one option (mm_fwd, mm_da, mm_db) whose operands lie alike. A
class is tried at its most costly product, which stands for all of them. Every candidate's output is
compared with float64 before its time counts; one that is wrong, or that the adapter refuses, is
dropped with its reason. What an arm fixes itself is checked in the same way and not timed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from driver.arms import (
    AUTO,
    TILE_OF,
    ArmSpec,
    Value,
    gpu_variants,
    halves_of,
    split_of,
)
from driver.errors import SlotError, Unsupported
from driver.jobs import kernel_op
from driver.records import ArmJob, Kernel, ModelConfig, Product, VariantTrial
from driver.tensors import F32, StepProduct, products
from driver.workbench import (
    TUNING_SAMPLES,
    Workbench,
    at_once,
    cheapest,
    draw_inputs,
    error_over_bound,
    gpu_kernels,
    in_parts,
    kernel_of,
    rates,
    samples_of,
)

# Those that tuning tries; others are there for who names them.
TUNED_TILES = ("8x8", "8x4", "4x4")
TUNED_WORKGROUPS = ("16x4", "16x16")
PLAIN = "naive"  # tried only where nothing else is right


@dataclass(frozen=True)
class Class:
    """Products of one option that lie alike: the costliest, and all of their FLOPs in a step."""

    option: Product
    product: StepProduct
    flops: int


def classes(config: ModelConfig) -> list[Class]:
    """The classes of a step's products."""
    found: dict[tuple[Product, Product], list[StepProduct]] = {}
    for product in products(config):
        found.setdefault((product.option, product.layout), []).append(product)
    return [
        Class(option, max(alike, key=lambda p: p.flops), sum(p.flops * p.count for p in alike))
        for (option, _), alike in found.items()
    ]


class _Choice(NamedTuple):
    """What is chosen for the products of an option; the workgroup is one for all."""

    variant: str
    tile: str
    workgroup: str
    split: int


async def choose(
    bench: Workbench, name: str, arm: ArmJob, spec: ArmSpec, config: ModelConfig,
    features: dict[str, object],
) -> tuple[ArmJob, tuple[VariantTrial, ...]]:  # fmt: skip
    """The arm with the fastest right choice for each option that it leaves open, and all trials.

    Raises SlotError where no candidate of an option is right on this adapter.
    """
    trials = _Trials(bench, name, arm, spec, classes(config), gpu_variants(features))
    fast = tuple(variant for variant in trials.available if variant != PLAIN)
    await trials.run(trials.options, fast)
    left = [option for option in trials.options if not trials.right(option)]
    await trials.run([option for option in left if spec.options[option] == AUTO], (PLAIN,))
    wrong = [option for option in trials.options if not trials.right(option)]
    if wrong:
        reasons = "; ".join(trials.reasons(wrong))
        raise SlotError(f"arm webgpu: no right variant of {', '.join(wrong)} here: {reasons}")
    workgroup = (str(arm.options["workgroup"]),)
    trials.arm = arm.model_copy(update={"options": arm.options | trials.best(workgroup)})
    if spec.options["workgroup"] == AUTO and trials.timed:
        await trials.workgroups()
    if spec.options["split_db"] == AUTO:
        trials.arm = arm.model_copy(update={"options": arm.options | trials.best_of_all()})
        await trials.parts(at_once(features))
    options = trials.best_of_all()
    return arm.model_copy(update={"options": arm.options | options}), trials.told(options)


class _Trials:
    """Candidates that ran, by class, and what came of each."""

    def __init__(
        self, bench: Workbench, name: str, arm: ArmJob, spec: ArmSpec, work: Sequence[Class],
        available: Sequence[str],
    ) -> None:  # fmt: skip
        self.bench, self.name, self.arm, self.spec = bench, name, arm, spec
        self.work, self.available = work, available
        self.options = list(dict.fromkeys(found.option for found in work))
        self.found: dict[Product, dict[tuple[Class, Kernel], VariantTrial]] = {
            option: {} for option in self.options
        }
        self.pages = 0
        self.timed = False  # something was left to choose

    @property
    def workgroups_tried(self) -> tuple[str, ...]:
        """In order, the first one first."""
        tried = dict.fromkeys(
            str(kernel.workgroup) for o in self.options for _, kernel in self.found[o]
        )
        return tuple(tried)

    async def run(self, options: Sequence[Product], variants: Sequence[str]) -> None:
        """Tries what the arm leaves open of these options, of these variants."""
        asked = [
            (of, kernel)
            for of in self.work
            if of.option in options
            for kernel in gpu_kernels(
                self.spec, self.arm, variants, of.option, of.product.layout,
                (of.product.M, of.product.N, of.product.K), TUNED_TILES,
            )
        ]  # fmt: skip
        await self._ask(asked)

    async def workgroups(self) -> None:
        """Tries the choices made so far in other workgroups."""
        asked = []
        for of in self.work:
            variant = str(self.arm.options[of.option])
            if variant == "blocked":
                tile = str(self.arm.options[TILE_OF[of.option]])
                asked += [
                    (of, kernel_of(of.product, variant, tile, workgroup))
                    for workgroup in TUNED_WORKGROUPS
                ]
        await self._ask(asked)

    async def parts(self, most: int) -> None:
        """Tries Aᵀ·dC in parts where it leaves an adapter of `most` workgroups at once idle.

        The costliest of its products has the most workgroups, since all are equally deep: what is
        worth it there is for the others. With parts a larger tile may be the better one, so those
        left open are tried again. The choice so far is timed beside them, as it may not have been.
        """
        asked = []
        for of in self.work:
            if of.option != "mm_db" or self.arm.options["mm_db"] != "blocked":
                continue
            chosen, workgroup = (str(self.arm.options[key]) for key in ("tile_db", "workgroup"))
            more = TUNED_TILES if self.spec.options["tile_db"] == AUTO else ()
            tiles = dict.fromkeys((chosen, *more))
            whole = [kernel_of(of.product, "blocked", tile, workgroup) for tile in tiles]
            cut = [kernel for one in whole for kernel in in_parts(one, most)]
            asked += [(of, kernel) for kernel in (whole[:1] if cut else []) + cut]
        await self._ask(asked)

    async def _ask(self, asked: Sequence[tuple[Class, Kernel]]) -> None:
        """One page for all; where that fails, one for each, so that the culprit is known."""
        if not asked:
            return
        inputs = draw_inputs([kernel for _, kernel in asked], 0)
        self.timed |= len(asked) > len({of for of, _ in asked})
        try:
            found = await self._page(asked, inputs)
        except (SlotError, Unsupported):
            found = []
            for one in asked:
                try:
                    found += await self._page([one], inputs)
                except (SlotError, Unsupported) as error:
                    found.append(_trial(one, "refused", str(error)))
        for (of, kernel), trial in zip(asked, found, strict=True):
            self.found[of.option][of, kernel] = trial

    async def _page(self, asked: Sequence[tuple[Class, Kernel]], inputs: F32) -> list[VariantTrial]:
        """Checks every candidate and times it."""
        program = [
            kernel_op(kernel, TUNING_SAMPLES if self.timed else 0, f"c{index}", alone=True)
            for index, (_, kernel) in enumerate(asked)
        ]
        outcome = await self.bench.ask(f"{self.name}-{self.pages}", self.arm, program, inputs)
        self.pages += 1
        found = []
        for index, (one, result) in enumerate(zip(asked, outcome.ops[1:], strict=True)):
            kernel = one[1]
            if kernel.split > 1 and result.detail.get("forks") == 1:
                why = "ran in one piece: the kernels of this source are not cut"
                found.append(_trial(one, "refused", why))
                continue
            got = np.frombuffer(outcome.blobs[f"c{index}"], "<f4")
            f16 = halves_of(self.arm.options, kernel.product)
            error = error_over_bound(kernel, inputs, got.reshape(kernel.M, kernel.N), f16)
            if error > 1:
                found.append(_trial(one, "wrong", f"{error:.3g} times the bound", error))
                continue
            gflops = None
            if self.timed:
                # The best sample: what disturbs a machine only adds time.
                gflops = max(rates(one[0].product.flops, samples_of(result.detail)))
            found.append(_trial(one, "ok", None, error, gflops))
        return found

    def right(self, option: Product) -> bool:
        """There is a choice that is right in every class of the option."""
        return bool(self._costs(option, self.workgroups_tried))

    def reasons(self, options: Sequence[Product]) -> list[str]:
        """What is wrong with the candidates of these options."""
        return [
            f"{_words(trial.kernel)}: {trial.reason}"
            for option in options
            for trial in self.found[option].values()
            if trial.reason
        ]

    def _costs(self, option: Product, workgroups: Sequence[str]) -> dict[_Choice, float]:
        """Milliseconds of a step by choice, of those right in all classes."""
        classes_of = {of for of in self.work if of.option == option}
        costs: dict[_Choice, dict[Class, float]] = {}
        for (of, kernel), trial in self.found[option].items():
            if trial.status == "ok" and kernel.workgroup in workgroups:
                key = _Choice(kernel.kernel, kernel.tile, str(kernel.workgroup), kernel.split)
                cost = of.flops / trial.gflops / 1e6 if trial.gflops else 0.0
                costs.setdefault(key, {})[of] = cost
        return {
            key: sum(by_class.values())
            for key, by_class in costs.items()
            if by_class.keys() == classes_of
        }

    def best(self, workgroups: Sequence[str]) -> dict[str, Value]:
        """The cheapest choices, one workgroup for all; the first unless another is worth it."""
        totals: dict[str, tuple[float, dict[str, Value]]] = {}
        for workgroup in workgroups:
            total, options = 0.0, dict[str, Value](workgroup=workgroup)
            for option in self.options:
                costs = self._costs(option, (workgroup,))
                if str(self.arm.options[option]) not in ("blocked", PLAIN) and not costs:
                    costs = self._costs(option, self.workgroups_tried)
                if not costs:
                    break
                key = cheapest(list(costs.items()))
                total += costs[key]
                options |= {option: key.variant, TILE_OF[option]: key.tile}
                options |= {"split_db": str(key.split)} if option == "mm_db" else {}
            else:
                totals[workgroup] = total, options
        chosen = cheapest([(key, total) for key, (total, _) in totals.items()])
        return totals[chosen][1]

    def best_of_all(self) -> dict[str, Value]:
        """The same in every workgroup that was tried."""
        return self.best(self.workgroups_tried)

    def told(self, options: dict[str, Value]) -> tuple[VariantTrial, ...]:
        """All trials, those of the choices marked."""

        def runs(option: Product, kernel: Kernel) -> bool:
            same = kernel.kernel == options[option]
            same &= kernel.kernel != "blocked" or kernel.tile == options[TILE_OF[option]]
            same &= kernel.split == split_of(options, option, kernel.kernel)
            return same and (kernel.kernel != "blocked" or kernel.workgroup == options["workgroup"])

        return tuple(
            trial.model_copy(update={"chosen": runs(option, trial.kernel)})
            for option in self.options
            for trial in self.found[option].values()
        )


def _trial(
    one: tuple[Class, Kernel], status: str, reason: str | None = None,
    error: float | None = None, gflops: float | None = None,
) -> VariantTrial:  # fmt: skip
    return VariantTrial.model_validate(
        {"option": one[0].option, "kernel": one[1], "status": status, "reason": reason,
         "error_over_bound": error, "gflops": gflops}
    )  # fmt: skip


def _words(kernel: Kernel) -> str:
    return f"{kernel.product} {kernel.kernel} {kernel.manner}"
