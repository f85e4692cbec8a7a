"""A whole step of the WebGPU arm on the second implementation (wgpu-native), in every precision.

The page's own table of dispatches (arm_webgpu_step.js) is run by wgpu instead of Chromium, in one
submit, and loss, gradients and parameters are compared with the float64 reference. That reaches
`f16=compute` on lavapipe, which has shader-f16; SwiftShader has not.
"""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from test_webgpu_arm import case_of
from test_wgsl import BINDING, SOURCES, Gpu, open_gpu, recipe_of, wgpu

from driver.arms import TILE_OF
from driver.browser import BrowserSession
from driver.cases import Case
from driver.jobs import JobMaker, geometry_op
from driver.layout import WEB
from driver.measure import run_job
from driver.parity import reduced_limits, tensor_error
from driver.records import ArmJob, ModelConfig
from driver.reference import Reference
from driver.server import JobServer
from driver.tensors import F32, State, flatten, table, unflatten

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Float32's limits are the gates' own; those of halves (reduced_limits) follow from the format.
FLOAT32 = {"parity.grads": 2e-5, "parity.params": 5e-5, "parity.first_loss": 1e-6}
# Two layers whose tensors begin at odd multiples of 64 floats; and sizes that divide by nothing.
EVEN = {"n_layer": 2, "n_head": 2, "d_model": 24, "d_ff": 96, "ctx": 9, "batch": 2, "vocab": 61}
ODD = {"n_layer": 1, "n_head": 3, "d_model": 21, "d_ff": 35, "ctx": 7, "batch": 3, "vocab": 31}
RECIPE = {
    "lr": 3e-3,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "grad_clip": 1.0,
}
# An arm that only tells what its step dispatches, with the views that `driver geometry` omits.
TABLE = """
import { batch_layout, buffers_of, packing_of, shape_of } from "./arm_webgpu_step.js";
import { step_of, tune } from "./arm_webgpu_step.js";

export const open = () => {};
export async function geometry({ config, flat_size, tensors, arm }) {
  const shape = shape_of(config);
  const tuning = tune(arm.options, shape, flat_size, arm.options.tuned_for === "software");
  const slots = Object.fromEntries(tensors.map((slot) => [slot.name, slot]));
  const dispatches = step_of(shape, slots, flat_size, tuning);
  return {
    layout: batch_layout(shape),
    buffers: buffers_of(shape, flat_size, tuning, dispatches),
    dispatches: [...packing_of(flat_size, tuning.f16), ...dispatches],
  };
}
"""


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """A device with halves where the adapter has them; skips where there is no adapter."""
    return open_gpu("shader-f16", "subgroup")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[JobServer]:
    """The project's page with the telling arm beside its own."""
    folder = tmp_path_factory.mktemp("page") / "web"
    shutil.copytree(WEB, folder)
    (folder / "arm_table.js").write_text(TABLE)
    async with JobServer(folder) as running:
        yield running


async def table_of(
    session: BrowserSession, server: JobServer, config: ModelConfig, options: dict[str, str]
) -> dict[str, Any]:
    """What the page makes of a configuration: layout of a batch, buffers, dispatches."""
    arm = ArmJob(name="webgpu", module="arm_table.js", options=dict(options))
    job = JobMaker(server, config).job("table", arm, {}, None, [geometry_op()])
    outcome = await run_job(session, server, job, deadline_s=60)
    assert outcome.failure is None, outcome.failure
    return outcome.ops[0].detail


@dataclass
class Stepped:
    """What one step gave."""

    loss: float
    grad_norm: float
    grads: State
    params: State
    overflows: int


def step(gpu: Gpu, told: dict[str, Any], case: Case) -> Stepped:
    """The first step of a case, dispatched by wgpu as the page's table says."""
    device, config = gpu.device, case.config
    usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    buffers = {
        name: device.create_buffer(size=4 * size["floats"], usage=usage | wgpu.BufferUsage.STORAGE)
        for name, size in told["buffers"].items()
    }
    buffers["recipe"] = device.create_buffer(size=256, usage=usage | wgpu.BufferUsage.UNIFORM)
    for name, data in {
        "param": flatten(config, case.state),
        "recipe": recipe_of(config),
        "decay": decay_bits(config, told["buffers"]["decay"]["floats"]),
        "batch": batch_words(config, case.tokens[0], told["layout"]),
    }.items():
        device.queue.write_buffer(buffers[name], 0, data)
    encoder = device.create_command_encoder()
    passing = encoder.begin_compute_pass()
    for dispatch in told["dispatches"]:
        pipeline = pipeline_of(gpu, dispatch["kernel"], dispatch["constants"])
        places = {name: int(at) for at, _, _, name in BINDING.findall(SOURCES[dispatch["kernel"]])}
        entries = [
            {"binding": places[name], "resource": resource(buffers, view)}
            for name, view in dispatch["views"].items()
        ]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        passing.set_pipeline(pipeline)
        passing.set_bind_group(0, group)
        passing.dispatch_workgroups(*dispatch["groups"])
    passing.end()
    device.queue.submit([encoder.finish()])

    def floats(name: str) -> F32:
        return np.frombuffer(device.queue.read_buffer(buffers[name]), "<f4").copy()

    loss, norm = floats("results")[:2]
    return Stepped(
        float(loss), float(norm),
        unflatten(config, floats("grad")), unflatten(config, floats("param")),
        int(floats("clip").view(np.uint32)[2]),
    )  # fmt: skip


def pipeline_of(gpu: Gpu, kernel: str, constants: dict[str, float]) -> Any:
    key = (kernel, tuple(sorted(constants.items())))
    if key not in gpu.pipelines:
        source = SOURCES[kernel].replace("enable subgroups;", "")
        module = gpu.device.create_shader_module(code=source)
        gpu.pipelines[key] = gpu.device.create_compute_pipeline(
            layout="auto",
            compute={"module": module, "entry_point": "main", "constants": dict(constants)},
        )
    return gpu.pipelines[key]


def resource(buffers: dict[str, Any], view: Any) -> dict[str, Any]:
    """A view as the arm binds it: from a multiple of 64 floats to the next."""
    if view == "recipe":
        return {"buffer": buffers["recipe"]}
    size = -(-int(view["size"]) // 64) * 256
    return {"buffer": buffers[view["buffer"]], "offset": 4 * int(view["at"]), "size": size}


def decay_bits(config: ModelConfig, words: int) -> np.ndarray:
    """Bit k stands for floats 64·k … of the flat arrays."""
    bits = np.zeros(words, np.uint32)
    for slot in table(config):
        for block in range(slot.offset // 64, -(-(slot.offset + slot.size) // 64)):
            bits[block // 32] |= np.uint32(slot.decay << (block % 32))
    return bits


def batch_words(config: ModelConfig, tokens: np.ndarray, layout: dict[str, int]) -> np.ndarray:
    """The first step's facts, its tokens, and its positions sorted by token."""
    words = np.zeros(layout["size"], np.uint32)
    words[1:3] = np.array([1 / (1 - config.beta1), 1 / (1 - config.beta2)], np.float32).view("<u4")
    inputs = tokens[:, :-1].reshape(-1)
    starts = np.concatenate([[0], np.cumsum(np.bincount(inputs, minlength=config.vocab))])
    for name, values in {
        "inputs": inputs,
        "targets": tokens[:, 1:].reshape(-1),
        "order": np.argsort(inputs, kind="stable"),
        "starts": starts,
    }.items():
        words[layout[name] : layout[name] + values.size] = values
    return words


@pytest.mark.parametrize(
    ("f16", "shape", "tuned_for", "split"),
    [
        pytest.param("off", ODD, "hardware", 1, id="float32"),
        pytest.param("off", ODD, "software", 8, id="float32, products cut"),
        pytest.param("storage", EVEN, "hardware", 1, id="storage"),
        pytest.param("compute", EVEN, "hardware", 2, id="compute, products cut"),
        pytest.param("compute", ODD, "software", 1, id="compute, odd sizes"),
    ],
)
async def test_a_whole_step(session, server, gpu, f16, shape, tuned_for, split) -> None:
    """Limits: float32's gates; for halves those that driver/parity/precision.py derives.

    Gradients of one step, relative L2: 2·2^-11·√(8·L + 3) with `storage`, three times that with
    `compute`.
    """
    if f16 == "compute" and "shader-f16" not in gpu.device.features:
        pytest.skip("this adapter has no shader-f16")
    config = ModelConfig(**(RECIPE | shape))
    tile = "8x8" if tuned_for == "software" else "4x4"
    options = dict.fromkeys(TILE_OF, "blocked") | dict.fromkeys(TILE_OF.values(), tile)
    options |= {"workgroup": "8x8", "f16": f16, "tuned_for": tuned_for, "split_db": str(split)}
    told = await table_of(session, server, config, options)
    kernels = {dispatch["kernel"] for dispatch in told["dispatches"]}
    suffix = {"off": "blocked", "storage": "_w16", "compute": "_f16"}[f16]
    assert {k for k in kernels if k.startswith("matmul_forward")} == {
        f"matmul_forward_blocked{suffix.removeprefix('blocked')}"
    }
    assert ("matmul_backward_db_sum" in kernels) == (split > 1)
    case = case_of(config)
    got = step(gpu, told, case)
    limits = FLOAT32 | reduced_limits(f16, config.n_layer)
    want = Reference(config, case.state)
    stepped = want.step(case.tokens[0])
    assert got.overflows == 0
    assert got.loss == pytest.approx(stepped.loss, rel=limits["parity.first_loss"])
    assert got.grad_norm == pytest.approx(stepped.grad_norm, rel=limits["parity.grads"])
    errors = {}
    for what, mine, theirs in (
        ("grads", got.grads, stepped.grads), ("params", got.params, want.params),
    ):  # fmt: skip
        worst = max(tensor_error(theirs[name], mine[name], name).rel_l2 for name in theirs)
        assert worst <= limits[f"parity.{what}"], what
        errors[what] = worst
    print(f"{f16}, {tuned_for}: {errors}")
    if f16 != "off":  # it was really less precise than float32
        assert errors["grads"] > FLOAT32["parity.grads"]


async def test_a_wrong_table_is_seen(session, server, gpu) -> None:
    """With one dispatch left out the gradients are not the reference's."""
    config = ModelConfig(**(RECIPE | ODD))
    options = dict.fromkeys(TILE_OF, "blocked") | dict.fromkeys(TILE_OF.values(), "4x4")
    told = await table_of(session, server, config, options | {"workgroup": "8x8", "f16": "off"})
    told["dispatches"] = [d for d in told["dispatches"] if d["label"] != "h.0.mlp.up.dx"]
    case = case_of(config)
    got = step(gpu, told, case)
    grads = Reference(config, case.state).step(case.tokens[0]).grads
    assert tensor_error(grads["wte"], got.grads["wte"], "wte").rel_l2 > 1e-2
