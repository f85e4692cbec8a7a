"""Choices taken over from a receipt: which, from whom, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
from receipts import parts
from test_arms import FEATURES, without

from driver.arms import TILE_OF, parse_arm, parse_arms
from driver.errors import ArmError, ReceiptError, Unsupported, UsageError
from driver.pin import pin_arms
from driver.prepare import resolve_here
from driver.receipt import parse
from driver.records import ArmPlan
from driver.report import text

CHOSEN = {
    "wasm": {
        "threads": 2, "simd": "simd128", "mm_fwd": "blocked", "mm_da": "naive", "mm_db": "blocked",
        "tile_fwd": "6x8", "tile_da": "4x8", "tile_db": "8x8", "shared": "on",
    },
    "wasm64": {
        "threads": 1, "simd": "scalar", "mm_fwd": "blocked", "mm_da": "blocked",
        "mm_db": "blocked", "tile_fwd": "2x4", "tile_da": "4x4", "tile_db": "2x4", "shared": "on",
    },
    "webgpu": {
        "mm_fwd": "tiled", "mm_da": "blocked", "mm_db": "blocked", "tile_fwd": "8x8",
        "tile_da": "4x8", "tile_db": "8x8", "split_db": "4", "workgroup": "16x4", "f16": "off",
    },
}  # fmt: skip


def options_of(name: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in CHOSEN[name].items() if key in parse_arm(name).options} | (
        changes
    )


def receipt(folder: Path, names: tuple[str, str] = ("wasm", "webgpu"), **changes: Any) -> Path:
    """A receipt whose arms made the choices above; `changes` are made to A's options."""
    built = parts(names=names)
    arms: list[ArmPlan] = []
    for arm, more in zip(built.plan.arms, (changes, {}), strict=True):
        options = {k: v for k, v in options_of(arm.name, **more).items() if v is not None}
        arms.append(arm.model_copy(update={"options": options}))
    path = folder / "earlier.receipt.json"
    path.write_text(json.dumps(built.with_plan(arms=(arms[0], arms[1])).sealed()))
    return path


def test_everything_open_is_taken_over(tmp_path: Path) -> None:
    path = receipt(tmp_path)
    a, b = pin_arms(parse_arms("webgpu,wasm"), path)
    assert (a.options, b.options) == (options_of("webgpu"), options_of("wasm"))
    assert a.pinned and b.pinned
    assert (a.pinned.side, b.pinned.side) == ("B", "A")
    assert a.pinned.options == tuple(sorted(CHOSEN["webgpu"].keys() - {"f16"}))
    assert a.pinned.receipt_digest == json.loads(path.read_text())["digest"]
    assert resolve_here(b, FEATURES, 2).options == options_of("wasm")


def test_what_was_given_wins(tmp_path: Path) -> None:
    a, b = pin_arms(
        parse_arms("wasm:threads=1+tile_fwd=4x8,webgpu:matmul=naive"), receipt(tmp_path)
    )
    assert a.options == options_of("wasm", threads=1, tile_fwd="4x8")
    assert a.pinned and not {"threads", "tile_fwd"} & set(a.pinned.options)
    assert {b.options[product] for product in TILE_OF} == {"naive"}
    assert (b.options["workgroup"], b.options["split_db"]) == ("16x4", "1")


def test_of_two_arms_with_its_name_the_one_on_its_side(tmp_path: Path) -> None:
    path = receipt(tmp_path, ("wasm", "wasm"), tile_fwd="8x8")
    a, b = pin_arms(parse_arms("wasm,wasm"), path)
    assert (a.options["tile_fwd"], b.options["tile_fwd"]) == ("8x8", "6x8")


@pytest.mark.parametrize(
    ("arms", "changes", "said"),
    [
        ("wasm64,webgpu", {}, "the receipt has no arm wasm64, it has 'wasm', 'webgpu'"),
        ("wasm,webgpu", {"tile_fwd": None}, "does not say tile_fwd of arm wasm; give it"),
        ("wasm,webgpu", {"tile_fwd": "auto"}, "does not say tile_fwd"),
        ("wasm,webgpu", {"tile_fwd": "9x9"}, "tile_fwd='9x9' for arm wasm, which is no such"),
        ("wasm,webgpu", {"threads": 1e9}, "threads=1000000000.0"),
        ("wasm,webgpu", {"threads": True}, "threads=True"),
        ("wasm,webgpu", {"simd": "\x1b[2Jscalar" + "x" * 10_000}, r"simd='\x1b[2Jscalarxx"),
    ],
)
def test_what_a_receipt_cannot_give(
    tmp_path: Path, arms: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as error:
        pin_arms(parse_arms(arms), receipt(tmp_path, **changes))
    assert said in str(error.value)
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("harm", ["edited", "half", "no receipt", "missing"])
def test_what_is_no_receipt(tmp_path: Path, harm: str) -> None:
    path = receipt(tmp_path)
    data = path.read_text()
    if harm == "edited":
        path.write_text(data.replace('"tiled"', '"naive"'))
    elif harm == "half":
        path.write_text(data[: len(data) // 2])
    elif harm == "no receipt":
        path.write_text("[1, 2]")
    else:
        path.unlink()
    with pytest.raises(ReceiptError):
        pin_arms(parse_arms("wasm,webgpu"), path)


@pytest.mark.parametrize(
    ("arms", "names", "features", "cores", "said"),
    [
        ("wasm,webgpu", ("wasm", "webgpu"), FEATURES, 1, "threads=2 is more than the 1 core"),
        ("wasm,webgpu", ("wasm", "webgpu"), without("simd128"), 2, "no simd=simd128"),
        ("wasm:simd=off,webgpu", ("wasm", "webgpu"), FEATURES, 2, "tile_fwd=6x8: a module with"),
        ("wasm64,wasm", ("wasm64", "wasm"), without("memory64"), 2, "no Memory64"),
    ],
)
def test_what_does_not_fit_this_machine(
    tmp_path: Path, arms: str, names: tuple[str, str], features: dict[str, Any], cores: int,
    said: str,
) -> None:  # fmt: skip
    a, _ = pin_arms(parse_arms(arms), receipt(tmp_path, names))
    with pytest.raises((Unsupported, ArmError)) as error:
        resolve_here(a, features, cores)
    assert said in str(error.value)
    assert "pinned from receipt" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split_db": 3}, "split_db=3 for arm webgpu, which is no such choice"),
        ({"split_db": None}, "does not say split_db of arm webgpu; give it"),
        ({"mm_db": "naive"}, "split_db=4 with mm_db=naive: only the blocked product"),
    ],
)
def test_parts_that_no_product_has(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = receipt(tmp_path, ("webgpu", "wasm"), **changes)
    with pytest.raises((UsageError, ArmError)) as error:
        resolve_here(pin_arms(parse_arms("webgpu,wasm"), path)[0], FEATURES, 2)
    assert said in str(error.value)


def test_the_report_says_where_choices_came_from(tmp_path: Path) -> None:
    path = receipt(tmp_path)
    a, _ = pin_arms(parse_arms("wasm,webgpu"), path)
    assert a.pinned
    built = parts()
    arms = (built.plan.arms[0].model_copy(update={"pinned": a.pinned}), built.plan.arms[1])
    shown = text(parse(built.with_plan(arms=arms).sealed()))
    assert f"pinned from receipt {a.pinned.receipt_digest[:12]} (A)" in shown
