"""A step's operations as WGSL has them: the table, its bounds, and what an adapter gives."""

from typing import Any

import numpy as np
import pytest

from driver import reference
from driver.arms import parse_arm, resolve
from driver.errors import UsageError
from driver.jobs import operation_op
from driver.kernels import operations as ops
from driver.kernels import oracle, webgpu
from driver.kernels.case import Case
from driver.kernels.running import WGSL, accuracy, exact
from driver.kernels.shapes import parse_shapes

# Nothing divides by 4; whole vectors of four; one of everything.
ODD = "B=3+T=17+C=15+H=3+V=11"
STEPS = (ODD, "B=2+T=12+C=40+H=2+V=97", "B=1+T=1+C=1+V=2")


def cases(step: str) -> list[Case]:
    return list(parse_shapes(step, "all", device=True).cases)


def case_of(name: str) -> Case:
    return next(case for case in cases(ODD) if case.name == name)


@pytest.mark.parametrize("case", [c for s in STEPS for c in cases(s)], ids=lambda c: c.name)
def test_an_entry_fits_together(case: Case) -> None:
    entry = ops.entry_of(case)
    assert entry is webgpu.ENTRIES[case.name]
    x = ops.draw(case, 1)
    given = [array for array in entry.operands if array.role != "out"]
    for array in given:
        assert x[array.name].shape == array.lengths(case.sizes), array.name
    assert len(ops.pack(case, x)) == sum(array.size_bytes(case.sizes) for array in given)
    want, bound = entry.exact(case, x), entry.bound(case, x)
    written = {array.name: array for array in entry.operands if array.role != "in"}
    assert set(written) <= set(want)
    assert set(written) <= set(bound)
    for name, array in written.items():
        assert want[name].shape == bound[name].shape == array.lengths(case.sizes), name
        assert (bound[name] >= 0).all(), name
        assert np.isfinite(bound[name]).all(), name


@pytest.mark.parametrize("name", webgpu.ENTRIES)
def test_the_exact_results_are_within_the_bound(name: str) -> None:
    case = case_of(name)
    x = ops.draw(case, 3)
    got = {key: np.float32(value) for key, value in ops.entry_of(case).exact(case, x).items()}
    assert max(ops.errors_over_bound(case, x, got).values()) <= 1


@pytest.mark.parametrize(
    ("name", "where", "what", "value"),
    [
        ("layernorm_forward", reference, "LN_EPS", 1.01e-5),
        ("layernorm_backward", reference, "LN_EPS", 0.0),
        ("attention_forward", np, "tril", lambda ones: ones),
        ("attention_backward", np, "tril", lambda ones: ones),
        ("adamw", oracle, "STEP", oracle.STEP - 1),
        ("adamw", oracle, "SCALE", 1.0),
    ],
)
def test_known_mistakes_are_wrong(
    name: str, where: Any, what: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(name)
    x = ops.draw(case, 3)
    with monkeypatch.context() as patch:
        patch.setattr(where, what, value)
        got = ops.entry_of(case).exact(case, x)
    assert max(ops.errors_over_bound(case, x, got).values()) > 2


def test_wgsl_may_err_more_than_c() -> None:
    x = exact(np.array([-20.0]))
    y = x.exp()
    with accuracy(WGSL):
        assert (x.exp().error > 10 * y.error).all()
        assert ((y / exact(3.0)).error > (y / exact(3.0)).value * 2.0**-22).all()
    assert (x.exp().error == y.error).all(), "outside, the accuracy is C's again"


def test_what_is_part_of_another_kernel_says_so() -> None:
    with pytest.raises(UsageError, match="--op bias: on webgpu it is part of another kernel"):
        parse_shapes(ODD, "bias", device=True)


# --------------------------------------------------------------------------- in Chromium


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("step", STEPS)
async def test_every_operation_keeps_its_bound(gpu_bench, step: str) -> None:
    bench, features = gpu_bench
    arm = resolve(parse_arm("webgpu"), features)
    drawn = {case: ops.draw(case, 7) for case in cases(step)}
    data = {case.name: ops.pack(case, x) for case, x in drawn.items()}
    program = [operation_op(ops.operation_of(case, case.name), label=case.name) for case in drawn]
    outcome = await bench.ask("check", arm, program, assets=data)
    rows = [
        ops.judge(case, x, outcome.blobs[case.name], result.detail, same_bits=True)
        for (case, x), result in zip(drawn.items(), outcome.ops[1:], strict=True)
    ]
    assert [(row.name, row.reason) for row in rows if row.status != "ok"] == []
    assert {row.name for row in rows} == set(webgpu.ENTRIES)
    assert {row.name: row.forks for row in rows}["attention_backward"] == 2
