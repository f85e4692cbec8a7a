"""`driver geometry`: a step's dispatches, submits and created objects, planned and counted."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driver.arms import ArmSpec, canonical, resolve
from driver.browser import BrowserChoice, BrowserSession
from driver.errors import SlotError, Unsupported
from driver.jobs import JobMaker, count_op, geometry_op, open_op, wgsl_texts
from driver.measure import JobOutcome, failed_because, run_job
from driver.prepare import probe
from driver.presets import Preset
from driver.records import ArmJob, Dispatch, GeometryReport, GpuCalls, Op, StepGeometry
from driver.server import JobServer
from driver.tensors import initial_flat

ADDING = "matmul_backward_db_sum"  # the kernel that adds the parts of a product whose depth is cut
PLAN_S, STEP_S = 60, 600  # deadlines of a page that plans, and of one that runs a step

_SIZE = re.compile(r"@workgroup_size\(([^)]*)\)")
_OVERRIDE = re.compile(r"override (\w+): u32 = (\d+)u?;")


@dataclass(frozen=True)
class Request:
    """Presets whose step is looked at; with `run_a_step`, one of each is run and counted."""

    spec: ArmSpec
    presets: Sequence[Preset]
    run_a_step: bool = True


async def run(
    request: Request, choice: BrowserChoice, say: Callable[[str], None]
) -> GeometryReport:
    """Plans every preset's step on this adapter, and counts a real one where it can hold it.

    Raises Unsupported where there is no adapter, and SlotError.
    """
    async with JobServer(site=choice.site) as server, BrowserSession(choice) as session:
        arm = resolve(request.spec, (await probe(session, server, [request.spec])).features)
        kernels = wgsl_texts(arm)
        found, adapter = [], {}
        for preset in request.presets:
            page = _Page(session, server, arm, preset)
            say(f"{preset.name}: planning its step")
            planned = await page.plan()
            adapter = planned["adapter"]
            counted, reason = None, planned["refusal"]
            if reason is None and request.run_a_step:
                say(f"{preset.name}: running one step")
                counted = await page.count()
            elif reason is None:
                reason = "not asked for"
            found.append(step_geometry(preset, planned, kernels, counted, reason))
    return GeometryReport(
        arm=canonical(arm.name, arm.options), adapter=adapter, presets=tuple(found)
    )


class _Page:
    """What is asked about one preset, in a fresh page each."""

    def __init__(
        self, session: BrowserSession, server: JobServer, arm: ArmJob, preset: Preset
    ) -> None:
        self._session, self._server, self._arm, self._preset = session, server, arm, preset
        self._maker = JobMaker(server, preset.model)

    async def plan(self) -> dict[str, Any]:
        """The step as the arm would dispatch it."""
        job = self._maker.job("geometry", self._arm, {}, None, [geometry_op()])
        return _detail(await run_job(self._session, self._server, job, deadline_s=PLAN_S))

    async def count(self) -> GpuCalls:
        """What one real step asks for."""
        config = self._preset.model
        flat = initial_flat(config, self._preset.seed)
        initial, _ = self._maker.state("initial", {"param": flat})
        zeros = np.zeros((1, config.batch, config.ctx + 1), np.int32)
        tokens, _ = self._maker.tokens(zeros)
        program: list[Op] = [open_op(), count_op(1)]
        job = self._maker.job("count", self._arm, {"initial": initial}, tokens, program)
        outcome = await run_job(self._session, self._server, job, deadline_s=STEP_S)
        for url in (initial.url, tokens.url):
            self._server.drop(url)
        return gpu_calls(_detail(outcome)["calls"])


def _detail(outcome: JobOutcome) -> dict[str, Any]:
    """What the last instruction gave."""
    failure = outcome.failure
    if failure and failure.kind == "unsupported":
        raise Unsupported(failure.message)
    if failure or outcome.result is None:
        why = failed_because(outcome)
        raise SlotError(f"the page could not say what a step dispatches: {why}")
    return outcome.ops[-1].detail


def gpu_calls(calls: Mapping[str, int]) -> GpuCalls:
    """Calls by WebGPU's names, of a window of one step."""
    made = ("createShaderModule", "createComputePipeline", "createComputePipelineAsync")
    return GpuCalls(
        dispatches=calls["dispatchWorkgroups"] + calls["dispatchWorkgroupsIndirect"],
        submits=calls["submit"] - 1,
        buffers=calls["createBuffer"] + calls["createQuerySet"],
        bind_groups=calls["createBindGroup"],
        pipelines=sum(calls[name] for name in made),
    )


def step_geometry(
    preset: Preset,
    planned: Mapping[str, Any],
    sources: Mapping[str, str],
    counted: GpuCalls | None,
    reason: str | None,
) -> StepGeometry:
    """A page's plan with the workgroup sizes that its kernels (`sources`: WGSL) have."""
    table = tuple(
        Dispatch(
            **{**row, "groups": _three(row["groups"])},
            workgroup=workgroup_of(sources[row["kernel"]], row["constants"]),
        )
        for row in planned["dispatches"]
    )
    layers = preset.model.n_layer
    return StepGeometry(
        preset=preset.name,
        n_layer=layers,
        most_dispatches=22 * layers + 15,
        dispatches=sum(row.per_step for row in table),
        adding=sum(row.per_step for row in table if row.kernel == ADDING),
        submits=planned["submits"],
        buffers=planned["buffers"],
        buffer_bytes=planned["buffer_bytes"],
        counted=counted,
        reason=reason,
        table=table,
    )


def workgroup_of(source: str, constants: Mapping[str, float]) -> tuple[int, int, int]:
    """A kernel's workgroup size, its names replaced by override constants or their defaults."""
    match = _SIZE.search(source)
    assert match, "every kernel has one entry point"
    known = dict(_OVERRIDE.findall(source)) | dict(constants)
    words = [word.strip().removesuffix("u") for word in match.group(1).split(",") if word.strip()]
    return _three([int(known.get(word, word)) for word in words])


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z
