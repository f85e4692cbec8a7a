"""The arms' grammar, and what `auto` means on a machine."""

from typing import Any

import pytest
import receipts
from hypothesis import given
from hypothesis import strategies as st

from driver.arms import (
    AUTO,
    MEANINGS,
    NEEDED_FEATURE,
    OPTIONS,
    READ_HALVES,
    TILE_OF,
    TILES,
    VARIANTS,
    ArmSpec,
    canonical,
    chosen_text,
    gpu_variants,
    in_few_words,
    parse_arm,
    parse_arms,
    read_canonical,
    resolve,
    short_names,
    told_apart,
)
from driver.errors import ArmError, Unsupported

FEATURES: dict[str, Any] = {
    "cross_origin_isolated": True,
    "usable_threads": 6,
    "wasm": {
        "simd128": True, "relaxed_simd": True, "threads": True, "memory64": True,
        "memory64_shared": True,
    },
    "webgpu": {"available": True, "vendor": "nvidia"},
}  # fmt: skip


def without(*keys: str) -> dict[str, Any]:
    """The features of a browser that lacks these of WebAssembly."""
    return FEATURES | {"wasm": FEATURES["wasm"] | dict.fromkeys(keys, False)}


@st.composite
def specs(draw: st.DrawFn) -> ArmSpec:
    name = draw(st.sampled_from(sorted(OPTIONS)))
    options: dict[str, Any] = {}
    for key, option in OPTIONS[name].items():
        if option.choices:
            value = st.sampled_from(option.choices)
        elif isinstance(option.default, float):
            value = st.floats(option.low, option.high)
        else:
            value = st.integers(int(option.low), int(option.high))
        options[key] = draw(st.just(AUTO) | value if option.auto else value)
    if options.get("f16", "off") != "off":  # what reads halves is never left open
        options |= {p: "blocked" for p in READ_HALVES if options[p] == AUTO}
    if options.get("split_db", AUTO) not in (AUTO, "1"):  # nor is what is cut
        options["mm_db"] = "blocked"
    if options.get("split_db") == AUTO and options["mm_db"] not in (AUTO, "blocked"):
        options["split_db"] = "1"
    if options.get("shared") == "off":  # which excludes more threads, as simd does tiles
        options["threads"] = draw(st.sampled_from([AUTO, 1]))
    for key in TILE_OF.values() if "simd" in options else ():
        if options[key] not in TILES.get(options["simd"], (options[key],)):
            options[key] = AUTO
    return ArmSpec(name=name, options=options)


def test_products_that_read_halves_are_not_left_open() -> None:
    options = parse_arm("webgpu:f16=storage").options
    assert (options["mm_fwd"], options["mm_da"]) == ("blocked", "blocked")
    assert {options["mm_db"], options["tile_fwd"]} == {AUTO}
    with pytest.raises(Unsupported, match="f16=storage with mm_da=tiled: only the blocked"):
        resolve(parse_arm("webgpu:f16=storage+mm_da=tiled"), FEATURES)
    with pytest.raises(Unsupported, match="f16=compute needs the feature shader-f16"):
        resolve(parse_arm("webgpu:f16=compute"), FEATURES)


def test_a_cut_product_is_not_left_open() -> None:
    options = parse_arm("webgpu:split_db=4").options
    assert (options["mm_fwd"], options["mm_db"], options["split_db"]) == (AUTO, "blocked", "4")
    assert parse_arm("webgpu:split_db=1").options["mm_db"] == AUTO
    assert parse_arm("webgpu:matmul=naive").options["split_db"] == "1"
    with pytest.raises(ArmError, match="split_db=2 with mm_db=tiled: only the blocked product"):
        parse_arm("webgpu:matmul=tiled+split_db=2")


def test_the_parts_are_echoed() -> None:
    arm = resolve(parse_arm("webgpu:split_db=4+tile=8x4+workgroup=8x8"), FEATURES)
    assert chosen_text(arm.options, "mm_db") == "blocked 8x4 in 8x8 in 4 parts"
    assert chosen_text(arm.options, "mm_fwd") == "blocked 8x4 in 8x8"
    assert resolve(parse_arm("webgpu"), FEATURES).options["split_db"] == "1"


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("wasm", "webgpu", ("wasm threads=6", "webgpu")),
        ("wasm:simd=off+threads=1", "webgpu:f16=storage",
         ("wasm simd=scalar threads=1", "webgpu f16=storage")),
        ("wasm:threads=2", "wasm:threads=2", ("wasm threads=2", "wasm threads=2")),
        ("wasm:tile_fwd=6x8+threads=2", "wasm:threads=2",
         ("wasm threads=2 tile_fwd=6x8", "wasm threads=2 tile_fwd=4x8")),
        ("wasm:tile_fwd=6x8+threads=2", "wasm64:threads=2", ("wasm threads=2", "wasm64 threads=2")),
        ("webgpu:mm_db=naive", "webgpu:split_db=4",
         ("webgpu mm_db=naive", "webgpu mm_db=blocked")),
        ("wasm:simd=off+threads=2", "wasm:threads=2",
         ("wasm simd=scalar threads=2", "wasm simd=relaxed threads=2")),
        ("null", "null:ms=7", ("null ms=5.0", "null ms=7.0")),
    ],
)  # fmt: skip
def test_two_arms_in_few_words(a: str, b: str, words: tuple[str, str]) -> None:
    plans = []
    for text, plan in zip((a, b), receipts.parts().plan.arms, strict=True):
        arm = resolve(parse_arm(text), FEATURES)
        plans.append(plan.model_copy(update={"name": arm.name, "options": arm.options}))
    assert in_few_words(*plans) == words
    for told, few in zip(told_apart(*plans), words, strict=True):
        assert set(told.split()) <= set(few.split())
    same_name = plans[0].name == plans[1].name
    assert any(told_apart(*plans)) == (same_name and plans[0].options != plans[1].options)


def test_long_differences_are_cut_between_options() -> None:
    a, b = (
        parse_arm(f"webgpu:matmul={how}+tile={tile}+split_db=1+workgroup={group}")
        for how, tile, group in (("blocked", "8x8", "8x8"), ("naive", "4x4", "16x4"))
    )
    one, other = short_names(a, b)
    assert one != other
    for name in (one, other):
        assert len(name) <= 75
    a = parse_arm("wasm:source=" + "x" * 100)
    one, other = short_names(a, parse_arm("wasm"))
    assert one != other


@given(specs(), specs())
def test_two_arms_never_have_the_same_name(a: ArmSpec, b: ArmSpec) -> None:
    one, other = short_names(a, b)
    assert (one == other) == (a.canonical == b.canonical)
    read = read_canonical(a.canonical), read_canonical(b.canonical)
    assert [arm.canonical for arm in read] == [a.canonical, b.canonical]


@given(specs())
def test_the_canonical_form_is_read_back(spec: ArmSpec) -> None:
    read = parse_arm(spec.canonical)
    assert read == spec
    assert read.canonical == spec.canonical


@given(st.sampled_from(sorted(OPTIONS)), st.data())
def test_the_canonical_form_sorts_and_expands(name: str, data: st.DataObject) -> None:
    given_keys = data.draw(st.permutations(sorted(OPTIONS[name])))
    defaults = {key: option.default for key, option in OPTIONS[name].items()}
    text = canonical(name, {key: defaults[key] for key in given_keys})
    assert text == parse_arm(name).canonical
    assert [part.split("=")[0] for part in text.partition(":")[2].split("+")] == sorted(defaults)


@given(st.text(max_size=40))
def test_any_text_is_an_arm_or_an_error(text: str) -> None:
    try:
        assert parse_arm(text).name in OPTIONS
    except ArmError as error:
        assert error.exit_code == 2


@given(st.text(alphabet="wasm64gpu:,+=threadsimdkernels019.-e ", max_size=40))
def test_nearly_arms_are_arms_or_errors(text: str) -> None:
    for read in (parse_arm, parse_arms):
        try:
            read(text)
        except ArmError:
            continue


def test_every_arm_has_a_meaning() -> None:
    assert MEANINGS.keys() == OPTIONS.keys()


def test_a_bare_name_leaves_everything_open() -> None:
    assert set(parse_arm("wasm").options.values()) == {AUTO}
    opened = parse_arm(" webgpu ").options
    assert opened.pop("f16") == "off", "never chosen by itself"
    assert set(opened.values()) == {AUTO}


def test_options_in_any_order() -> None:
    assert parse_arm("wasm:threads=1+simd=scalar") == parse_arm("wasm:simd=scalar+threads=1")


@pytest.mark.parametrize(("alias", "level"), [("off", "scalar"), ("on", "simd128")])
def test_aliases_are_expanded(alias: str, level: str) -> None:
    assert parse_arm(f"wasm64:simd={alias}").options["simd"] == level


@pytest.mark.parametrize(
    ("rung", "products"),
    [
        ("naive", ("naive", "naive", "naive")),
        ("forward", ("blocked", "naive", "naive")),
        ("forward-dA", ("blocked", "blocked", "naive")),
        ("forward-dA-dB", ("blocked", "blocked", "blocked")),
    ],
)
def test_kernels_is_shorthand_for_the_three_products(rung: str, products: tuple[str, ...]) -> None:
    spec = parse_arm(f"wasm:kernels={rung}")
    assert tuple(spec.options[key] for key in ("mm_fwd", "mm_da", "mm_db")) == products
    assert "kernels" not in spec.canonical


@pytest.mark.parametrize("text", ["kernels=naive+mm_da=blocked", "mm_da=blocked+kernels=naive"])
def test_a_named_product_wins_over_the_shorthand(text: str) -> None:
    options = parse_arm(f"wasm:{text}").options
    assert (options["mm_fwd"], options["mm_da"], options["mm_db"]) == ("naive", "blocked", "naive")


@pytest.mark.parametrize("text", ["tile=8x8+tile_da=6x8", "tile_da=6x8+tile=8x8"])
def test_tile_is_shorthand_for_the_tiles_of_the_three_products(text: str) -> None:
    options = parse_arm(f"wasm:{text}").options
    assert [options[key] for key in TILE_OF.values()] == ["8x8", "6x8", "8x8"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "unknown arm ''"),
        ("wsam", "did you mean wasm?"),
        ("cuda", "unknown arm 'cuda'. Known arms: wasm, wasm64"),
        ("WASM", "unknown arm 'WASM'"),
        ("wasm:", "'' is not an option"),
        ("wasm:threads", "'threads' is not an option"),
        ("wasm:threads=", "'threads=' is not an option"),
        ("wasm:=1", "'=1' is not an option"),
        ("wasm:threads=1+", "'' is not an option"),
        ("wasm:thread=1", "did you mean threads?"),
        ("wasm:matmul=naive", "unknown option 'matmul'. It has: threads, simd"),
        ("webgpu:kernels=naive", "unknown option 'kernels'"),
        ("wasm:threads=1+threads=2", "option threads is given twice"),
        ("wasm:kernels=naive+kernels=naive", "option kernels is given twice"),
        ("wasm:kernels=fast", "kernels=fast: expected one of naive, forward"),
        ("wasm:tile=5x5", "tile=5x5: expected one of 2x4, 4x4, 4x8"),
        (
            "wasm:tile=8x8+simd=off",
            "tile=8x8: a module with simd=scalar has the tiles 2x4, 4x4; 8x8",
        ),
        ("wasm:simd=on+tile_db=4x4", "tile_db=4x4: a module with simd=simd128 has the tiles 4x8"),
        ("wasm:threads=4+shared=off", "threads=4 and shared=off exclude each other"),
        ("wasm:simd=avx", "simd=avx: expected one of scalar, simd128, relaxed, auto"),
        ("wasm:threads=0", "threads=0: expected 1 to 256"),
        ("wasm:threads=257", "threads=257: expected 1 to 256"),
        ("wasm:threads=2.5", "threads=2.5: expected a whole number"),
        ("webgpu:split_db=3", "split_db=3: expected one of 1, 2, 4, 8, 16, auto"),
        ("webgpu:split_db=32", "split_db=32: expected one of 1, 2, 4, 8, 16, auto"),
        ("webgpu:mm_db=naive+split_db=16", "split_db=16 with mm_db=naive: only the blocked"),
        ("webgpu:split=2", "did you mean split_db?"),
        ("null:ms=fast", "ms=fast: expected a number"),
        ("null:ms=nan", "ms=nan: expected 0 to"),
        ("null:ms=inf", "ms=inf: expected 0 to"),
        ("null:curve=auto", "curve=auto: expected one of reference, frozen"),
        ("wasm:simd=scalar:threads=1", "simd=scalar:threads=1: expected one of"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(ArmError) as error:
        parse_arm(text)
    assert said in str(error.value)


# --------------------------------------------------------------------------- pairs


def test_two_arms() -> None:
    first, second = parse_arms("wasm:threads=1, webgpu")
    assert (first.name, first.options["threads"], second.name) == ("wasm", 1, "webgpu")


def test_the_same_arm_twice_is_an_aa_run() -> None:
    first, second = parse_arms("wasm:threads=1,wasm:threads=1")
    assert first == second


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("wasm", "found 1"),
        ("", "found an empty one"),
        ("wasm,webgpu,null", "found 3"),
        ("wasm,", "found an empty one"),
        (",wasm", "found an empty one"),
        ("wasm,,webgpu", "found an empty one"),
        ("wasm, ,webgpu", "found an empty one"),
    ],
)
def test_a_comparison_has_two_arms(text: str, found: str) -> None:
    with pytest.raises(ArmError, match=found):
        parse_arms(text)


@pytest.mark.parametrize("text", ["numpy,wasm", "wasm,numpy:dtype=float32"])
def test_the_reference_is_no_arm_of_a_run(text: str) -> None:
    with pytest.raises(ArmError, match="replay"):
        parse_arms(text)


# --------------------------------------------------------------------------- this machine


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (FEATURES, "relaxed"),
        (without("relaxed_simd"), "simd128"),
        (without("relaxed_simd", "simd128"), "scalar"),
    ],
)
def test_auto_takes_the_best_instruction_set(features: dict[str, Any], level: str) -> None:
    job = resolve(parse_arm("wasm"), features)
    assert job.options == {
        "simd": level, "threads": 6, "shared": "on",
        "mm_fwd": "blocked", "mm_da": "blocked", "mm_db": "blocked",
        **dict.fromkeys(TILE_OF.values(), TILES[level][0]),
    }  # fmt: skip
    assert job.module == "arm_wasm.js"


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("wasm:tile=2x4", "arm wasm: tile=2x4: a module with simd=relaxed has the tiles 4x8"),
        ("wasm64:tile_da=2x4", "arm wasm64: tile_da=2x4: a module with simd=relaxed has the tiles"),
        ("wasm:tile=2x4+tile_da=4x8", "tile_fwd=2x4: a module"),
    ],
)
def test_an_option_that_what_was_chosen_here_excludes(arm: str, said: str) -> None:
    with pytest.raises(ArmError) as error:
        resolve(parse_arm(arm), FEATURES)
    assert said in str(error.value)
    assert "goes with simd=scalar" in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("arm", "features", "said"),
    [
        ("wasm:simd=relaxed", without("relaxed_simd"), "no simd=relaxed"),
        ("wasm:simd=on", without("relaxed_simd", "simd128"), "no simd=simd128"),
        ("wasm:threads=2", without("threads"), "threads=2 needs shared WebAssembly memory"),
        ("wasm:shared=on", without("threads"), "no shared WebAssembly memory"),
        ("wasm:shared=on", FEATURES | {"cross_origin_isolated": False}, "cross-origin isolation"),
        ("wasm64", without("memory64"), "no Memory64; use arm wasm"),
        ("wasm64", without("memory64_shared"), "no Memory64"),
        ("wasm:threads=2", {}, "needs shared WebAssembly memory"),
        ("webgpu", FEATURES | {"webgpu": None}, "no WebGPU here (no adapter)"),
        (
            "webgpu",
            FEATURES | {"webgpu": {"available": False, "reason": "blocklisted"}},
            "no WebGPU here (blocklisted)",
        ),
        ("webgpu", {}, "no WebGPU here"),
        ("webgpu:matmul=subgroup", FEATURES, "needs the adapter's feature subgroups"),
    ],
)
def test_what_the_browser_lacks_ends_the_run(arm: str, features: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported) as error:
        resolve(parse_arm(arm), features)
    assert said in str(error.value)
    assert error.value.exit_code == 3


def test_what_was_asked_for_is_kept() -> None:
    asked = parse_arm("wasm64:threads=3+simd=off+shared=on+kernels=forward+tile=4x4")
    assert resolve(asked, FEATURES).options == asked.options
    asked = parse_arm("webgpu:matmul=naive+mm_da=tiled+tile=4x8+workgroup=16x4")
    assert resolve(asked, FEATURES).options == asked.options
    able = FEATURES | {"webgpu": FEATURES["webgpu"] | {"features": ["subgroups"]}}
    found = resolve(parse_arm("webgpu:matmul=subgroup"), able).options
    assert {found[product] for product in TILE_OF} == {"subgroup"}


def test_matmul_is_shorthand_for_the_three_products() -> None:
    spec = parse_arm("webgpu:mm_db=blocked+matmul=tiled+tile=8x4")
    assert [spec.options[product] for product in TILE_OF] == ["tiled", "tiled", "blocked"]
    assert {spec.options[tile] for tile in TILE_OF.values()} == {"8x4"}
    assert chosen_text(resolve(spec, FEATURES).options, "mm_db") == "blocked 8x4 in 8x8"
    assert chosen_text(resolve(spec, FEATURES).options, "mm_fwd") == "tiled"


@pytest.mark.parametrize(("is_fallback", "tile"), [(True, "8x8"), (False, "4x4"), (None, "4x4")])
def test_tiles_of_a_software_adapter_are_large(is_fallback: bool | None, tile: str) -> None:
    features = FEATURES | {"webgpu": {"available": True, "is_fallback": is_fallback}}
    assert resolve(parse_arm("webgpu"), features).options["tile_fwd"] == tile


def test_variants_that_the_adapter_cannot_run_are_not_offered() -> None:
    assert set(VARIANTS) - set(gpu_variants(FEATURES)) == set(NEEDED_FEATURE) & set(VARIANTS)


def test_wasm_needs_no_memory64() -> None:
    assert resolve(parse_arm("wasm"), without("memory64", "memory64_shared")).name == "wasm"


@pytest.mark.parametrize(
    "features", [without("threads"), FEATURES | {"cross_origin_isolated": False}, {}]
)
@pytest.mark.parametrize("text", ["wasm", "wasm:threads=1", "wasm:shared=off"])
def test_one_thread_needs_no_shared_memory(features: dict[str, Any], text: str) -> None:
    options = resolve(parse_arm(text), features).options
    assert (options["threads"], options["shared"]) == (1, "off")


def test_wasm64_without_shared_memory() -> None:
    job = resolve(parse_arm("wasm64:shared=off"), without("memory64_shared"))
    assert (job.options["threads"], job.options["shared"]) == (1, "off")


@pytest.mark.parametrize("threads", [None, 0, 1])
def test_at_least_one_thread(threads: int | None) -> None:
    features = FEATURES | {"usable_threads": threads}
    assert resolve(parse_arm("wasm"), features).options["threads"] == 1


@pytest.mark.parametrize("name", ["wasm", "wasm64", "webgpu", "null"])
def test_no_auto_reaches_the_page(name: str) -> None:
    assert AUTO not in resolve(parse_arm(name), FEATURES).options.values()
