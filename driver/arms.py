"""The arms' grammar: names, options, canonical form; and what `auto` means on this machine.

    wasm:threads=1+simd=scalar,webgpu:matmul=naive

Arms are separated by `,`; options follow `:` and are joined by `+`. `OPTIONS` is the one list.
"""

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driver.errors import ArmError, Unsupported
from driver.records import ArmJob, ArmPlan, Pinned, Product, Record

Value = str | int | float | bool
AUTO = "auto"


@dataclass(frozen=True)
class Option:
    """One option: its default, what it accepts, and what it does."""

    default: Value
    meaning: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    aliases: tuple[tuple[str, str], ...] = ()
    auto: bool = False
    numbers: bool = False
    text: bool = False
    usual: tuple[str, ...] = ()  # goes without saying where two arms are told apart in a few words

    def parse(self, arm: str, key: str, text: str) -> Value:
        """The value that `text` means; raises ArmError."""
        text = dict(self.aliases).get(text, text)
        if self.auto and text == AUTO:
            return AUTO
        if self.text:
            return text
        if self.choices:
            listed = self.numbers and all(map(_is_finite_number, text.split("/")))
            if text not in self.choices and not listed:
                allowed = ", ".join(self.choices + ((AUTO,) if self.auto else ()))
                more = ", or numbers joined by /" if self.numbers else ""
                raise ArmError(f"arm {arm}: {key}={text}: expected one of {allowed}{more}")
            return text
        kind = float if isinstance(self.default, float) else int
        try:
            number = kind(text)
        except ValueError:
            noun = "a number" if kind is float else "a whole number"
            raise ArmError(f"arm {arm}: {key}={text}: expected {noun}") from None
        if not self.low <= number <= self.high:
            note = f" (this machine has {os.cpu_count()} cores)" if key == "threads" else ""
            raise ArmError(f"arm {arm}: {key}={text}: expected {self.low:g} to {self.high:g}{note}")
        return number


def _is_finite_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def given_losses(text: str, steps: int) -> tuple[float, ...]:
    """The null arm's programmed losses, `5.5/5.4/…`, the last one repeated up to `steps`."""
    values = [float(part) for part in text.split("/")]
    return tuple(values[min(index, len(values) - 1)] for index in range(steps))


# Tiles of the blocked products by instruction set, as in wasm_src/tile.h; the first is the default.
TILES = {
    "scalar": ("2x4", "4x4"),
    "simd128": ("4x8", "5x8", "6x8", "8x8", "4x12"),
    "relaxed": ("4x8", "5x8", "6x8", "8x8", "4x12"),
}
_SIZES = ("2x4", "4x4", "4x8", "5x8", "6x8", "8x8", "4x12")
_TILE = {"choices": _SIZES, "auto": True, "usual": _SIZES}
_PRODUCT = {"choices": ("naive", "blocked"), "auto": True, "usual": ("blocked",)}
_WASM: dict[str, Option] = {
    "threads": Option(AUTO, "threads of the fork-join pool", low=1, high=256, auto=True),
    "simd": Option(
        AUTO,
        "instruction set of the module",
        choices=("scalar", "simd128", "relaxed"),
        aliases=(("off", "scalar"), ("on", "simd128")),
        auto=True,
        usual=("relaxed",),
    ),
    "shared": Option(
        AUTO,
        "memory that threads share; off: a module without threads",
        choices=("on", "off"),
        auto=True,
        usual=("on",),
    ),
    "mm_fwd": Option(AUTO, "kernel of the product A·B", **_PRODUCT),  # type: ignore[arg-type]
    "mm_da": Option(AUTO, "kernel of the product dC·Bᵀ", **_PRODUCT),  # type: ignore[arg-type]
    "mm_db": Option(AUTO, "kernel of the product Aᵀ·dC", **_PRODUCT),  # type: ignore[arg-type]
    "tile_fwd": Option(AUTO, "register tile of the blocked A·B", **_TILE),  # type: ignore[arg-type]
    "tile_da": Option(AUTO, "register tile of the blocked dC·Bᵀ", **_TILE),  # type: ignore[arg-type]
    "tile_db": Option(AUTO, "register tile of the blocked Aᵀ·dC", **_TILE),  # type: ignore[arg-type]
}
# Variants of the WGSL products, the default first, the plain one last.
VARIANTS = ("blocked", "tiled", "subgroup", "naive")
# What an adapter must offer for one of them.
NEEDED_FEATURE = {"subgroup": "subgroups"}
# Of the blocked WGSL products: elements of an invocation, and invocations of a workgroup.
GPU_TILES = ("8x8", "8x4", "4x8", "4x4")
WORKGROUPS = ("8x8", "16x4", "4x16", "16x16")
# Parts into which the depth of the blocked Aᵀ·dC is cut, the default first.
SPLITS = ("1", "2", "4", "8", "16")
_VARIANT = {"choices": VARIANTS, "auto": True, "usual": tuple(v for v in VARIANTS if v != "naive")}
_GPU_TILE = {"choices": GPU_TILES, "auto": True, "usual": GPU_TILES}
_WEBGPU: dict[str, Option] = {
    "mm_fwd": Option(AUTO, "variant of the product A·B", **_VARIANT),  # type: ignore[arg-type]
    "mm_da": Option(AUTO, "variant of the product dC·Bᵀ", **_VARIANT),  # type: ignore[arg-type]
    "mm_db": Option(AUTO, "variant of the product Aᵀ·dC", **_VARIANT),  # type: ignore[arg-type]
    "tile_fwd": Option(AUTO, "elements that an invocation of the blocked A·B makes", **_GPU_TILE),  # type: ignore[arg-type]
    "tile_da": Option(AUTO, "elements that one of the blocked dC·Bᵀ makes", **_GPU_TILE),  # type: ignore[arg-type]
    "tile_db": Option(AUTO, "elements that one of the blocked Aᵀ·dC makes", **_GPU_TILE),  # type: ignore[arg-type]
    "split_db": Option(
        AUTO,
        "parts into which the depth of the blocked Aᵀ·dC is cut; another dispatch adds them",
        choices=SPLITS,
        auto=True,
        usual=SPLITS,
    ),
    "workgroup": Option(
        AUTO,
        "invocations of a workgroup of the blocked and naive products, x by y",
        choices=WORKGROUPS,
        auto=True,
        usual=WORKGROUPS,
    ),
    "f16": Option(
        "off",
        "half precision: storage, weights that products read; compute, products as well",
        choices=("off", "storage", "compute"),
    ),
}
# The products that read weights, and so their halves: only one variant of them can.
READ_HALVES: tuple[Product, ...] = ("mm_fwd", "mm_da")
# Rungs of the ladder: how many of the three products are blocked, in this order.
_RUNGS = {"naive": 0, "forward": 1, "forward-dA": 2, "forward-dA-dB": 3}
_PRODUCTS: tuple[Product, ...] = ("mm_fwd", "mm_da", "mm_db")
# The option that names each product's tile.
TILE_OF: dict[Product, str] = {"mm_fwd": "tile_fwd", "mm_da": "tile_da", "mm_db": "tile_db"}
# Arm → what sets several options at once; a single one beside it wins.
_TILES = {"tile": tuple(TILE_OF.values())}
_TOGETHER: dict[str, dict[str, tuple[str, ...]]] = {
    "wasm": _TILES,
    "wasm64": _TILES,
    "webgpu": _TILES | {"matmul": _PRODUCTS},
}

OPTIONS: dict[str, dict[str, Option]] = {
    "wasm": _WASM,
    "wasm64": _WASM,
    "webgpu": _WEBGPU,
    "null": {
        "ms": Option(5.0, "programmed time of a step in ms", low=0, high=1e6),
        "noise": Option(0.0, "standard deviation of a step's log time", low=0, high=2),
        "drift": Option(0.0, "relative growth of the time per slot", low=-0.5, high=10),
        "spikes": Option(0.0, "share of steps that take ten times as long", low=0, high=1),
        "seed": Option(0, "seed of noise and spikes", low=0, high=2**53 - 1),
        "curve": Option(
            "reference",
            "losses it reports, the reference's, one number or a list like 5.5/5.4/5.2",
            choices=("reference", "frozen"),
            numbers=True,
        ),
        "nan_at": Option(-1, "step whose loss is NaN, −1 never", low=-1, high=1e9),
        "hang_at": Option(-1, "step that never ends, −1 never", low=-1, high=1e9),
        "crash_at": Option(-1, "step that throws, −1 never", low=-1, high=1e9),
    },
    "numpy": {
        "dtype": Option("float64", "arithmetic", choices=("float64", "float32")),
    },
}
# Options without a default: they stand in the canonical form only where they are given.
_SOURCE = {"source": Option("", "build from another revision or folder of this project", text=True)}
UNSET = {"wasm": _SOURCE, "wasm64": _SOURCE, "webgpu": _SOURCE}
MEANINGS = {
    "wasm": "C kernels compiled to WebAssembly, 32-bit addresses",
    "wasm64": "the same with 64-bit addresses (Memory64)",
    "webgpu": "WGSL kernels through WebGPU",
    "null": "a fake with programmed times and faults, for testing the driver; never qualified",
    "numpy": "the NumPy reference; `replay` only",
}
_MODULES = {"wasm": "arm_wasm.js", "wasm64": "arm_wasm.js", "webgpu": "arm_webgpu.js",
            "null": "arm_null.js"}  # fmt: skip


class ArmSpec(Record):
    """An arm as asked for: its options with defaults expanded; `auto` still stands."""

    name: str
    options: dict[str, Value]
    pinned: Pinned | None = None

    @property
    def canonical(self) -> str:
        """Options sorted, defaults expanded."""
        return canonical(self.name, self.options)

    @property
    def module(self) -> str:
        """The page module that implements the arm; numpy has none."""
        return _MODULES[self.name]

    @property
    def is_wasm(self) -> bool:
        """Runs a WebAssembly module."""
        return self.name in ("wasm", "wasm64")


Chosen = ArmSpec | ArmPlan  # an arm with its options


def canonical(name: str, options: dict[str, Value]) -> str:
    """`name:key=value+…` with keys sorted."""
    shown = "+".join(f"{key}={options[key]}" for key in sorted(options))
    return f"{name}:{shown}" if shown else name


def in_few_words(a: Chosen, b: Chosen) -> tuple[str, str]:
    """Two arms as `name key=value …`, each with what makes it more or less than usual, threads
    among it, and with what sets it apart from the other.
    """
    keys = _apart(a, b)
    return _few_words(a, keys), _few_words(b, keys)


def told_apart(a: Chosen, b: Chosen) -> tuple[str, str]:
    """What sets two arms of the same name apart, `mm_da=naive` each; empty for other names."""
    keys = sorted(_apart(a, b))
    one, other = (
        " ".join(f"{key}={arm.options[key]}" for key in keys if key in arm.options)
        for arm in (a, b)
    )
    return one, other


def short_names(a: Chosen, b: Chosen) -> tuple[str, str]:
    """Two arms as titles and tables have room for: `wasm (threads=1)` each where both have one
    name, of several options as many as fit; else, and where they are the same arm, names alone.
    """
    one, other = (
        f"{arm.name} ({_cut(own)})" if own else arm.name
        for arm, own in zip((a, b), told_apart(a, b), strict=True)
    )
    return one, other


def _cut(options: str, most: int = 60) -> str:
    """Whole options as far as they fit. Both arms' are of the same keys in the same order, so that
    the first alone tells them apart."""
    if len(options) <= most:
        return options
    whole = options[:most].rpartition(" ")[0] or options[:most]
    return f"{whole} …"


def read_canonical(text: str) -> ArmSpec:
    """An arm of a canonical form that may be of another version: every value as text."""
    name, _, rest = text.partition(":")
    options: dict[str, Value] = {}
    key = ""
    for part in rest.split("+") if rest else []:
        if "=" in part:
            key, _, options[key] = part.partition("=")
        elif key:
            options[key] = f"{options[key]}+{part}"  # a source's folder may have one in its name
    return ArmSpec(name=name, options=options)


def _few_words(arm: Chosen, apart: set[str]) -> str:
    said = [
        f"{key}={value}"
        for key, value in sorted(arm.options.items())
        if key in apart or not _is_usual(arm, key)
    ]
    return " ".join([arm.name, *said])


def _apart(a: Chosen, b: Chosen) -> set[str]:
    """Options in which arms of one name differ; usual values only where they differ in no other."""
    if a.name != b.name:
        return set()
    keys = a.options.keys() | b.options.keys()
    differing = {key for key in keys if a.options.get(key) != b.options.get(key)}
    telling = {key for key in differing if not (_is_usual(a, key) and _is_usual(b, key))}
    return telling or differing


def _is_usual(arm: Chosen, key: str) -> bool:
    option = OPTIONS.get(arm.name, {}).get(key)
    return option is not None and arm.options.get(key) in (option.default, *option.usual)


def parse_arm(text: str) -> ArmSpec:
    """One arm; raises ArmError for an unknown name, option or value, or two that exclude each
    other."""
    name, colon, rest = text.strip().partition(":")
    if name not in OPTIONS:
        near = difflib.get_close_matches(name, OPTIONS, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ArmError(f"unknown arm {name!r}{hint} Known arms: {', '.join(OPTIONS)}")
    table = OPTIONS[name]
    allowed = table | UNSET.get(name, {})
    options = {key: option.default for key, option in table.items()}
    given: set[str] = set()
    for part in rest.split("+") if colon else []:
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise ArmError(f"arm {name}: {part!r} is not an option; write key=value")
        if key in given:
            raise ArmError(f"arm {name}: option {key} is given twice")
        given.add(key)
        if key == "kernels" and table is _WASM:
            if value not in _RUNGS:
                raise ArmError(f"arm {name}: kernels={value}: expected one of {', '.join(_RUNGS)}")
            for index, product in enumerate(_PRODUCTS):
                if product not in given:
                    options[product] = "blocked" if index < _RUNGS[value] else "naive"
            continue
        together = _TOGETHER.get(name, {}).get(key)
        if together:
            for option in together:
                if option not in given:
                    options[option] = table[option].parse(name, key, value)
            continue
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise ArmError(
                f"arm {name}: unknown option {key!r}{hint} It has: {', '.join(allowed) or 'none'}"
            )
        options[key] = allowed[key].parse(name, key, value)
    _check_together(name, options)
    _fix_readers_of_halves(options)
    _fix_cut_product(options)
    return ArmSpec(name=name, options=options)


def _check_together(name: str, options: Mapping[str, Value]) -> None:
    """Raises ArmError where options of a WASM arm exclude each other on every machine."""
    if OPTIONS[name] is not _WASM:
        return
    threads, simd = options["threads"], str(options["simd"])
    if options["shared"] == "off" and threads not in (AUTO, 1):
        raise ArmError(
            f"arm {name}: threads={threads} and shared=off exclude each other: without shared "
            "memory there is one thread; leave one of them out"
        )
    if simd == AUTO:
        return
    given = {key: str(options[key]) for key in TILE_OF.values()}
    wrong = {key: tile for key, tile in given.items() if tile not in (AUTO, *TILES[simd])}
    if wrong:
        key, tile = next(iter(wrong.items()))
        if len(wrong) == len(given) and len(set(wrong.values())) == 1:
            key = "tile"  # the short form for all three
        homes = " or ".join(level for level, tiles in TILES.items() if tile in tiles)
        raise ArmError(
            f"arm {name}: {key}={tile}: a module with simd={simd} has the tiles "
            f"{', '.join(TILES[simd])}; {tile} goes with simd={homes}"
        )


def _fix_readers_of_halves(options: dict[str, Value]) -> None:
    """Products that read halves have one variant: it is not left open to tuning."""
    if options.get("f16", "off") != "off":
        for product in READ_HALVES:
            options[product] = "blocked" if options[product] == AUTO else options[product]


def _fix_cut_product(options: dict[str, Value]) -> None:
    """Only the blocked product is cut: what one option fixes of that, it fixes of the other.

    Raises ArmError where they exclude each other.
    """
    split, variant = options.get("split_db", SPLITS[0]), options.get("mm_db")
    cut = split not in (AUTO, SPLITS[0])
    if cut and variant not in (AUTO, "blocked"):
        raise ArmError(
            f"arm webgpu: split_db={split} with mm_db={variant}: only the blocked product runs in "
            "parts; leave one of them out, or use split_db=1"
        )
    if cut:
        options["mm_db"] = "blocked"
    if split == AUTO and variant not in (AUTO, "blocked"):
        options["split_db"] = SPLITS[0]


def with_choices(arm: ArmJob, spec: ArmSpec, options: Mapping[str, Value]) -> ArmJob:
    """The arm with what `spec` leaves open as `options` have it, as far as they do."""
    chosen = {k: options[k] for k, value in spec.options.items() if value == AUTO and k in options}
    return arm.model_copy(update={"options": arm.options | chosen})


def parse_arms(text: str) -> tuple[ArmSpec, ArmSpec]:
    """Exactly two arms, A,B; the same arm twice is an A/A run. Raises ArmError."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        found = len(parts) if all(part.strip() for part in parts) else "an empty one"
        raise ArmError(
            f"--arms {text!r}: expected two arms A,B, found {found}; "
            "the same arm twice is an A/A run"
        )
    first, second = (parse_arm(part) for part in parts)
    for arm in (first, second):
        if arm.name == "numpy":
            raise ArmError("arm numpy is the reference itself; it runs in `driver replay` only")
    return first, second


def resolve(arm: ArmSpec, features: dict[str, Any]) -> ArmJob:
    """What runs on this machine: every `auto` decided from the page's probed features.

    Raises Unsupported, with the reason, for what this browser cannot honour, and ArmError for an
    option that what was chosen here excludes.
    """
    options = dict(arm.options)
    if arm.is_wasm:
        _resolve_wasm(arm, options, features)
    elif arm.name == "webgpu":
        adapter = features.get("webgpu") or {}
        if not adapter.get("available"):
            reason = adapter.get("reason") or "no adapter"
            raise Unsupported(
                f"arm webgpu: this browser offers no WebGPU here ({reason}). "
                "`driver doctor` says what is there; another arm is chosen with --arms wasm64,wasm"
            )
        tile = "8x8" if adapter.get("is_fallback") is True else "4x4"
        default = dict.fromkeys(_PRODUCTS, VARIANTS[0]) | dict.fromkeys(TILE_OF.values(), tile)
        default |= {"workgroup": WORKGROUPS[0], "split_db": SPLITS[0]}
        options = {k: default[k] if value == AUTO else value for k, value in options.items()}
        for product in _PRODUCTS:
            feature = NEEDED_FEATURE.get(str(options[product]))
            if feature and feature not in (adapter.get("features") or ()):
                raise Unsupported(
                    f"arm webgpu: {product}={options[product]} needs the adapter's feature "
                    f"{feature}, which this one has not; choose naive, tiled or blocked"
                )
        _check_f16(options, adapter)
        _fix_cut_product(options)  # a stranger's receipt may have pinned anything
    return ArmJob(name=arm.name, module=arm.module, options=options)


def _check_f16(options: Mapping[str, Any], adapter: Mapping[str, Any]) -> None:
    """Refuses half precision that the chosen kernels or the adapter do not have."""
    f16 = options["f16"]
    for product in READ_HALVES:
        if f16 != "off" and options[product] != "blocked":
            raise Unsupported(
                f"arm webgpu: f16={f16} with {product}={options[product]}: only the blocked "
                "products read halves; leave it out, or use f16=off"
            )
    if f16 == "compute" and "shader-f16" not in (adapter.get("features") or ()):
        raise Unsupported(
            "arm webgpu: f16=compute needs the feature shader-f16, which this adapter lacks; "
            "f16=storage works without it"
        )


def gpu_variants(features: Mapping[str, Any]) -> tuple[str, ...]:
    """Variants of the WGSL products that this adapter offers, the default first."""
    offered = (features.get("webgpu") or {}).get("features") or ()
    return tuple(
        variant for variant in VARIANTS
        if variant not in NEEDED_FEATURE or NEEDED_FEATURE[variant] in offered
    )  # fmt: skip


def halves_of(options: Mapping[str, Value], option: Product) -> str:
    """How a product of that option uses halves: off, storage or compute."""
    return str(options.get("f16", "off")) if option in READ_HALVES else "off"


def split_of(options: Mapping[str, Value], option: Product, variant: str) -> int:
    """Into how many parts the webgpu arm cuts the depth of that option's products."""
    return int(options["split_db"]) if (option, variant) == ("mm_db", "blocked") else 1


def chosen_text(options: Mapping[str, Value], product: Product) -> str:
    """How the webgpu arm runs a product, in the words that it echoes: blocked 8x8 in 16x4."""
    variant = str(options[product])
    tile = f" {options[TILE_OF[product]]}" if variant == "blocked" else ""
    workgroup = f" in {options['workgroup']}" if variant in ("blocked", "naive") else ""
    split = split_of(options, product, variant)
    return f"{variant}{tile}{workgroup}" + (f" in {split} parts" if split > 1 else "")


def shares_memory(features: Mapping[str, Any]) -> bool:
    """The page can give threads a common WebAssembly memory."""
    wasm = features.get("wasm") or {}
    return bool(wasm.get("threads") and features.get("cross_origin_isolated"))


def _resolve_memory(name: str, options: dict[str, Value], features: dict[str, Any]) -> None:
    """Shared or not, threads, address type; one thread needs no shared memory."""
    wasm = features.get("wasm") or {}
    isolation = "cross-origin isolation, which the driver's server gives; see driver doctor"
    if options["shared"] == AUTO:
        options["shared"] = "on" if shares_memory(features) else "off"
    elif options["shared"] == "on" and not shares_memory(features):
        raise Unsupported(
            f"arm {name}: the page has no shared WebAssembly memory (it needs {isolation})"
        )
    shared = options["shared"] == "on"
    if options["threads"] == AUTO:
        options["threads"] = max(1, int(features.get("usable_threads") or 1)) if shared else 1
    elif options["threads"] != 1 and not shared:
        raise Unsupported(
            f"arm {name}: threads={options['threads']} needs shared WebAssembly memory "
            f"(shared=on, and {isolation})"
        )
    memory64 = wasm.get("memory64") and (wasm.get("memory64_shared") or not shared)
    if name == "wasm64" and not memory64:
        raise Unsupported("arm wasm64: this browser has no Memory64; use arm wasm instead")


def _resolve_wasm(arm: ArmSpec, options: dict[str, Value], features: dict[str, Any]) -> None:
    wasm = features.get("wasm") or {}
    levels = {
        "relaxed": wasm.get("relaxed_simd"),
        "simd128": wasm.get("simd128"),
        "scalar": True,
    }
    if options["simd"] == AUTO:
        options["simd"] = next(level for level, present in levels.items() if present)
    elif not levels[str(options["simd"])]:
        raise Unsupported(f"arm {arm.name}: this browser has no simd={options['simd']}")
    _check_together(arm.name, options)
    _resolve_memory(arm.name, options, features)
    for product in _PRODUCTS:
        if options[product] == AUTO:
            options[product] = "blocked"
    tiles = TILES[str(options["simd"])]
    for option in TILE_OF.values():
        if options[option] == AUTO:
            options[option] = tiles[0]
