"""Where a step's time goes: from samples to figures, and what is no sample."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from receipts import CONFIG, parts

from driver import presets
from driver.profile import profile_of
from driver.records import Profile, ProfileSamples
from driver.report.profile import profile_of as print_profile
from driver.report.terminal import new_console, text_of
from driver.tensors import executed_flops, operation_flops

# Two rounds of windows of 2 steps. Plain windows sum to 20 and 40 ms, profiled ones to 22 and 42.
RAW: dict[str, Any] = {
    "steps": 2,
    "plain_ms": [10.0, 10.0, 18.0, 22.0],
    "profiled_ms": [12.0, 10.0, 20.0, 22.0],
    "ops": [
        {"op": "gelu_forward", "calls": 1, "windows_ms": [1.0, 1.0, 3.0, 9.0]},
        {"op": "matmul_forward", "calls": 4, "windows_ms": [8.0, 8.0, 16.0, 12.0]},
    ],
}


def test_figures_by_hand() -> None:
    found = profile_of(ProfileSamples.model_validate(RAW), CONFIG)
    assert found.rounds == 2
    assert found.round == 1  # 22 ms with the profiler, the other has 42
    assert found.wall_ms == 20 / 4
    assert found.wall_profiled_ms == 22 / 4
    assert found.cost_range == (42 / 40, 22 / 20)
    assert found.cost == 22 / 20
    assert found.uncovered_ms == (3 + 1) / 4
    gelu, matmul = found.ops
    assert (gelu.op, gelu.calls, gelu.ms, gelu.share) == ("gelu_forward", 1, 2 / 4, 2 / 22)
    assert gelu.flops is gelu.gflops is None
    assert (matmul.calls, matmul.ms, matmul.share) == (4, 16 / 4, 16 / 22)
    # L 1, C 4, F 8, N 6: 4→12, 4→4, 8→4 (4→8 is GELU's), a multiply-add is 2.
    assert matmul.flops == 2 * 6 * (48 + 16 + 32)
    assert matmul.gflops == pytest.approx(matmul.flops / 4e6)


def test_what_takes_less_than_the_clocks_step_is_marked() -> None:
    """gelu_forward takes 0.5 ms a call and matmul_forward 1 ms."""
    assert not any(op.below_clock_step for op in profile_of(samples(None), CONFIG).ops)
    assert [op.below_clock_step for op in profile_of(samples(0.5), CONFIG).ops] == [False, False]
    found = profile_of(samples(0.6), CONFIG)
    assert [op.below_clock_step for op in found.ops] == [True, False]
    arm = parts().plan.arms[0].model_copy(update={"profile": found})
    console = new_console(200, False)
    print_profile(console, arm)
    text = text_of(console)
    assert "~0.5 " in text and "~4" not in text
    assert "steps of 600,000 ns" in text and "marked ~ takes less" in text


def test_the_step_beside_its_fastest_products() -> None:
    """Of the round that counts: FLOPs of all operations over the time of the whole."""
    found = profile_of(ProfileSamples.model_validate(RAW), CONFIG)
    (product,) = (op for op in found.ops if op.op.startswith(("matmul_", "head_")))
    share = product.ms / found.wall_profiled_ms  # the only operation that has FLOPs
    assert product.gflops
    console = new_console(200, False)
    print_profile(console, parts().plan.arms[0].model_copy(update={"profile": found}))
    text = text_of(console)
    assert f"{product.gflops * share:.4g} GFLOP/s, {share:.0%} of {product.op}" in text
    few = found.model_copy(update={"ops": tuple(op for op in found.ops if op != product)})
    console = new_console(200, False)
    print_profile(console, parts().plan.arms[0].model_copy(update={"profile": few}))
    assert "fastest products" not in text_of(console)


def test_the_shares_add_up_however_rounds_differ() -> None:
    """The disturbed round counts for the range of the cost alone."""
    raw = RAW | {"profiled_ms": [12.0, 300.0, 20.0, 22.0]}
    found = profile_of(ProfileSamples.model_validate(raw), CONFIG)
    assert found.round == 2
    assert sum(op.ms for op in found.ops) + found.uncovered_ms == found.wall_profiled_ms == 42 / 4
    assert sum(op.share or 0 for op in found.ops) == pytest.approx(40 / 42)
    assert found.cost_range == (42 / 40, 312 / 20)
    console = new_console(200, False)
    print_profile(console, parts().plan.arms[0].model_copy(update={"profile": found}))
    assert "all figures are of round 2" in text_of(console)


def samples(clock_step_ms: float | None) -> ProfileSamples:
    raw = RAW | {"clock": "timestamp-query", "clock_step_ms": clock_step_ms}
    return ProfileSamples.model_validate(raw)


def test_the_operations_flops_are_the_steps() -> None:
    config = presets.load("small").model
    assert sum(operation_flops(config).values()) == executed_flops(config)
    N, C, V = config.positions, config.d_model, config.vocab
    for op in ("head_forward", "head_backward_da", "head_backward_db"):
        assert operation_flops(config)[op] == 2 * N * C * V


def test_nothing_measured_divides_nothing() -> None:
    nothing = {"op": "adamw", "calls": 1, "windows_ms": [0.0, 0.0]}
    raw = {"steps": 1, "plain_ms": [0.0, 0.0], "profiled_ms": [0.0, 0.0], "ops": [nothing]}
    found = profile_of(ProfileSamples.model_validate(raw), CONFIG)
    assert found.cost is found.cost_range is found.ops[0].share is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plain_ms": [1.0, 2.0]}, "a round is two windows"),
        ({"plain_ms": [1.0] * 3, "profiled_ms": [1.0] * 3}, "a round is two windows"),
        ({"ops": [RAW["ops"][0] | {"windows_ms": [1.0, 1.0]}]}, "a round is two windows"),
        ({"ops": [RAW["ops"][0]] * 2}, "occurs twice"),
        ({"ops": []}, "at least 1"),
        ({"ops": [RAW["ops"][0] | {"op": f"op{i}"} for i in range(65)]}, "at most 64"),
        ({"ops": [RAW["ops"][0] | {"op": "x" * 65}]}, "match pattern"),
        ({"ops": [RAW["ops"][0] | {"op": "adamw\x1b[2J"}]}, "match pattern"),
        ({"plain_ms": [1.0] * 202}, "at most 200"),
        ({"profiled_ms": [1.0, 2.0, 3.0, math.nan]}, "finite"),
        ({"profiled_ms": [1.0, 2.0, 3.0, math.inf]}, "less than or equal|finite"),
        ({"profiled_ms": [1.0, 2.0, 3.0, -1.0]}, "greater than or equal to 0"),
        ({"profiled_ms": [1.0, 2.0, 3.0, None]}, "valid number"),
        ({"steps": 0}, "greater than or equal to 1"),
        ({"steps": 1e400}, "finite"),
        ({"more": 1}, "not permitted"),
    ],
)
def test_what_is_no_sample(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ProfileSamples.model_validate(RAW | change)


times = st.floats(0, 2.6e9)


@given(st.integers(1, 2**31 - 1), st.integers(1, 3), st.data())
def test_any_samples_give_a_profile_that_reads_back(
    steps: int, rounds: int, data: st.DataObject
) -> None:
    windows = st.lists(times, min_size=2 * rounds, max_size=2 * rounds)
    raw = {
        "steps": steps,
        "plain_ms": data.draw(windows),
        "profiled_ms": data.draw(windows),
        "ops": [
            {"op": op, "calls": 1, "windows_ms": data.draw(windows)}
            for op in ("adamw", "matmul_forward")
        ],
    }
    found = profile_of(ProfileSamples.model_validate(raw), CONFIG)
    spent = sum(op.ms for op in found.ops) + found.uncovered_ms
    assert spent == pytest.approx(found.wall_profiled_ms, rel=1e-9, abs=1e-6)
    assert Profile.model_validate_json(found.model_dump_json()) == found
