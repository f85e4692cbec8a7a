"""`driver geometry`: what a step dispatches, planned for every preset and counted on one."""

import json
import re
from typing import Any

import pytest

from driver import cli, geometry, presets, report
from driver.arms import parse_arm
from driver.browser import find_browser
from driver.errors import Unsupported
from driver.layout import WEBGPU_SRC
from driver.records import GeometryReport, GpuCalls, StepGeometry

SOURCES = {
    "square": "override WX: u32 = 8u;\n@compute @workgroup_size(WX, WX)\nfn main() {}",
    "line": "@compute @workgroup_size(64u)\nfn main() {}",
}
PLANNED: dict[str, Any] = {
    "submits": 1, "buffers": 3, "buffer_bytes": 1024,
    "dispatches": [
        {"label": "h.a", "op": "matmul_forward", "kernel": "square", "per_step": 58,
         "constants": {"WX": 16}, "groups": [3, 2]},
        {"label": "norm", "op": "grad_norm", "kernel": "line", "per_step": 1, "constants": {},
         "groups": [5]},
    ],
}  # fmt: skip
NOTHING_MADE = GpuCalls(dispatches=59, submits=1, buffers=0, bind_groups=0, pipelines=0)


def step(counted: GpuCalls | None = NOTHING_MADE) -> StepGeometry:
    return geometry.step_geometry(presets.load("tiny"), PLANNED, SOURCES, counted, None)


def test_workgroups_are_read_from_the_kernels() -> None:
    square, line = step().table
    assert (square.workgroup, square.groups) == ((16, 16, 1), (3, 2, 1))
    assert (line.workgroup, line.groups) == ((64, 1, 1), (5, 1, 1))
    assert geometry.workgroup_of(SOURCES["square"], {}) == (8, 8, 1)


def test_the_limits() -> None:
    assert step().dispatches == step().most_dispatches == 22 * 2 + 15
    assert step().holds and step(None).holds
    for field in GpuCalls.model_fields:
        more = getattr(NOTHING_MADE, field) + 1
        assert not step(NOTHING_MADE.model_copy(update={field: more})).holds
    assert not step(None).model_copy(update={"dispatches": 60}).holds
    found = GeometryReport(arm="webgpu", adapter={}, presets=(step(None),))
    assert "59    59" in report.geometry(found)
    assert "FAIL" not in report.geometry(found)
    over = step(None).model_copy(update={"dispatches": 60})
    assert "FAIL: tiny" in report.geometry(found.model_copy(update={"presets": (over,)}))


def test_adding_parts_is_beyond_the_limit() -> None:
    """Only what adds them: a step that is too long without it stays so."""
    adding = {"label": "h.a.sum", "op": "matmul_backward_db", "kernel": geometry.ADDING,
              "per_step": 9, "constants": {}, "groups": [5]}  # fmt: skip
    planned = PLANNED | {"dispatches": [*PLANNED["dispatches"], adding]}
    sources = SOURCES | {geometry.ADDING: SOURCES["line"]}
    found = geometry.step_geometry(presets.load("tiny"), planned, sources, None, None)
    assert (found.dispatches, found.adding) == (59 + 9, 9)
    assert found.holds
    told = report.geometry(GeometryReport(arm="webgpu", adapter={}, presets=(found,)))
    assert re.search(r"tiny +2 +59 +59 +\+9 ", told), told
    assert "FAIL" not in told
    assert not found.model_copy(update={"dispatches": 69}).holds
    assert WEBGPU_SRC.joinpath(f"{geometry.ADDING}.wgsl").is_file()


@pytest.mark.parametrize(
    ("split", "names"), [(1, tuple(presets.names())), (8, ("tiny", "behemoth"))]
)
async def test_every_preset_is_within_them(split: int, names: tuple[str, ...]) -> None:
    loaded = [presets.load(name) for name in names]
    arm = parse_arm(f"webgpu:matmul=blocked+split_db={split}")
    request = geometry.Request(arm, loaded, run_a_step=False)
    try:
        found = await geometry.run(request, find_browser(None), lambda _: None)
    except Unsupported as error:
        pytest.skip(str(error))
    assert [row.preset for row in found.presets] == list(names)
    for row, preset in zip(found.presets, loaded, strict=True):
        assert row.holds and row.counted is None and row.submits >= 1
        assert row.dispatches - row.adding == 21 * preset.n_layer + 12
        assert row.adding == (4 * preset.n_layer + 1 if split > 1 else 0)
        parts = [entry for entry in row.table if entry.op.endswith("_backward_db")]
        assert {entry.op for entry in parts} == {"matmul_backward_db", "head_backward_db"}
        assert {entry.groups[2] for entry in parts if entry.kernel != geometry.ADDING} == {split}
        assert sum(entry.per_step for entry in parts) == 4 * preset.n_layer + 1 + row.adding
        (up,) = (entry for entry in row.table if entry.label == "h.mlp.up")
        assert (up.op, up.per_step) == ("matmul_gelu_forward", preset.n_layer)


def test_a_real_step_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["geometry", "--arm", "webgpu:split_db=2", "--preset", "tiny", "--json", "-q"]
    try:
        code = cli.app(words, standalone_mode=False)
    except Unsupported as error:
        pytest.skip(str(error))
    assert code == 0
    found = GeometryReport.model_validate(json.loads(capsys.readouterr().out))
    (row,) = found.presets
    nothing = {"submits": 1, "buffers": 0, "bind_groups": 0, "pipelines": 0}
    assert row.counted == GpuCalls(dispatches=54 + 9, **nothing)
    assert row.holds


@pytest.mark.parametrize("arm", ["wasm", "null"])
def test_only_a_gpu_has_dispatches(arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="only webgpu dispatches"):
        cli.app(["geometry", "--arm", arm], standalone_mode=False)
