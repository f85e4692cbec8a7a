"""The WASM arm in a real Chromium: right at odd shapes, same bits always, loud when it fails."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import GOLDEN

from driver.arms import TILE_OF, TILES
from driver.browser import BrowserSession
from driver.build import build_wasm
from driver.cases import Case, Result, read_case, write_result
from driver.jobs import (
    NO_MODEL,
    JobMaker,
    curve,
    open_op,
    profile_op,
    read_op,
    roofline_op,
    train_op,
)
from driver.measure import JobOutcome, run_job
from driver.records import ArmJob, ModelConfig, Op, OpResult, ProfileSamples, Roofline
from driver.reference import Reference
from driver.server import JobServer
from driver.tensors import flatten, initial_state

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECIPE: dict[str, Any] = {
    "lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
}  # fmt: skip


def config(L: int, H: int, C: int, F: int, T: int, B: int, V: int, **recipe: float) -> ModelConfig:
    return ModelConfig(
        n_layer=L, n_head=H, d_model=C, d_ff=F, ctx=T, batch=B, vocab=V, **{**RECIPE, **recipe}
    )


SHAPES = {
    "vocabulary 97, five heads of 8": config(2, 5, 40, 160, 17, 3, 97),
    "heads of 12": config(2, 2, 24, 96, 9, 2, 97),
    "everything 1": config(1, 1, 1, 1, 1, 1, 2),
    "nothing divides by 4": config(3, 3, 21, 35, 13, 3, 101, grad_clip=0.0),
    "one wide head, long rows": config(1, 1, 70, 70, 67, 1, 300, weight_decay=0.0),
    "deeper than a cache block": config(1, 2, 36, 300, 60, 5, 50),
}
# Every feature level, address type, kernel and thread count that must give the same bits; by level.
SAME_BITS: dict[str, Sequence[dict[str, Any]]] = {
    "relaxed": (
        {"threads": 1, "kernel": "naive"},
        {"threads": 2},
        {"threads": 4, "name": "wasm64"},
        {"threads": 8},
        {"threads": 1, "mm_da": "naive"},
        {"threads": 3, "mm_db": "naive", "name": "wasm64"},
        *({"tile": tile} for tile in TILES["relaxed"][1:]),
        {"tile_fwd": "6x8", "tile_db": "8x8", "name": "wasm64"},
        {"threads": 1, "shared": "off"},
        {"threads": 1, "shared": "off", "name": "wasm64"},
    ),
    "simd128": (
        {"threads": 1},
        {"threads": 2, "name": "wasm64", "kernel": "naive"},
        {"threads": 1, "shared": "off"},
        *({"tile": tile} for tile in TILES["simd128"][1:]),
    ),
    "scalar": (
        {"threads": 2},
        {"threads": 1, "name": "wasm64", "kernel": "naive"},
        {"tile": "4x4"},
        {"threads": 1, "shared": "off", "name": "wasm64"},
    ),
}


def arm(
    name: str = "wasm",
    threads: int = 2,
    simd: str = "relaxed",
    kernel: str = "blocked",
    **more: Any,
) -> ArmJob:
    options = {
        "threads": threads,
        "simd": simd,
        "shared": "on",
        "mm_fwd": kernel,
        "mm_da": kernel,
        "mm_db": kernel,
    }
    tile = more.pop("tile", TILES[simd][0] if simd in TILES else "4x8")
    tiles = dict.fromkeys(TILE_OF.values(), tile)
    return ArmJob(name=name, module="arm_wasm.js", options={**options, **tiles, **more})


def case_of(shape: ModelConfig, steps: int = 3, seed: int = 5) -> Case:
    """Random batches and a state whose biases and gains are not 0 and 1."""
    random = np.random.default_rng(seed)
    state = {
        name: (value + random.normal(0, 0.05, value.shape)).astype(np.float32)
        for name, value in initial_state(shape, seed).items()
    }
    tokens = random.integers(0, shape.vocab, (steps, shape.batch, shape.ctx + 1))
    return Case(shape, tokens.astype(np.int32), state)


@dataclass
class Trained:
    """What a run gave; `bits` covers all losses, norms, gradients and parameters."""

    result: Result
    outcome: JobOutcome

    @property
    def bits(self) -> str:
        digest = hashlib.sha256()
        digest.update(np.asarray(self.result.losses).tobytes())
        digest.update(np.asarray(self.result.grad_norms).tobytes())
        for blob in ("grad", "param"):
            digest.update(self.outcome.blobs[blob])
        return digest.hexdigest()


async def run(
    session: BrowserSession,
    server: JobServer,
    case: Case,
    on: ArmJob,
    program: list[Op],
    **state: Any,
) -> tuple[JobMaker, JobOutcome]:
    maker = JobMaker(server, case.config)
    sections = state.pop("sections", {"param": flatten(case.config, case.state)})
    initial, _ = maker.state("initial", sections, **state)
    tokens, _ = maker.tokens(case.tokens)
    job = maker.job("wasm", on, {"initial": initial}, tokens, program)
    return maker, await run_job(session, server, job, deadline_s=240)


async def trained(
    session: BrowserSession, server: JobServer, case: Case, on: ArmJob, window: int | None = None
) -> Trained:
    """The case's steps; gradients of the first. With `window` the later steps are one window."""
    steps = case.tokens.shape[0]
    program = [open_op(), train_op(1, "step"), read_op("grad", "grad")]
    rest = [1] * (steps - 1) if window is None else [window] * ((steps - 1) // window)
    program += [train_op(n, "step") for n in rest] + [read_op("param", "param")]
    maker, outcome = await run(session, server, case, on, program)
    assert outcome.failure is None, outcome.failure
    assert outcome.result is not None
    losses, norms = curve(outcome.result.ops)
    result = Result(
        losses=np.array(losses),
        grad_norms=np.array(norms),
        grads=maker.tensors_of(outcome.blobs["grad"]),
        params=maker.tensors_of(outcome.blobs["param"]),
    )
    return Trained(result, outcome)


# --------------------------------------------------------------------------- right


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("on", [arm("wasm", 1), arm("wasm64", 2), arm("wasm", 2, kernel="naive")])
async def test_golden_cases(session, server, golden, check_case, tmp_path, name, on) -> None:
    done = await trained(session, server, read_case(golden / f"{name}.case.safetensors"), on)
    write_result(tmp_path / "result.safetensors", done.result)
    answer = golden / f"{name}.answer.safetensors"
    checked = subprocess.run(
        [sys.executable, check_case, answer, tmp_path / "result.safetensors"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("simd", SAME_BITS)
async def test_odd_shapes_agree_with_the_reference(session, server, shape, simd) -> None:
    case = case_of(SHAPES[shape])
    got = (await trained(session, server, case, arm(simd=simd))).result
    reference = Reference(case.config, case.state)
    steps = [reference.step(tokens) for tokens in case.tokens]
    np.testing.assert_allclose(got.losses, [s.loss for s in steps], rtol=2e-6)
    np.testing.assert_allclose(got.grad_norms, [s.grad_norm for s in steps], rtol=2e-5)
    largest = max(float(np.abs(g).max()) for g in steps[0].grads.values())
    for name, want in steps[0].grads.items():
        close(name, got.grads[name], want, 2e-5, floor=1e-6 * largest)
    if shape == "everything 1":
        return  # rounding alone decides the steps of gradients that are exactly 0
    for name, want in reference.params.items():
        close(name, got.params[name], want, 5e-5)


def close(name: str, got: np.ndarray, want: np.ndarray, bound: float, floor: float = 0.0) -> None:
    """Relative L2 error; the key bias is left out, its exact gradient is 0."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    if name.endswith("attn.bqkv"):
        got, want = [np.delete(x.reshape(3, -1), 1, axis=0) for x in (got, want)]
    error = np.linalg.norm(got - want)
    assert error <= bound * np.linalg.norm(want) + floor, f"{name}: {error}"


# --------------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("shape", ["vocabulary 97, five heads of 8", "nothing divides by 4",
                                   "deeper than a cache block"])  # fmt: skip
@pytest.mark.parametrize("simd", SAME_BITS)
async def test_the_same_bits_whatever_runs(session, server, shape, simd) -> None:
    case = case_of(SHAPES[shape])
    bits = {
        str(options): (await trained(session, server, case, arm(simd=simd, **options))).bits
        for options in SAME_BITS[simd]
    }
    assert len(set(bits.values())) == 1, bits


async def test_a_window_gives_what_single_steps_give(session, server) -> None:
    case = case_of(SHAPES["heads of 12"], steps=7)
    single = await trained(session, server, case, arm())
    whole = await trained(session, server, case, arm(), window=6)
    assert single.bits == whole.bits


async def test_a_run_continues_from_its_state(session, server) -> None:
    case = case_of(SHAPES["heads of 12"], steps=4)
    sections = ("param", "m", "v")
    reads = [read_op(what, what) for what in sections]
    _, whole = await run(session, server, case, arm(), [open_op(), train_op(4, "x"), *reads])
    _, half = await run(session, server, case, arm(), [open_op(), train_op(2, "x"), *reads])
    kept = {what: np.frombuffer(half.blobs[what], "<f4") for what in sections}
    _, rest = await run(
        session, server, case, arm(threads=1), [open_op(), train_op(2, "x"), *reads],
        sections=kept, t=2, at=2,
    )  # fmt: skip
    assert {k: bytes(whole.blobs[k]) for k in sections} == {
        k: bytes(rest.blobs[k]) for k in sections
    }


async def test_a_state_loaded_again_gives_the_same_curve(session, server) -> None:
    case = case_of(SHAPES["heads of 12"], steps=3)
    again = [Op(op="load", state="initial"), train_op(3, "x")]
    _, outcome = await run(session, server, case, arm(), [open_op(), train_op(3, "x"), *again])
    assert outcome.failure is None
    losses, _ = curve(outcome.result.ops)
    assert losses[:3] == losses[3:]


async def test_states_survive_a_round_trip(session, server) -> None:
    case = case_of(SHAPES["heads of 12"])
    program = [open_op(), train_op(2, "x"), Op(op="reimport")]
    _, outcome = await run(session, server, case, arm("wasm64"), program)
    assert outcome.failure is None
    assert outcome.result.ops[-1].detail["equal"] is True


# --------------------------------------------------------------------------- beyond 4 GiB, growth

GIB = 2**30
PLACES = {
    # Beyond 2 GiB a 32-bit pointer comes out of the module as a negative number.
    "across 2 GiB": 2 * GIB - 400_000,
    "beyond 3 GiB": 3 * GIB + 123_456,
    # The sections lie on both sides of the line, then everything beyond it.
    "across 4 GiB": 4 * GIB - 400_000,
    "beyond 4 GiB": 4 * GIB + 123_456,
    "across 8 GiB": 8 * GIB - 400_000,
    "beyond 8 GiB": 8 * GIB + 123_456,
}


def room_for(base_bytes: int) -> None:
    """Pages that nothing touches cost nothing, but a system may refuse what it could never give."""
    if psutil.virtual_memory().total < base_bytes + GIB:
        pytest.skip(f"this machine has less than {base_bytes // GIB + 1} GiB of memory")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("simd", SAME_BITS)
async def test_the_same_bits_at_high_addresses(session, server, simd, place) -> None:
    """Wherever every buffer lies, in the address type that reaches there."""
    room_for(PLACES[place])
    across = place.startswith("across")
    shape = "vocabulary 97, five heads of 8" if across else "deeper than a cache block"
    case = case_of(SHAPES[shape])
    low = await trained(session, server, case, arm("wasm", simd=simd))
    for kernel, threads in (("blocked", 2), ("naive", 1)):
        name = "wasm64" if PLACES[place] > 3.5 * GIB else "wasm"
        on = arm(name, threads, simd, kernel, test_base_bytes=PLACES[place])
        high = await trained(session, server, case, on)
        assert high.bits == low.bits, on.options
        sections = high.outcome.result.memory["sections_at"].values()
        line = round(PLACES[place] / GIB) * GIB
        assert all(at > PLACES[place] for at in sections)
        assert max(sections) > line
        assert (min(sections) < line) == across
        assert high.outcome.result.memory["final_bytes"] > PLACES[place]


async def test_states_survive_a_round_trip_at_high_addresses(session, server) -> None:
    room_for(8 * GIB)
    case = case_of(SHAPES["heads of 12"])
    program = [open_op(), train_op(2, "x"), Op(op="reimport"), Op(op="load", state="initial"),
               train_op(2, "x")]  # fmt: skip
    on = arm("wasm64", test_base_bytes=8 * GIB)
    _, outcome = await run(session, server, case, on, program)
    assert outcome.failure is None
    assert outcome.result.ops[2].detail["equal"] is True
    losses, _ = curve(outcome.result.ops)
    assert losses[:2] == losses[2:]


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("name", "base"), [
    ("wasm", 0), ("wasm", 2 * GIB - 200_000), ("wasm64", 0),
    ("wasm64", 4 * GIB - 200_000), ("wasm64", 8 * GIB - 200_000),
])  # fmt: skip
async def test_growth_in_the_middle_of_training(session, server, name, base, window) -> None:
    """Everything moves into the new part: across 4 or 8 GiB, within a window or between two."""
    room_for(base)
    case = case_of(SHAPES["vocabulary 97, five heads of 8"], steps=8)
    still = await trained(session, server, case, arm(name, 4), window)
    on = arm(name, 4, test_base_bytes=base, test_grow_at=4)
    grown = await trained(session, server, case, on, window)
    assert grown.bits == still.bits
    before, after = still.outcome.result.memory, grown.outcome.result.memory
    assert (before["growths"], before["growths_pages"]) == (0, [])
    assert after["growths"] == 1
    (pages,) = after["growths_pages"]
    assert pages > 0
    assert after["final_pages"] == after["initial_pages"] + pages == after["maximum_pages"]
    assert min(after["sections_at"].values()) >= after["initial_bytes"]


async def test_growth_that_is_refused(session, broken) -> None:
    script = "WebAssembly.Memory.prototype.grow = () => { throw new RangeError('no more'); };"
    server = await broken("arm_wasm.js", BEFORE.format(script))
    case = case_of(SHAPES["heads of 12"])
    on = arm(test_grow_at=1)
    _, outcome = await run(session, server, case, on, [open_op(), train_op(3, "x")])
    assert outcome.failure is not None
    assert outcome.failure.kind == "out-of-memory"
    assert "no more" in outcome.failure.message


# --------------------------------------------------------------------------- what ran


@pytest.mark.parametrize("on", [
    arm("wasm", 1, "scalar", "naive"), arm("wasm64", 3, "simd128", mm_db="naive", tile_da="8x8"),
    arm("wasm", 1, "relaxed", shared="off"),
])  # fmt: skip
async def test_it_says_what_ran(session, server, on) -> None:
    case = case_of(SHAPES["heads of 12"])
    _, outcome = await run(session, server, case, on, [open_op(), train_op(2, "x")])
    assert outcome.failure is None
    ran, memory = outcome.result.ran, outcome.result.memory
    address = "i64" if on.name == "wasm64" else "i32"
    assert ran["arm"] == on.name
    shared = on.options["shared"] == "on"
    assert ran["module_sha256"] == build_wasm(str(on.options["simd"]), on.name, shared).sha256
    assert ran["address_type"] == address
    for key in ("simd", "threads", "shared"):
        assert ran[key] == on.options[key]
    assert ran["kernels"] == {key: on.options[key] for key in TILE_OF}
    assert ran["tiles"] == {key: on.options[key] for key in TILE_OF.values()}
    assert ran["hyper"] == case.config.model_dump()
    assert memory["address_type"] == address
    assert memory["shared"] is shared
    assert memory["growths"] == 0
    assert memory["initial_pages"] == memory["final_pages"] == memory["maximum_pages"]
    assert memory["final_bytes"] == 65536 * memory["final_pages"]
    apart = on.name == "wasm64" and on.options["simd"] != "scalar"
    assert (memory["panels_bytes"] > 0) is apart


# --------------------------------------------------------------------------- the workbench


async def bench(
    session: BrowserSession, server: JobServer, on: ArmJob, program: list[Op]
) -> list[OpResult]:
    """What instructions of a job without a model give, opening left out."""
    job = JobMaker(server, NO_MODEL).job("bench", on, {}, None, [open_op(), *program])
    outcome = await run_job(session, server, job, deadline_s=120)
    assert outcome.failure is None, outcome.failure
    assert outcome.result is not None
    return outcome.result.ops[1:]


@pytest.mark.parametrize("on", [arm(), arm("wasm64", 1, "simd128"), arm("wasm", 2, "scalar")])
async def test_the_roofline(session, server, on) -> None:
    (op,) = await bench(session, server, on, [roofline_op(3)])
    found = Roofline.model_validate(op.detail["roofline"])
    assert found.threads == on.options["threads"]
    assert found.flavour.startswith("relaxed") == (on.options["simd"] == "relaxed")
    for values in (found.core_gflops, found.all_gflops, found.bandwidth_core_gbs,
                   found.bandwidth_all_gbs):  # fmt: skip
        assert len(values) == 3
        assert all(0.01 < value < 10_000 for value in values)


# A module whose clock is its own: 24 chains are slower than 12, and threads that have only just
# been asked for are slow for a while.
WAKING = """
import {{ open as real }} from "{{real}}";
export async function open(job, io) {{
  const arm = await real(job, io);
  let now = performance.now();
  let asked = null;
  performance.now = () => now;
  arm.workbench.meetings = () => {{}};
  arm.workbench.triad = () => {{ now += 1; }};
  arm.workbench.madds = (many, chunks) => {{
    const flops = 1e6 * chunks;
    if (chunks > 1) asked ??= now;
    const slow = chunks > 1 && now < asked + {};
    now += (flops / (many ? 80e6 : 100e6)) * (slow ? 4 : 1);
    return flops;
  }};
  return arm;
}}
"""


@pytest.mark.parametrize("awake_ms", [0, 60, 120, 180])
async def test_the_roofline_of_threads_that_wake(session, broken, awake_ms) -> None:
    """The number of chains is not decided by which was tried while the threads were slow."""
    server = await broken("arm_wasm.js", WAKING.format(awake_ms))
    (op,) = await bench(session, server, arm("wasm", 2), [roofline_op(3)])
    found = Roofline.model_validate(op.detail["roofline"])
    assert found.chains == 12
    assert found.all_gflops == pytest.approx([100.0] * 3)


async def test_an_arm_without_a_workbench_has_no_roofline(session, server) -> None:
    (op,) = await bench(
        session, server, ArmJob(name="null", module="arm_null.js", options={}), [roofline_op(3)]
    )
    assert op.detail == {"roofline": None}


# --------------------------------------------------------------------------- where the time goes


def calls_of(L: int) -> dict[str, int]:
    """How often one step runs each operation."""
    once = ("encoder_forward", "head_forward", "crossentropy", "head_backward_da",
            "head_backward_db", "encoder_backward", "grad_norm", "adamw")  # fmt: skip
    by_layer = ("attention_forward", "matmul_gelu_forward", "attention_backward")
    products = ("bias_backward", "matmul_backward_da", "matmul_backward_db")
    return {
        **dict.fromkeys(once, 1),
        **dict.fromkeys(by_layer, L),
        **dict.fromkeys(products, 4 * L),
        "matmul_forward": 3 * L,
        **dict.fromkeys(("layernorm_forward", "layernorm_backward"), 2 * L + 1),
    }


@pytest.mark.parametrize("on", [arm("wasm", 1), arm("wasm64", 2, "simd128")])
async def test_a_profile(session, server, on) -> None:
    """It says what ran, its times lie within the windows', and it changes no number."""
    rounds, steps = 2, 3
    case = case_of(SHAPES["nothing divides by 4"], steps=4 * steps * (1 + rounds))
    whole = case.tokens.shape[0]
    program = [open_op(), profile_op(steps, rounds), read_op("param", "param")]
    _, asked = await run(session, server, case, on, program)
    program[1] = train_op(whole, "plain")
    _, plain = await run(session, server, case, on, program)
    assert asked.failure is plain.failure is None
    assert asked.ops[1].losses == plain.ops[1].losses
    assert asked.ops[1].grad_norms == plain.ops[1].grad_norms
    assert len(asked.ops[1].losses) == asked.ops[1].steps == whole
    assert asked.blobs["param"] == plain.blobs["param"]

    found = ProfileSamples.model_validate(asked.ops[1].detail["profile"])
    assert found.steps == steps
    assert len(found.plain_ms) == len(found.profiled_ms) == 2 * rounds
    assert {op.op: op.calls for op in found.ops} == calls_of(case.config.n_layer)
    assert next(op.op for op in found.ops) == "encoder_forward"
    assert found.ops[-1].op == "adamw"
    for window, wall in enumerate(found.profiled_ms):
        inside = sum(op.windows_ms[window] for op in found.ops)
        assert 0 < inside <= wall + 0.01  # the clock's step is 0.005 ms


ASKED = """
const real = WebAssembly.instantiate;
const now = () => { throw new Error("the clock was asked"); };
WebAssembly.instantiate = (module, { env }) => real(module, { env: { ...env, now } });
"""


async def test_without_the_profiler_the_clock_is_never_asked(session, broken) -> None:
    server = await broken("arm_wasm.js", BEFORE.format(ASKED))
    case = case_of(SHAPES["heads of 12"], steps=11)
    program = [open_op(), train_op(3, "x"), profile_op(1, 1)]
    _, outcome = await run(session, server, case, arm(), program)
    assert [op.op for op in outcome.ops] == ["open", "train"]
    assert outcome.failure is not None
    assert outcome.failure.op == "profile"
    assert "the clock was asked" in outcome.failure.message


async def test_an_arm_without_a_profiler_says_so(session, server) -> None:
    (op,) = await bench(
        session, server, ArmJob(name="null", module="arm_null.js", options={}), [profile_op(1, 1)]
    )
    assert op.detail == {"profile": None, "reason": "not measured on this arm yet"}


# --------------------------------------------------------------------------- loud when it fails


BEFORE = 'export {{ open }} from "{{real}}";\n{}'
LACKS = {
    "Memory64": (
        "const Real = WebAssembly.Memory; WebAssembly.Memory = class extends Real {"
        " constructor(d) { if (d.address) throw new TypeError('no'); super(d); } };",
        arm("wasm64"),
        "Memory64",
    ),
    "SIMD": ("WebAssembly.validate = () => false;", arm(), "SIMD"),
    "two memories in a module": (
        "WebAssembly.validate = () => false;",
        arm("wasm64"),
        "one memory only",
    ),
    "room for packed operands": (
        "const Real = WebAssembly.Memory; WebAssembly.Memory = class extends Real {"
        " constructor(d) {"
        " if (!d.address && d.initial > 0) throw new RangeError('no'); super(d); } };",
        arm("wasm64"),
        "packed operands",
    ),
    "isolation": (
        "Object.defineProperty(self, 'crossOriginIsolated', { value: false });",
        arm(),
        "not cross-origin isolated",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
async def test_what_the_browser_lacks(session, broken, lack) -> None:
    script, on, words = LACKS[lack]
    server = await broken("arm_wasm.js", BEFORE.format(script))
    _, outcome = await run(session, server, case_of(SHAPES["heads of 12"]), on, [open_op()])
    assert outcome.failure is not None
    assert outcome.failure.kind == ("out-of-memory" if lack.startswith("room") else "unsupported")
    assert words in outcome.failure.message


@pytest.mark.parametrize("name", ["wasm", "wasm64"])
async def test_a_page_that_shares_no_memory(session, broken, name) -> None:
    """One thread trains on memory of its own, where there is not even a SharedArrayBuffer."""
    script = (
        "delete self.SharedArrayBuffer;"
        "Object.defineProperty(self, 'crossOriginIsolated', { value: false });"
    )
    server = await broken("arm_wasm.js", BEFORE.format(script))
    case = case_of(SHAPES["heads of 12"])
    done = await trained(session, server, case, arm(name, 1, shared="off"))
    assert done.outcome.result.memory["shared"] is False
    assert done.bits == (await trained(session, server, case, arm(name, 1, shared="off"), 2)).bits


async def test_one_thread_needs_no_worker(session, broken) -> None:
    server = await broken(
        "arm_wasm.js",
        BEFORE.format("self.Worker = class { constructor() { throw new Error('no'); } };"),
    )
    case = case_of(SHAPES["heads of 12"])
    _, outcome = await run(session, server, case, arm(threads=1), [open_op(), train_op(1, "x")])
    assert outcome.failure is None


@pytest.mark.parametrize(("script", "kind", "words"), [
    ("throw new Error('no thread today');", "failed", "did not start"),
    ("this is no script", "failed", "did not start"),
    ("self.onmessage = () => self.postMessage({ kind: 'failed', message: 'refused' });", "failed",
     "thread 1 of 2 did not start: refused"),
])  # fmt: skip
async def test_a_thread_that_does_not_start(session, broken, script, kind, words) -> None:
    server = await broken("pool.js", script)
    _, outcome = await run(session, server, case_of(SHAPES["heads of 12"]), arm(), [open_op()])
    assert outcome.failure is not None
    assert outcome.failure.kind == kind
    assert words in outcome.failure.message


async def test_a_thread_that_traps(session, broken) -> None:
    """Its stack lies outside the memory. The caller, who may wait for its chunk, goes on."""
    server = await broken("pool.js", (
        'import "{real}";\nconst real = self.onmessage;\n'
        "self.onmessage = (e) => real({ data: { ...e.data, stack: 0xffff0000 } });"
    ))  # fmt: skip
    case = case_of(SHAPES["nothing divides by 4"], steps=200)
    _, outcome = await run(session, server, case, arm(), [open_op(), train_op(200, "x")])
    assert outcome.failure is not None
    assert outcome.failure.kind == "crash"
    assert "memory access out of bounds" in outcome.failure.message


async def test_a_module_that_does_not_compile(session, broken) -> None:
    server = await broken("arm_wasm.js", (
        'import * as real from "{real}";\n'
        "const bytes = async () => new ArrayBuffer(8);\n"
        "export const open = (job, io) => real.open(job, { ...io, bytes });"
    ))  # fmt: skip
    _, outcome = await run(
        session, server, case_of(SHAPES["heads of 12"]), arm(simd="simd128"), [open_op()]
    )
    assert outcome.failure is not None
    assert outcome.failure.kind == "compile"


async def test_a_token_outside_the_vocabulary(session, server) -> None:
    case = case_of(SHAPES["heads of 12"])
    case.tokens[1, 0, 0] = 97
    _, outcome = await run(session, server, case, arm(), [open_op(), train_op(3, "x")])
    assert outcome.failure is not None
    assert outcome.failure.kind == "validation"
    assert "0…96" in outcome.failure.message


@pytest.mark.parametrize(("options", "words"), [
    ({"threads": 0}, "threads=0"), ({"test_grow_at": -1}, "test_grow_at=-1"),
    ({"shared": "maybe"}, "shared=maybe"), ({"shared": "off"}, "threads=2 needs shared=on"),
    ({"simd": "avx"}, "simd=avx"), ({"mm_da": "fast"}, "mm_da=fast"),
    ({"tile_da": "2x4"}, "tile_da=2x4: this module has the tiles 4x8"),
])  # fmt: skip
async def test_options_it_does_not_know(session, server, options, words) -> None:
    on = ArmJob(name="wasm", module="arm_wasm.js", options={**arm().options, **options})
    maker = JobMaker(server, SHAPES["heads of 12"])
    case = case_of(SHAPES["heads of 12"])
    initial, _ = maker.state("initial", {"param": flatten(case.config, case.state)})
    tokens, _ = maker.tokens(case.tokens)
    # Made for an arm that can be built, then posted with the options: the page has to refuse them.
    job = maker.job("options", arm(), {"initial": initial}, tokens, [open_op()])
    job = job.model_copy(update={"arm": on})
    outcome = await run_job(session, server, job, deadline_s=60)
    assert outcome.failure is not None
    assert words in outcome.failure.message


async def test_more_than_32_bits_hold(session, server) -> None:
    """Planned in 64 bits and refused beforehand, with the numbers and what to do."""
    shape = config(2, 2, 24, 96, 9, 2, 97).model_copy(update={"d_ff": 60_000_000})
    maker = JobMaker(server, config(2, 2, 24, 96, 9, 2, 97))
    case = case_of(maker.config)
    initial, _ = maker.state("initial", {"param": flatten(case.config, case.state)})
    tokens, _ = maker.tokens(case.tokens)
    job = maker.job("large", arm(), {"initial": initial}, tokens, [open_op()])
    job = job.model_copy(update={"config": shape})
    outcome = await run_job(session, server, job, deadline_s=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "out-of-memory"
    assert "wasm64" in outcome.failure.message


@pytest.mark.parametrize("simd", ["relaxed", "simd128", "scalar"])
async def test_inputs_in_the_tail_of_gelu(session, server, simd: str) -> None:
    """All pre-activations near −6: gradients are made of Φ's tail alone."""
    case = case_of(SHAPES["heads of 12"], steps=1)
    for name, value in case.state.items():
        if name.endswith("mlp.b1"):
            value[:] = -6
    got = (await trained(session, server, case, arm(simd=simd))).result
    step = Reference(case.config, case.state).step(case.tokens[0])
    for leaf in ("mlp.w1", "mlp.b1", "mlp.w2"):
        want, have = step.grads[f"h.0.{leaf}"], got.grads[f"h.0.{leaf}"]
        assert np.linalg.norm(have - want) < 1e-5 * np.linalg.norm(want), leaf


async def test_one_token_everywhere(session, server) -> None:
    """Thousands of positions share a row of wte's gradient: they are summed by themselves."""
    case = case_of(config(1, 1, 8, 16, 128, 48, 5), steps=1)
    case.tokens[:] = 3
    got = (await trained(session, server, case, arm())).result
    want = Reference(case.config, case.state).step(case.tokens[0]).grads["wte"]
    assert np.linalg.norm(got.grads["wte"] - want) < 6e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("simd", ["relaxed", "simd128", "scalar"])
async def test_a_nan_is_a_nan(session, server, simd: str) -> None:
    """A NaN among the weights never gives a finite loss."""
    case = case_of(SHAPES["heads of 12"], steps=1)
    case.state["lnf.g"][1] = np.nan
    _, outcome = await run(session, server, case, arm(simd=simd), [open_op(), train_op(1, "x")])
    assert outcome.result is not None
    losses, norms = curve(outcome.result.ops)
    assert np.isnan(losses[0])
    assert np.isnan(norms[0])
