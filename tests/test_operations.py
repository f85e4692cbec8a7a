"""A step's operations apart from it: the table, the bounds, and every one in a real Chromium."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from test_kernels import FEATURES

from driver import layout, reference, report
from driver.arms import parse_arm, resolve
from driver.browser import BrowserSession, find_browser
from driver.errors import UsageError
from driver.jobs import operation_op
from driver.kernels import operations as ops
from driver.kernels import oracle, parse_shapes
from driver.kernels.case import Arrays, Case
from driver.kernels.running import Running, exact, rounded
from driver.parity import UNIT, gamma
from driver.records import KernelReport, OperationRow, OperationSamples
from driver.server import JobServer
from driver.workbench import Workbench

ODD = "B=3+T=17+C=15+H=3+V=11"  # no multiple of a vector or a tile
WIDER = "B=2+T=37+C=36+H=2+V=65+F=50+L=2"  # several chunks of most operations


def cases(shapes: str = ODD, op: str = "all") -> tuple[Case, ...]:
    return parse_shapes(shapes, op).cases


def case_of(name: str, shapes: str = ODD) -> Case:
    return next(case for case in cases(shapes) if case.name == name)


NAMES = [entry.name for entry in ops.TABLE]


# --------------------------------------------------------------------------- shapes


def test_a_preset_stands_for_its_steps_operations() -> None:
    found = {(case.name, case.label) for case in cases("preset:small")}
    assert {name for name, _ in found} == set(NAMES)
    assert ("layernorm_backward", "N=1024 C=96") in found
    assert ("attention_forward", "B=16 T=64 C=96 H=3") in found
    assert {label for name, label in found if name == "bias_backward"} == {
        "N=1024 O=96", "N=1024 O=288", "N=1024 O=384"
    }  # fmt: skip
    assert ("adamw", "floats=367168 tensors=40") in found


def test_sizes_stand_for_a_step() -> None:
    assert {case.label for case in cases("B=2+T=5+C=8", "gelu")} == {"N=10 F=32"}
    assert [case.name for case in cases("B=2+T=5+C=8", "gelu")] == ["gelu_forward", "gelu_backward"]
    assert [case.name for case in cases("B=2+T=5+C=8", "gelu_backward")] == ["gelu_backward"]
    assert cases("C=8+B=2+T=5+H=1+V=256+F=32+L=1") == cases("B=2+T=5+C=8")
    assert len(cases("B=2+T=5+C=8, B=2+T=5+C=8")) == len(cases("B=2+T=5+C=8"))
    both = parse_shapes("B=2+T=5+C=8,8x9x10", "all")
    assert ("mm_da", 8, 9, 10) in both.products
    assert ("mm_da", 10, 8, 24) in both.products
    assert not parse_shapes("B=2+T=5+C=8", "layernorm").products
    assert not parse_shapes("B=2+T=5+C=8", "matmul").cases


@pytest.mark.parametrize(
    ("text", "op", "said"),
    [
        ("B=2+T=5", "gelu", "no C; sizes are joined by +"),
        ("B=2", "gelu", "no T and no C"),
        ("B=2+T=5+C=8+C=9", "gelu", "'C=9': expected each of B, T, C once"),
        ("B=2+T=5+C=8+D=4", "gelu", "'D=4': expected each of B, T, C once"),
        ("B=2+T=0+C=8", "gelu", "'T=0': expected a whole number from 1"),
        ("B=2,T=5,C=8", "gelu", "no T and no C; sizes are joined by +"),
        ("B=2+T=5+C=15+H=2", "gelu", "d_model 15 is not divisible by n_head 2"),
        ("B=2+T=99999+C=8", "gelu", "T should be less than or equal to 65536"),
        ("8x9x10", "gelu", "MxNxK is a product's; --op gelu needs preset:NAME or a step's"),
        ("preset:behemoth", "adamw", "operands of 7221 MiB; at most 256"),
        ("B=8+T=4096+C=64+H=4", "attention", "B·H·T·T is above"),
        ("banana", "gelu", "write preset:NAME, a step's sizes"),
    ],
)
def test_shapes_that_mean_nothing_say_why(text: str, op: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shapes(text, op)
    assert said in str(caught.value)


# --------------------------------------------------------------------------- the table


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.name} {case.label}")
def test_an_entry_fits_together(case: Case) -> None:
    entry = ops.ENTRIES[case.name]
    x = ops.draw(case, 1)
    for array in entry.operands:
        if array.role != "out":
            assert x[array.name].shape == array.lengths(case.sizes), array.name
            assert x[array.name].dtype == np.dtype(array.dtype), array.name
            assert np.isfinite(x[array.name]).all()
    want, bound = entry.exact(case, x), entry.bound(case, x)
    written = {array.name: array for array in entry.operands if array.role != "in"}
    assert set(want) == set(bound) == set(written)
    for name, array in written.items():
        assert want[name].shape == bound[name].shape == array.lengths(case.sizes), name
        assert (bound[name] >= 0).all(), name
        assert np.isfinite(bound[name]).all(), name
    read = [array for array in entry.operands if array.role != "out"]
    assert len(ops.pack(case, x)) == sum(array.size_bytes(case.sizes) for array in read)
    again = ops.draw(case, 1)
    assert all(np.array_equal(x[name], again[name]) for name in x)
    other = ops.draw(case, 2)
    assert not all(np.array_equal(x[name], other[name]) for name in x)


def test_work_is_what_must_move_or_be_computed() -> None:
    assert ops.work(case_of("layernorm_forward")) == 4 * (2 * 51 * 15 + 2 * 51 + 2 * 15)
    assert ops.work(case_of("gelu_backward")) == 4 * 3 * 51 * 60
    assert ops.work(case_of("attention_forward")) == 2 * 3 * 17 * 18 * 15
    assert ops.work(case_of("attention_backward")) == 5 * 3 * 17 * 18 * 15


# --------------------------------------------------------------------------- the bounds


def packed(results: Arrays, case: Case) -> bytes:
    """Results as a page posts them."""
    written = [a for a in ops.ENTRIES[case.name].operands if a.role != "in"]
    return b"".join(np.ascontiguousarray(results[a.name], a.dtype).tobytes() for a in written)


def judged(case: Case, x: Arrays, results: Arrays) -> dict[str, float]:
    return ops.errors_over_bound(case, x, ops.unpack(case, packed(results, case)))


def test_running_errors_hold_for_float32() -> None:
    stream = np.random.default_rng(0)
    a, b = (stream.normal(size=(40, 30)).astype(np.float32) for _ in range(2))
    p = np.abs(a) + np.float32(0.1)
    A, B, P = exact(a), exact(b), exact(p)

    def e_to(x: np.ndarray) -> np.ndarray:  # NumPy's own for float32 is less exact
        return np.exp(x.astype(np.float64)).astype(np.float32)

    pairs: list[tuple[Running, Any]] = [
        (A + B, a + b), (A - B, a - b), (A * B, a * b), (A / P, a / p), (P.sqrt(), np.sqrt(p)),
        (A.exp(), e_to(a)), (A.sum(1), a.sum(1, keepdims=True)), (A @ B.transposed(), a @ b.T),
        ((A * B - A) / P.sqrt() + (A / P.sum(0)).exp(),
         (a * b - a) / np.sqrt(p) + e_to(a / p.sum(0, keepdims=True))),
    ]  # fmt: skip
    for bound, got in pairs:
        error = np.abs(got.astype(np.float64) - bound.value)
        assert (error <= bound.error).all()
        assert error.max() > bound.error.max() / 1000
    assert (rounded(1 / 3).error) >= abs(float(np.float32(1 / 3)) - 1 / 3)
    assert gamma(3) > 3 * UNIT
    assert np.isinf((A / (A - A)).error).all()


def in_float32(case: Case, x: Arrays, patch: pytest.MonkeyPatch) -> Arrays:
    """What the reference gives in float32; GELU from what lies below |x|, as kernels compute it."""
    patch.setattr(oracle, "_f64", lambda x, *names: [x[n] for n in names])
    got = ops.ENTRIES[case.name].exact(case, x)
    if case.name == "gelu_forward":
        below = np.abs(x["x"]) * ndtr(-np.abs(x["x"]))
        return got | {"y": np.maximum(x["x"], 0) - below}
    return {"dx": x["dx"] * x["slope"]} if case.name == "gelu_backward" else got


@pytest.mark.parametrize("shapes", [ODD, WIDER])
@pytest.mark.parametrize("name", NAMES)
def test_float32_keeps_the_bound(name: str, shapes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(name, shapes)
    x = ops.draw(case, 3)
    with monkeypatch.context() as patch:
        got = in_float32(case, x, patch)
    errors = judged(case, x, got)
    assert max(errors.values()) <= 1, errors
    assert max(errors.values()) > 0 or name == "grad_norm"  # which is in float64


@pytest.mark.parametrize("name", NAMES)
def test_what_leaves_the_bound_is_wrong(name: str) -> None:
    case = case_of(name)
    x = ops.draw(case, 3)
    entry = ops.ENTRIES[name]
    want, bound = entry.exact(case, x), entry.bound(case, x)
    detail = {"forks": 1, "chunks": 1}
    good = ops.judge(case, x, packed(want, case), detail, True)
    assert good.status == "ok"
    for result in want:
        for value in (10 * bound[result].max(), np.nan):
            wrong = {key: array.copy() for key, array in want.items()}
            at = np.unravel_index(bound[result].argmax(), bound[result].shape)
            wrong[result][at] += value
            row = ops.judge(case, x, packed(wrong, case), detail, True)
            assert row.status == "FAIL", result
            assert row.errors[result] > 5
            assert row.reason
            assert row.reason.startswith(f"{result}: ")
    assert ops.judge(case, x, packed(want, case), detail, False).status == "FAIL"


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def unscaled(case: Case, x: Arrays) -> Arrays:
    """Attention without 1/sqrt(D): with queries that undo it."""
    factor = np.ones(3 * case.sizes["C"], np.float32)
    factor[: case.sizes["C"]] = np.sqrt(case.sizes["C"] / case.sizes["H"])
    return x | {"qkv": x["qkv"] * factor}


def changed(**values: Any) -> Callable[[Case, Arrays], Arrays]:
    return lambda case, x: x | {name: value(x[name]) for name, value in values.items()}


def with_config(**values: Any) -> Callable[[Case], Case]:
    return lambda case: Case(case.name, case.sizes, case.config.model_copy(update=values))


# Known mistakes: the reference that makes them, or what it would have to be given to make them.
PATCHES = [
    ("layernorm_forward", reference, "LN_EPS", 0.0),
    ("layernorm_backward", reference, "LN_EPS", 0.0),
    ("layernorm_forward", reference, "LN_EPS", 1.01e-5),
    ("gelu_forward", reference, "gelu_forward", tanh_gelu),
    ("attention_forward", np, "tril", lambda ones: ones),
    ("attention_backward", np, "tril", lambda ones: ones),
    ("adamw", oracle, "SCALE", 1.0),
    ("adamw", oracle, "STEP", oracle.STEP - 1),
    ("grad_norm", reference, "grad_norm", lambda g: float(np.linalg.norm(g["grad"]))),
]
INPUTS = [
    ("encoder_forward", changed(tokens=lambda t: np.roll(t, -1, 1))),  # targets for inputs
    ("encoder_forward", changed(wpe=lambda p: np.roll(p, 1, 0))),
    ("encoder_backward", changed(dwte=np.zeros_like)),  # overwrites the head's part
    ("layernorm_backward", changed(dx=np.zeros_like)),
    ("attention_forward", unscaled),
    ("attention_backward", unscaled),
    ("crossentropy", changed(tokens=lambda t: np.roll(t, 1, 1))),  # inputs for targets
    ("bias_backward", changed(dy=lambda dy: np.concatenate([dy[:-1], dy[:1]]))),
    ("adamw", changed(grad=lambda g: -g)),
]
CONFIGS = [
    ("adamw", with_config(eps=1e-30)),
    ("adamw", with_config(weight_decay=0.0)),
    ("adamw", with_config(beta1=0.95, beta2=0.9)),
]


@pytest.mark.parametrize(("name", "where", "what", "value"), PATCHES)
def test_known_mistakes_of_the_formula_are_wrong(
    name: str, where: Any, what: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(name)
    x = ops.draw(case, 3)
    with monkeypatch.context() as patch:
        patch.setattr(where, what, value)
        got = ops.ENTRIES[name].exact(case, x)
    assert max(judged(case, x, got).values()) > 2


@pytest.mark.parametrize(("name", "change"), INPUTS)
def test_known_mistakes_with_the_inputs_are_wrong(
    name: str, change: Callable[[Case, Arrays], Arrays]
) -> None:
    case = case_of(name)
    x = ops.draw(case, 3)
    got = ops.ENTRIES[name].exact(case, change(case, x))
    assert max(judged(case, x, got).values()) > 2


@pytest.mark.parametrize(("name", "change"), CONFIGS)
def test_known_mistakes_with_the_recipe_are_wrong(
    name: str, change: Callable[[Case], Case]
) -> None:
    case = case_of(name)
    x = ops.draw(case, 3)
    got = ops.ENTRIES[name].exact(change(case), x)
    assert max(judged(case, x, got).values()) > 2


@pytest.mark.parametrize(
    ("name", "result", "change"),
    [
        ("crossentropy", "logits", lambda d, n: d * n["B"] * n["T"]),  # a sum, no mean
        ("crossentropy", "loss", lambda loss, n: loss / np.log(2)),  # bits
        ("gelu_forward", "slope", lambda slope, n: (slope > 0.5) * 1.0),
        ("layernorm_forward", "rstd", lambda r, n: r * np.sqrt(1 - 1 / n["C"])),  # unbiased
        ("layernorm_backward", "dx", lambda dx, n: dx - dx.mean(-1, keepdims=True)),
        ("layernorm_backward", "dg", lambda dg, n: dg / n["N"]),
        ("attention_backward", "dqkv", lambda d, n: np.roll(d, n["C"], -1)),  # k, q, v
        ("gelu_backward", "dx", lambda dx, n: dx * (1 + 1e-6)),
    ],
)
def test_wrong_results_are_wrong(
    name: str, result: str, change: Callable[[np.ndarray, dict[str, int]], np.ndarray]
) -> None:
    case = case_of(name)
    x = ops.draw(case, 3)
    got = ops.ENTRIES[name].exact(case, x)
    errors = judged(case, x, got | {result: change(got[result], case.sizes)})
    assert errors[result] > 2


# --------------------------------------------------------------------------- samples, the table


def row_of(name: str, **values: Any) -> OperationRow:
    case = case_of(name, "preset:xl")
    row = OperationRow(
        name=name, sizes=case.sizes, status="ok", error_over_bound=0.25, errors={"y": 0.25},
        same_bits=True, unit="GFLOP/s" if ops.ENTRIES[name].flops else "GB/s",
        work=ops.work(case), forks=2, chunks=1034,
    )  # fmt: skip
    return row.model_copy(update=values)


def test_samples_become_rates_and_shares() -> None:
    row = row_of("bias_backward", work=1_000_000)
    samples = OperationSamples(
        threads=1, calls_per_sample=10, samples_ms=[1.0, 2.0], roofline=[30, 50, 70]
    )
    detail = {"output_sha256": "x", **samples.model_dump()}
    timed = ops.timed(row, "x", detail)
    assert (timed.rate, timed.samples) == (7.5, samples)
    assert timed.share == pytest.approx((10 / 40 + 5 / 60) / 2)
    assert ops.timed(row, "y", detail).status == "FAIL"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width: int) -> None:
    figures = {"rate": 123.4, "rate_quartiles": (119.9, 127.8), "share": 0.876}
    rows = [row_of(name, **figures) for name in NAMES]
    rows.append(row_of("adamw", status="FAIL", reason="v: 12 times the bound"))
    found = KernelReport(
        arm="wasm:simd=relaxed+threads=1", op="all", seed=1, ran={"threads": 1}, machine={},
        load_before={"load_1min": 0.123456}, load_after={}, browser={}, operations=tuple(rows),
    )  # fmt: skip
    assert not found.holds
    page = report.kernels(found, width).splitlines()
    assert max(map(len, page)) <= width
    assert [line.split()[0] for line in page if line.startswith(tuple(NAMES))] == NAMES
    attention = next(line for line in page if "B=8 T=128 C=256 H=8" in line)
    spread = ["120–128"] if width == 120 else []
    assert attention.split()[4:] == ["2/1034", "0.25", "123", *spread, "88%"]
    wrong = next(line for line in page if line.endswith("  FAIL"))
    assert "floats=6416896 tensors=100" in wrong
    assert "FAIL: adamw floats=6416896 tensors=100: v: 12 times the bound" in page
    assert "1 thread, load 0.1235" in page


# --------------------------------------------------------------------------- in Chromium


async def test_every_operation_keeps_its_bound_in_chromium() -> None:
    """Two modules, odd sizes, one and several threads: within the bound, the same bits."""
    choice = find_browser(None)
    if choice is None:
        pytest.skip("no browser on this machine; `driver setup` gets one")
    every = [*cases(), *cases(WIDER)]
    drawn = [ops.draw(case, 7) for case in every]
    labels = [f"inputs-{index}" for index in range(len(every))]
    data = {label: ops.pack(*pair) for label, pair in zip(labels, zip(every, drawn, strict=True),
                                                          strict=True)}  # fmt: skip
    program = [
        operation_op(ops.operation_of(case, label), label=label)
        for case, label in zip(every, labels, strict=True)
    ]
    digests: dict[str, list[list[str]]] = {}
    async with JobServer() as server, BrowserSession(choice) as session:
        bench = Workbench(session, server, deadline_s=120)
        for words in ("wasm:threads=1", "wasm64:threads=3", "wasm:simd=scalar+threads=3"):
            arm = resolve(parse_arm(words), FEATURES)
            outcome = await bench.ask("check", arm, program, assets=data)
            details = [op.detail for op in outcome.ops[1:]]
            for case, x, label, detail in zip(every, drawn, labels, details, strict=True):
                row = ops.judge(case, x, outcome.blobs[label], detail, True)
                assert row.status == "ok", (words, row)
                assert row.forks in (1, 2)
                assert row.chunks >= row.forks
            found = [detail["output_sha256"] for detail in details]
            digests.setdefault(str(arm.options["simd"]), []).append(found)
    wasm, wasm64 = digests["relaxed"]
    assert wasm == wasm64


def test_the_command_runs_everything(driver: Callable[..., tuple[int, str, str]]) -> None:
    words = ("--op", "all", "--shapes", "B=1+T=3+C=4,5x6x7", "--arm", "wasm:tile=4x8")
    code, out, err = driver("kernels", *words, "--samples", 1, "--json")
    assert code == 0
    assert "checking 14 other operations against float64" in err
    found = KernelReport.model_validate(json.loads(out))
    assert [row.name for row in found.operations if row.name != "bias_backward"] == [
        name for name in NAMES if name != "bias_backward"
    ]
    for row in found.operations:
        assert row.status == "ok"
        assert row.samples
        assert len(row.samples.samples_ms) == 1
        assert len(row.samples.roofline) == 2
        assert row.samples.threads == found.ran["threads"] == 1
        assert row.rate
        assert row.share
    assert {row.status for row in found.rows} == {"ok"}
    assert all(row.samples for row in found.rows)
    page = report.kernels(found, width=80)
    assert page.index("mm_db") < page.index("encoder_forward") < page.index("adamw")


@pytest.mark.slow
def test_results_that_change_while_timed_end_the_run(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    folder = tmp_path / "wasm_src"
    shutil.copytree(layout.WASM_SRC, folder)
    source = folder / "layernorm.c"
    text = source.read_text()
    zeroing = "for (size_t i = 0; i < 2 * Cp; i += 4) store4(dg + i, splat4(0));"
    assert zeroing in text
    source.write_text(text.replace(zeroing, ""))  # right once, on fresh memory
    monkeypatch.setattr(layout, "WASM_SRC", folder)
    words = ("--op", "layernorm_backward", "--shapes", "B=2+T=5+C=8", "--arm", "wasm:simd=scalar")
    code, _, err = driver("kernels", *words, "--samples", 1)
    assert code == 4
    assert "layernorm_backward: its results changed while it was timed" in " ".join(err.split())
