"""The WebGPU arm in a real Chromium: right at odd shapes, economical, and loud when it fails."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from conftest import GOLDEN
from safetensors.numpy import load_file

from driver.arms import TILE_OF
from driver.browser import BrowserSession
from driver.build import gather_wgsl
from driver.cases import Case, read_case, write_result
from driver.jobs import JobMaker, curve, load_op, open_op, profile_op, read_op, train_op
from driver.layout import WASM_SRC, WEB
from driver.measure import JobOutcome, run_job
from driver.parity import reduced_limits, tensor_error
from driver.prepare import probe
from driver.records import ArmJob, ModelConfig, Op, PageFailure, ProfileSamples
from driver.reference import Reference
from driver.replay import Result
from driver.server import JobServer
from driver.tensors import flat_size, flatten, initial_state

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECIPE: dict[str, Any] = {
    "lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
}  # fmt: skip
# An arm for these tests: counts what the device makes, and breaks it when its options say so.
WATCHED = """
import { ArmError } from "./errors.js";
import * as webgpu from "./arm_webgpu.js";

let device = null;
const counts = {};
const count = (object, names) => {
  for (const name of names) {
    const real = object[name].bind(object);
    object[name] = (...given) => ((counts[name] = (counts[name] ?? 0) + 1), real(...given));
  }
};
const request = GPUAdapter.prototype.requestDevice;

export async function open(job, io) {
  const { options } = job.arm;
  GPUAdapter.prototype.requestDevice = async function (...given) {
    device = await request.apply(this, given);
    count(device, ["createBuffer", "createBindGroup", "createShaderModule"]);
    count(device, ["createComputePipelineAsync"]);
    count(device.queue, ["submit"]);
    const begin = GPUCommandEncoder.prototype.beginComputePass;
    GPUCommandEncoder.prototype.beginComputePass = function (...args) {
      const pass = begin.apply(this, args);
      count(pass, ["dispatchWorkgroups"]);
      return pass;
    };
    if (options.fault === "out-of-memory") {
      const [push, pop] = [device.pushErrorScope.bind(device), device.popErrorScope.bind(device)];
      const scopes = [];
      device.pushErrorScope = (kind) => (scopes.push(kind), push(kind));
      device.popErrorScope = async () => {
        const full = scopes.pop() === "out-of-memory" ? new GPUOutOfMemoryError("no room") : null;
        return (await pop()) ?? full;
      };
    }
    return device;
  };
  if (options.tuned_for === "hardware") {
    Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { get: () => false });
  }
  if (options.lacks) {
    const { has } = GPUSupportedFeatures.prototype;
    GPUSupportedFeatures.prototype.has = function (name) {
      return name !== options.lacks && has.call(this, name);
    };
  }
  for (const limit of options.limits?.split(",") ?? []) {
    const [name, value] = limit.split("=");
    Object.defineProperty(GPUSupportedLimits.prototype, name, { get: () => Number(value) });
  }
  if (options.fault === "no adapter") GPU.prototype.requestAdapter = async () => null;
  const arm = await webgpu.open(job, io);
  const { train } = arm;
  arm.train = async (tokens, steps) => {
    for (const name of Object.keys(counts)) counts[name] = 0;
    if (options.fault === "lost") setTimeout(() => device.destroy(), 20);
    if (options.fault === "invalid") arm.buffers.results.destroy();
    const results = await train.call(arm, tokens, steps);
    arm.ran.counts = { ...counts };
    return results;
  };
  return arm;
}
"""


def model(**shape: int) -> ModelConfig:
    """A configuration; d_ff is 4·d_model unless given."""
    return ModelConfig(**(RECIPE | {"d_ff": 4 * shape["d_model"]} | shape))


SHAPES = {
    "vocabulary 97, five heads of 8": model(
        n_layer=2, n_head=5, d_model=40, ctx=17, batch=3, vocab=97
    ),
    "heads of 12": model(n_layer=2, n_head=2, d_model=24, ctx=9, batch=2, vocab=256),
    "nothing divides by 4": model(
        n_layer=1, n_head=3, d_model=21, d_ff=35, ctx=7, batch=3, vocab=31
    ),
    "heads of 1": model(n_layer=1, n_head=5, d_model=5, ctx=6, batch=2, vocab=13),
    "one of everything": model(n_layer=1, n_head=1, d_model=1, ctx=1, batch=1, vocab=2),
    "one long head": model(n_layer=1, n_head=1, d_model=100, ctx=33, batch=1, vocab=300),
}
SMALL = SHAPES["heads of 12"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(
    session: BrowserSession, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[JobServer]:
    """The project's page with the watching arm beside its own; skips where WebGPU is missing."""
    folder = tmp_path_factory.mktemp("page") / "web"
    shutil.copytree(WEB, folder)
    (folder / "arm_watched.js").write_text(WATCHED)
    # Several query sets, and several reads of them in a window, at models of any size.
    profiler = (WEB / "arm_webgpu_profile.js").read_text()
    small = profiler.replace("MOST_QUERIES = 4096", "MOST_QUERIES = 64")
    small = small.replace("STORE = 4 << 20", "STORE = 2048")
    assert small.count("= 64") == small.count("= 2048") == 1
    (folder / "arm_webgpu_profile.js").write_text(small)
    async with JobServer(folder) as running:
        adapter = (await probe(session, running)).features["webgpu"]
        if not adapter["available"]:
            pytest.skip(f"this browser offers no WebGPU here: {adapter['reason']}")
        yield running


def case_of(config: ModelConfig, steps: int = 3) -> Case:
    """Random batches; the initial state, with gains and biases moved off their 1 and 0."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, config.vocab, (steps, config.batch, config.ctx + 1)).astype(np.int32)
    state = {
        name: (5 * array if array.ndim == 2 else array + 0.1 * rng.standard_normal(array.shape))
        .astype(np.float32)
        for name, array in initial_state(config, 1).items()
    }  # fmt: skip
    return Case(config, tokens, state)


async def run(
    session: BrowserSession,
    server: JobServer,
    case: Case,
    program: list[Op],
    sources: dict[str, bytes] | None = None,
    **options: str,
) -> tuple[JobOutcome, JobMaker]:
    """The case on the watched arm; `sources` replaces WGSL files."""
    maker = JobMaker(server, case.config)
    initial, _ = maker.state("initial", {"param": flatten(case.config, case.state)})
    tokens, _ = maker.tokens(case.tokens)
    variant = options.pop("matmul", "blocked")
    tile = "4x4" if options.get("tuned_for") == "hardware" else "8x8"
    chosen = dict.fromkeys(TILE_OF, variant) | dict.fromkeys(TILE_OF.values(), tile)
    given: dict[str, Any] = chosen | {"workgroup": "8x8"} | options
    arm = ArmJob(name="webgpu", module="arm_watched.js", options=given)
    job = maker.job("arm", arm, {"initial": initial}, tokens, program)
    replaced = {f"wgsl/{name}": server.put(name, text) for name, text in (sources or {}).items()}
    job = job.model_copy(update={"assets": job.assets | replaced})
    return await run_job(session, server, job, deadline_s=120), maker


async def trained(
    session: BrowserSession, server: JobServer, case: Case, **options: Any
) -> tuple[Result, JobOutcome]:
    """What `driver replay` would give."""
    program = [open_op(), train_op(1, "step"), read_op("grad", "grad")]
    program += [train_op(case.tokens.shape[0] - 1, "step"), read_op("param", "param")]
    outcome, maker = await run(session, server, case, program, **options)
    assert outcome.failure is None, outcome.failure
    assert outcome.result
    losses, norms = curve(outcome.result.ops)
    result = Result(
        losses=np.array(losses),
        grad_norms=np.array(norms),
        grads=maker.tensors_of(outcome.blobs["grad"]),
        params=maker.tensors_of(outcome.blobs["param"]),
    )
    return result, outcome


async def failure_of(
    session: BrowserSession, server: JobServer, case: Case, **options: Any
) -> PageFailure:
    """How a job with a fault ends; it must end within seconds."""
    program = [open_op(), train_op(case.tokens.shape[0], "window")]
    outcome, _ = await asyncio.wait_for(run(session, server, case, program, **options), 60)
    assert outcome.failure is not None
    return outcome.failure


# --------------------------------------------------------------------------- right


PLAIN = ("vocabulary 97, five heads of 8", "nothing divides by 4", "one of everything")


@pytest.mark.parametrize(
    ("shape", "matmul"),
    [
        *((shape, "blocked") for shape in SHAPES),
        *((shape, variant) for shape in PLAIN for variant in ("naive", "tiled", "subgroup")),
    ],
)
async def test_odd_shapes(session, server, shape, matmul) -> None:
    await check(session, server, SHAPES[shape], matmul=matmul)


# Four parts of 51 positions: 16, 16, 16 and 3; of 21: 8, 8, 5 and none; of one: 1 and three empty.
@pytest.mark.parametrize(("shape", "split"), [*((shape, "4") for shape in PLAIN), (PLAIN[0], "16")])
async def test_cut_products_at_odd_shapes(session, server, shape, split) -> None:
    await check(session, server, SHAPES[shape], split_db=split)


@pytest.mark.parametrize("shape", PLAIN)
async def test_what_hardware_would_run_is_right_too(session, server, shape) -> None:
    outcome = await check(session, server, SHAPES[shape], tuned_for="hardware")
    assert outcome.result
    assert outcome.result.ran["kernels"]["loss"]["constants"]["LANES"] > 1


async def check(
    session: BrowserSession, server: JobServer, config: ModelConfig, **options: str
) -> JobOutcome:
    """Three steps against the float64 reference."""
    case = case_of(config)
    got, outcome = await trained(session, server, case, **options)
    reference = Reference(case.config, case.state)
    steps = [reference.step(tokens) for tokens in case.tokens]
    np.testing.assert_allclose(got.losses, [step.loss for step in steps], rtol=2e-6)
    np.testing.assert_allclose(got.grad_norms, [step.grad_norm for step in steps], rtol=2e-5)
    norm = steps[0].grad_norm
    for name, want in steps[0].grads.items():
        error = np.linalg.norm(without_key(name, got.grads[name]) - without_key(name, want))
        # A gradient that is exactly 0 (one token, one channel) has no relative error.
        assert error <= max(2e-5 * np.linalg.norm(without_key(name, want)), 2e-7 * norm), name
    # With one channel rounding alone decides the steps of gradients that are exactly 0.
    for name, want in reference.params.items() if config.d_model > 1 else ():
        error = np.linalg.norm(without_key(name, got.params[name]) - without_key(name, want))
        assert error <= 5e-5 * np.linalg.norm(without_key(name, want)), name
    return outcome


def without_key(name: str, array: np.ndarray) -> np.ndarray:
    """The key bias has an exact gradient of 0: rounding decides its steps."""
    if not name.endswith("attn.bqkv"):
        return array.astype(np.float64)
    query, _, value = np.split(array.astype(np.float64), 3)
    return np.concatenate([query, value])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in GOLDEN),
        ("strong", {"matmul": "subgroup"}),
        ("tiny-jitter", {"split_db": "8"}),
    ],
)
async def test_golden_cases(session, server, golden, check_case, tmp_path, name, options) -> None:
    case = read_case(golden / f"{name}.case.safetensors")
    result, _ = await trained(session, server, case, **options)
    write_result(tmp_path / "result.safetensors", result)
    answer = golden / f"{name}.answer.safetensors"
    done = subprocess.run(
        [sys.executable, check_case, answer, tmp_path / "result.safetensors"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("split", ["1", "4"])
async def test_same_input_same_bits_in_windows_or_single_steps(session, server, split) -> None:
    case = case_of(SHAPES["heads of 12"], steps=40)  # more than are in flight at once
    program = [open_op(), train_op(40, "window"), read_op("param", "window"), load_op("initial")]
    program += [train_op(1, "singly")] * 40 + [read_op("param", "singly")]
    outcome, _ = await run(session, server, case, program, split_db=split)
    assert outcome.failure is None, outcome.failure
    assert outcome.result
    assert curve(outcome.result.ops, "window") == curve(outcome.result.ops, "singly")
    assert outcome.blobs["window"] == outcome.blobs["singly"]


async def test_state_survives_export_and_import(session, server) -> None:
    case = case_of(SHAPES["heads of 1"])
    outcome, _ = await run(
        session,
        server,
        case,
        [open_op(), train_op(2, "step"), Op(op="reimport"), Op(op="readback", count=3)],
    )
    assert outcome.result
    assert outcome.result.ops[2].detail["equal"] is True
    assert len(outcome.result.ops[3].values_ms) == 3


# --------------------------------------------------------------------------- economical


@pytest.mark.parametrize("split", ["1", "4"])
async def test_what_a_step_costs(session, server, split) -> None:
    """Cut products take a dispatch more each, four a layer and the head's, and create no more."""
    config = SHAPES["vocabulary 97, five heads of 8"]
    case = case_of(config, steps=7)
    program = [open_op(), train_op(2, "warm"), train_op(5, "window")]
    outcome, _ = await run(session, server, case, program, split_db=split)
    assert outcome.result
    ran = outcome.result.ran
    counts = ran["counts"]
    extra = 4 * config.n_layer + 1 if split != "1" else 0
    assert ran["dispatches_per_step"] - extra == 21 * config.n_layer + 12
    assert 21 * config.n_layer + 12 <= 22 * config.n_layer + 15
    assert ran["submits_per_step"] == 1
    assert counts["dispatchWorkgroups"] == 5 * ran["dispatches_per_step"]
    assert counts["submit"] == 5 + 1, "one per step and one to read the window's results"
    made = ("createBuffer", "createBindGroup", "createShaderModule", "createComputePipelineAsync")
    assert [counts.get(name, 0) for name in made] == [0, 0, 0, 0]


async def test_what_ran_is_told(session, server) -> None:
    case = case_of(SHAPES["heads of 12"])
    _, outcome = await trained(session, server, case, matmul="naive")
    assert outcome.result
    ran, memory = outcome.result.ran, outcome.result.memory
    assert ran["products"] == dict.fromkeys(TILE_OF, "naive in 8x8")
    assert ran["wgsl_sha256"] == {name: file.sha256 for name, file in gather_wgsl().items()}
    assert ran["kernels"]["h.mlp.up"]["file"] == "matmul_forward_naive.wgsl"
    for key, want in case.config.model_dump().items():
        assert ran["hyper"][key] == pytest.approx(want, rel=1e-6), key
    assert memory["buffer_bytes"]["state"] == 16 * flat_size(case.config)
    assert memory["final_bytes"] == sum(memory["buffer_bytes"].values())
    assert "scratch" not in memory["buffer_bytes"]
    assert outcome.result.adapter
    assert outcome.result.adapter["limits"]["maxBufferSize"] > 0


async def test_parts_are_told_and_counted_as_memory(session, server) -> None:
    _, outcome = await trained(session, server, case_of(SMALL), split_db="4")
    assert outcome.result
    ran, memory = outcome.result.ran, outcome.result.memory
    whole = "blocked 8x8 in 8x8"
    assert ran["products"] == {"mm_fwd": whole, "mm_da": whole, "mm_db": f"{whole} in 4 parts"}
    assert ran["kernels"]["head.dwte.sum"]["file"] == "matmul_backward_db_sum.wgsl"
    # The largest output is the token embedding's, (256, 24); the sums of its columns lie behind.
    assert memory["buffer_bytes"]["scratch"] == 4 * 4 * (256 * 24 + 32)


async def test_parts_that_no_kernel_makes_are_refused(session, server) -> None:
    for options in ({"split_db": "3"}, {"split_db": "2", "matmul": "tiled"}):
        failure = await failure_of(session, server, case_of(SMALL), **options)
        assert failure.kind == "unsupported"
        assert "only the blocked backward_db is cut, into 2, 4, 8, 16" in failure.message


async def test_parts_that_the_adapter_cannot_hold_are_refused(session, server) -> None:
    need = 16 * 256 * 24 * 4
    options = {"split_db": "16", "limits": f"maxStorageBufferBindingSize={need - 4}"}
    failure = await failure_of(session, server, case_of(SMALL), **options)
    assert failure.kind == "unsupported"
    assert f"the binding parts of {need} bytes" in failure.message


# --------------------------------------------------------------------------- profiled


async def test_a_profile(session, server) -> None:
    """Every dispatch is counted under its operation's name in C, and no number changes."""
    rounds, steps = 1, 5
    config = SHAPES["vocabulary 97, five heads of 8"]
    case = case_of(config, steps=4 * steps * (1 + rounds))
    program = [open_op(), profile_op(steps, rounds), read_op("param", "param")]
    asked, _ = await run(session, server, case, program)
    assert asked.failure is None, asked.failure
    program[1] = train_op(case.tokens.shape[0], "plain")
    plain, _ = await run(session, server, case, program)
    assert (asked.ops[1].losses, asked.ops[1].grad_norms) == (
        plain.ops[1].losses, plain.ops[1].grad_norms,
    )  # fmt: skip
    assert asked.blobs["param"] == plain.blobs["param"]

    assert asked.ops[1].detail["profile"], asked.ops[1].detail["reason"]
    found = ProfileSamples.model_validate(asked.ops[1].detail["profile"])
    assert asked.result
    assert sum(op.calls for op in found.ops) == asked.result.ran["dispatches_per_step"]
    calls = {op.op: op.calls for op in found.ops}
    L = config.n_layer
    assert calls["matmul_forward"] == 3 * L
    assert calls["attention_backward"] == calls["grad_norm"] * L == 2 * L
    assert (found.ops[0].op, found.ops[-1].op) == ("encoder_forward", "adamw")
    in_c = re.search(r"define OPERATIONS\(one\)(.*?)\n\n", (WASM_SRC / "gpt.h").read_text(), re.S)
    assert in_c
    assert {*calls, "bias_backward"} == set(re.findall(r"one\((\w+)\)", in_c.group(1)))

    assert found.clock == "timestamp-query"
    assert found.clock_step_ms
    times = [ms for op in found.ops for ms in op.windows_ms]
    assert any(times)
    whole = np.array(times) / found.clock_step_ms
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-3)


async def test_without_timestamps_a_profile_says_why(session, server) -> None:
    case = case_of(SMALL, steps=4)
    program = [open_op(), profile_op(1, 1)]
    outcome, _ = await run(session, server, case, program, lacks="timestamp-query")
    assert outcome.failure is None, outcome.failure
    detail = outcome.ops[1].detail
    assert (detail["profile"], detail["reason"]) == (None, "this adapter has no timestamp-query")


async def test_the_gpus_sentinel(session, server) -> None:
    """It is right, takes time, and leaves the arm alone; twice in one page as well."""
    case = case_of(SMALL)
    sentinel = Op(op="gpu_sentinel", count=2)
    program = [sentinel, open_op(), train_op(3, "window"), sentinel]
    outcome, _ = await run(session, server, case, program)
    assert outcome.failure is None, outcome.failure
    for op in (outcome.ops[0], outcome.ops[3]):
        assert len(op.values_ms) == 2 and min(op.values_ms) > 0


# --------------------------------------------------------------------------- half precision


async def errors_of(
    session: BrowserSession, server: JobServer, case: Case, **options: Any
) -> tuple[dict[str, float], JobOutcome]:
    """Largest relative errors of one step against the float64 reference, by gate."""
    got, outcome = await trained(session, server, case, **options)
    step = Reference(case.config, case.state).step(case.tokens[0])
    grads = [tensor_error(g, got.grads[name], name).rel_l2 for name, g in step.grads.items()]
    loss = abs(got.losses[0] - step.loss) / step.loss
    return {"parity.grads": max(grads), "parity.first_loss": loss}, outcome


HALVED = SHAPES["vocabulary 97, five heads of 8"]


@pytest.mark.parametrize("shape", ["vocabulary 97, five heads of 8", "nothing divides by 4"])
async def test_packed_weights_keep_their_tolerance(session, server, shape) -> None:
    """Within the limits derived beforehand, and so far off that halves must have been read."""
    config = SHAPES[shape]
    errors, outcome = await errors_of(session, server, case_of(config), f16="storage")
    limits = reduced_limits("storage", config.n_layer)
    for gate, error in errors.items():
        assert error <= limits[gate], gate
    assert errors["parity.grads"] > 1e-4, "float32 is right to 2e-5"
    assert outcome.result
    ran = outcome.result.ran
    assert ran["f16"] == "storage"
    assert ran["kernels"]["h.mlp.up"]["file"] == "matmul_forward_blocked_w16.wgsl"
    assert ran["kernels"]["adamw"]["file"] == "adamw_w16.wgsl"
    size = flat_size(config)
    assert 0 <= outcome.result.memory["buffer_bytes"]["halves"] - 2 * size < 256


async def test_packed_weights_on_a_golden_case(session, server, golden) -> None:
    """Every loss, norm and final parameter of the oracle's smallest case, by the curve's limits."""
    case = read_case(golden / "tiny.case.safetensors")
    answer = load_file(golden / "tiny.answer.safetensors")
    got, _ = await trained(session, server, case, f16="storage")
    limits = reduced_limits("storage", case.config.n_layer)

    def check(gate: str, errors: list[float]) -> None:
        assert max(errors) <= limits[gate], gate
        assert max(errors) > 1e-6, f"{gate}: as right as float32"

    check("curve.loss", list(np.abs(got.losses / answer["losses"] - 1)))
    check("curve.grad_norm", list(np.abs(got.grad_norms / answer["grad_norms"] - 1)))
    for gate, kind, tensors in (
        ("parity.grads", "grad", got.grads),
        ("final.params", "param", got.params),
    ):
        errors = [tensor_error(answer[f"{kind}/{n}"], x, n).rel_l2 for n, x in tensors.items()]
        check(gate, errors)
        print(gate, max(errors), limits[gate])


async def test_packed_weights_need_no_more_dispatches(session, server) -> None:
    program = [open_op(), train_op(1, "first"), train_op(3, "window")]
    outcome, _ = await run(session, server, case_of(HALVED, steps=4), program, f16="storage")
    assert outcome.result
    ran = outcome.result.ran
    assert ran["dispatches_per_step"] <= 22 * HALVED.n_layer + 15
    assert ran["counts"]["dispatchWorkgroups"] == 3 * ran["dispatches_per_step"]
    assert ran["counts"]["submit"] == 3 + 1
    assert ran["counts"].get("createBuffer", 0) == 0


async def test_the_tolerance_refuses_weights_of_eight_bits(session, server) -> None:
    """Sabotage: packing keeps sign, exponent and two more bits."""
    sources = {}
    for name in ("adamw_w16.wgsl", "pack_w16.wgsl"):
        text = gather_wgsl()[name].path.read_bytes()
        harmed = text.replace(b"return magnitude |", b"return ((magnitude + 0x80u) & 0xff00u) |")
        assert harmed != text
        sources[name] = harmed.replace(b"0x80u)", b"vec4u(0x80u))").replace(
            b"& 0xff00u", b"& vec4u(0xff00u)"
        )
    errors, _ = await errors_of(session, server, case_of(HALVED), f16="storage", sources=sources)
    limits = reduced_limits("storage", HALVED.n_layer)
    assert errors["parity.grads"] > 2 * limits["parity.grads"]


async def test_weights_that_no_half_holds_end_the_window(session, server) -> None:
    case = case_of(HALVED)
    # Near enough to the largest half to be rounded to it; decay makes it small enough in one step.
    case.state["h.0.mlp.w1"][1, 2] = 65519
    failure = await failure_of(session, server, case, f16="storage")
    assert failure.kind == "failed"
    assert "f16=storage: weights beyond 65504" in failure.message
    assert "packed once by the end of step 2" in failure.message
    assert "use f16=off" in failure.message
    case.state["h.0.mlp.w1"][1, 2] = 1e6  # infinite as a half: nothing of it may pass for a number
    failure = await failure_of(session, server, case, f16="storage")
    assert "f16=storage: weights beyond 65504" in failure.message


async def test_products_in_halves_are_refused_without_the_feature(session, server) -> None:
    features = (await probe(session, server)).features["webgpu"]["features"]
    if "shader-f16" in features:
        pytest.skip("this adapter has shader-f16")
    failure = await failure_of(session, server, case_of(HALVED), f16="compute")
    assert failure.kind == "unsupported"
    assert "this adapter has no shader-f16" in failure.message


async def test_halves_need_the_blocked_products(session, server) -> None:
    failure = await failure_of(session, server, case_of(HALVED), f16="storage", matmul="tiled")
    assert failure.kind == "unsupported"
    assert "mm_fwd=tiled reads no halves" in failure.message


# --------------------------------------------------------------------------- loud


async def test_a_lost_device_ends_the_window(session, server) -> None:
    failure = await failure_of(session, server, case_of(SMALL, steps=400), fault="lost")
    assert failure.kind == "device-lost"
    assert "destroyed" in failure.message


async def test_a_validation_error_ends_the_window(session, server) -> None:
    failure = await failure_of(session, server, case_of(SMALL), fault="invalid")
    assert failure.kind == "validation"
    assert "train at step" in failure.message


async def test_a_compile_error_names_file_and_line(session, server) -> None:
    broken = {"adamw.wgsl": b"// one\nfn main() { let x: u32 = 1.5; }\n"}
    failure = await failure_of(session, server, case_of(SMALL), sources=broken)
    assert failure.kind == "compile"
    assert "adamw.wgsl, line 2" in failure.message


async def test_a_wrong_constant_is_a_compile_error(session, server) -> None:
    source = gather_wgsl()["adamw.wgsl"].path.read_bytes()
    broken = {"adamw.wgsl": source.replace(b"VECTORS", b"OTHER")}
    failure = await failure_of(session, server, case_of(SMALL), sources=broken)
    assert failure.kind == "compile"
    assert "adamw.wgsl" in failure.message


async def test_out_of_memory_says_so(session, server) -> None:
    failure = await failure_of(session, server, case_of(SMALL), fault="out-of-memory")
    assert failure.kind == "out-of-memory"
    assert "no room" in failure.message


async def test_no_adapter_is_unsupported(session, server) -> None:
    failure = await failure_of(session, server, case_of(SMALL), fault="no adapter")
    assert failure.kind == "unsupported"
    assert "no WebGPU adapter" in failure.message


async def test_a_missing_feature_is_unsupported(session, server) -> None:
    asked = {"matmul": "subgroup", "lacks": "subgroups"}
    failure = await failure_of(session, server, case_of(SMALL), **asked)
    assert failure.kind == "unsupported"
    assert "no subgroups" in failure.message


async def test_what_the_adapter_cannot_hold_is_refused_with_numbers(session, server) -> None:
    # Logits of 32768 · 32767 · 4 bytes are nearly 4 GiB; the model itself is small.
    wide = model(n_layer=1, n_head=1, d_model=4, ctx=32768, batch=1, vocab=32767)
    case = Case(wide, np.zeros((1, 1, 32769), np.int32), initial_state(wide, 1))
    failure = await failure_of(session, server, case)
    assert failure.kind == "unsupported"
    assert "logits" in failure.message
    assert str(32768 * 32767 * 4) in failure.message


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("maxBufferSize=4096", r"the buffer \w+ of \d+ bytes"),
        ("maxStorageBufferBindingSize=1024", r"the binding \w+ of \d+ bytes"),
        ("maxStorageBuffersPerShaderStage=6", "adamw by adamw.wgsl with 7 arrays"),
        ("maxComputeWorkgroupStorageSize=2000", r"the workgroup memory of .*"),
        ("maxComputeInvocationsPerWorkgroup=128", r"the workgroup of \d+x\d+ of .*"),
        ("maxComputeWorkgroupSizeX=100", r"the workgroup of 256x1 of .*"),
        ("maxComputeWorkgroupsPerDimension=1", r"the dispatch of [\dx]+ workgroups of .*"),
    ],
)
async def test_every_limit_is_refused_with_both_numbers(session, server, limit, said) -> None:
    """Before a device is asked for, so before anything is allocated."""
    failure = await failure_of(session, server, case_of(SMALL), limits=limit)
    name, allowed = limit.split("=")
    assert failure.kind == "unsupported"
    assert failure.op == "open"
    assert re.search(f"{said}.*{name} = \\d+; this adapter allows {allowed}", failure.message)


async def test_arrays_that_kernels_cannot_index_are_refused(session, server) -> None:
    wide = model(n_layer=1, n_head=1, d_model=4, ctx=32768, batch=1, vocab=65536)
    case = Case(wide, np.zeros((1, 1, 32769), np.int32), initial_state(wide, 1))
    failure = await failure_of(session, server, case)
    assert failure.kind == "unsupported"
    assert f"logits has {2**31} floats; kernels index at most {2**30}" in failure.message
