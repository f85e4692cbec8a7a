"""`driver kernels`: every kernel checked against float64, then those that are right timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driver import machine
from driver.arms import AUTO, ArmSpec, canonical, resolve
from driver.aside import GoOn, aside
from driver.browser import BrowserChoice, BrowserSession
from driver.jobs import ADDRESS, kernel_op, operation_op
from driver.kernels import operations, products
from driver.kernels.case import Case
from driver.kernels.shapes import Work
from driver.measure import JobOutcome
from driver.prepare import probe
from driver.records import ArmJob, ForkTimes, Kernel, KernelReport, KernelRow, Op, OperationRow
from driver.server import JobServer
from driver.workbench import Workbench, draw_inputs, quartiles

START_S, KERNEL_S = 120, 8  # of a page's deadline


@dataclass(frozen=True)
class Request:
    """What is to be run; `work` is empty for forks."""

    spec: ArmSpec
    op: str
    work: Work
    samples: int = 15
    seed: int = 1


async def run(request: Request, choice: BrowserChoice, say: Callable[[str], None]) -> KernelReport:
    """Checks every kernel, then times those that are right. Raises Unsupported and SlotError."""
    before = machine.machine_state()
    async with JobServer(site=choice.site) as server, BrowserSession(choice) as session:
        measured = [request.spec] if request.op == "fork" else []
        probed = await probe(session, server, measured)
        features, host = probed.features, probed.host
        arm, other = _arms(request, features)
        kernels = products.variants(request.work.products, request.spec, arm, features)
        amount = len(kernels) + len(request.work.cases)
        bench = Workbench(session, server, deadline_s=START_S + KERNEL_S * amount)
        asked = _Asked(bench, arm, other, request, say)
        fork = await asked.forks() if request.op == "fork" else None
        rows = await asked.products(kernels) if kernels else []
        found = await asked.operations(request.work.cases) if request.work.cases else []
        facts = session.facts.model_dump(mode="json")
    return KernelReport(
        arm=canonical(arm.name, arm.options),
        op=request.op,
        seed=request.seed,
        ran=asked.ran,
        machine=host.machine,
        load_before=host.state(before),
        load_after=host.state(machine.machine_state()),
        browser=facts,
        rows=tuple(rows),
        operations=tuple(found),
        fork=fork,
    )


def _arms(request: Request, features: dict[str, Any]) -> tuple[ArmJob, ArmJob]:
    """The arm, on one thread unless more are asked for; and on another number of threads, which
    must give the same bits: all of the machine's, or one. A device has no threads: it runs twice.
    """
    arm = resolve(request.spec, features)
    if not request.spec.is_wasm:
        return arm, arm
    if request.op != "fork" and request.spec.options.get("threads") == AUTO:
        arm = _on(arm, 1)
    if arm.options.get("shared") == "off":
        return arm, arm  # it has one thread and no other
    several = max(2, int(features.get("usable_threads") or 1))
    return arm, _on(arm, several if arm.options.get("threads") == 1 else 1)


def _on(arm: ArmJob, threads: int) -> ArmJob:
    return arm.model_copy(update={"options": arm.options | {"threads": threads}})


class _Asked:
    """One page per question; `ran` is what the arm last said of itself."""

    def __init__(
        self, bench: Workbench, arm: ArmJob, other: ArmJob, request: Request,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._bench, self._arm, self._other = bench, arm, other
        self._samples, self._seed, self._say = request.samples, request.seed, say
        self.ran: dict[str, Any] = {}

    async def forks(self) -> ForkTimes:
        """Forks and joins without work."""
        self._say(f"forks on {self._arm.options['threads']} threads")
        outcome = await self._bench.ask("forks", self._arm, [Op(op="fork", count=self._samples)])
        return fork_times(self._details(outcome)[0])

    async def products(self, kernels: Sequence[Kernel]) -> list[KernelRow]:
        """Every product's kernel and tile."""
        inputs = draw_inputs(kernels, self._seed)
        self._say(f"checking {len(kernels)} kernels of products against float64")
        same_sums = self._arm.name in ADDRESS
        program = products.checks(kernels, same_sums)
        outcome = await self._bench.ask("check", self._arm, program, inputs)
        details = self._details(outcome)
        unposted = [kernel_op(kernel) for kernel in kernels]
        elsewhere = self._details(await self._bench.ask("threads", self._other, unposted, inputs))
        digests = [str(detail["output_sha256"]) for detail in details]
        judged = await aside(
            lambda go_on: products.judge(
                kernels, digests, outcome.blobs, inputs, same_sums, go_on, self._arm.options
            )
        )
        rows = list(map(products.placed, judged, details, elsewhere))
        right = [row.kernel for row in rows if row.status == "ok"]
        if not right:
            return rows
        self._say(f"timing {len(right)} kernels of products")
        program = [kernel_op(kernel, self._samples) for kernel in right]
        outcome = await self._bench.ask("time", self._arm, program, inputs)
        given = dict(zip(right, self._details(outcome), strict=True))
        return [
            products.timed(row, digest, given.get(row.kernel))
            for row, digest in zip(rows, digests, strict=True)
        ]

    async def operations(self, cases: Sequence[Case]) -> list[OperationRow]:
        """Every other operation."""
        self._say(f"checking {len(cases)} other operations against float64")
        drawn = {case: operations.draw(case, self._seed) for case in cases}
        assets = {case: f"inputs-{index}" for index, case in enumerate(cases)}
        asked = {case: operations.operation_of(case, assets[case]) for case in cases}
        data = {assets[case]: operations.pack(case, drawn[case]) for case in cases}

        async def ask(name: str, arm: ArmJob, program: list[Op]) -> JobOutcome:
            return await self._bench.ask(name, arm, program, assets=data)

        outcome = await ask(
            "check-operations", self._arm,
            [operation_op(asked[case], label=assets[case]) for case in cases],
        )  # fmt: skip
        details = dict(zip(cases, self._details(outcome), strict=True))
        unposted = [operation_op(operation) for operation in asked.values()]
        elsewhere = self._details(await ask("threads-operations", self._other, unposted))

        def judged(go_on: GoOn) -> dict[Case, OperationRow]:
            rows = {}
            for case, other in zip(cases, elsewhere, strict=True):
                go_on()
                rows[case] = operations.judge(
                    case, drawn[case], outcome.blobs[assets[case]], details[case],
                    other["output_sha256"] == details[case]["output_sha256"],
                )  # fmt: skip
            return rows

        rows = await aside(judged)
        right = [case for case in cases if rows[case].status == "ok"]
        if right:
            self._say(f"timing {len(right)} other operations")
            program = [operation_op(asked[case], self._samples) for case in right]
            times = self._details(await ask("time-operations", self._arm, program))
            for case, detail in zip(right, times, strict=True):
                digest = str(details[case]["output_sha256"])
                rows[case] = operations.timed(rows[case], digest, detail)
        return list(rows.values())

    def _details(self, outcome: JobOutcome) -> list[dict[str, Any]]:
        """What each instruction after `open` gave."""
        said = outcome.result.ran if outcome.result else {}
        if said.get("threads") == self._arm.options.get("threads"):
            self.ran = said
        return [op.detail for op in outcome.ops[1:]]


def fork_times(detail: dict[str, Any]) -> ForkTimes:
    """Times of one fork and join from a page's samples of many."""
    raw = {key: detail[key] for key in ("threads", "forks_per_sample", "samples_ms", "uneven")}
    each = np.asarray(raw["samples_ms"], np.float64) * 1e3 / float(str(raw["forks_per_sample"]))
    return ForkTimes.model_validate(
        raw | {"fork_us": float(np.median(each)), "fork_us_quartiles": quartiles(each.tolist())}
    )
