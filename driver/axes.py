"""Axes of the ladder: what changes from rung to rung, one dimension at a time.

`AXES` is the one list: arm → axis → its rungs in the arms' grammar, slow to fast. An axis of fixed
values is a line of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driver.arms import (
    AUTO,
    GPU_TILES,
    OPTIONS,
    SPLITS,
    TILES,
    VARIANTS,
    WORKGROUPS,
    ArmSpec,
    parse_arm,
)
from driver.errors import ArmError
from driver.records import ArmJob

# From the arm as it runs here when nothing is asked for to arms as a person writes them.
Writer = Callable[[ArmJob], Sequence[str]]


@dataclass(frozen=True)
class Axis:
    """One dimension: what it means and its rungs."""

    meaning: str
    texts: Writer


@dataclass(frozen=True)
class Step:
    """A rung: what a table calls it, and its arm."""

    label: str
    spec: ArmSpec


def _values(option: str, *values: str) -> Writer:
    return lambda arm: [f"{arm.name}:{option}={value}" for value in values]


def _threads(arm: ArmJob) -> list[str]:
    """1, 2, 4, … and all of them."""
    most = int(arm.options["threads"])
    counts = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [f"{arm.name}:threads={count}" for count in (*counts, most)]


def _tiles(arm: ArmJob) -> list[str]:
    return [f"{arm.name}:tile={tile}" for tile in TILES[str(arm.options["simd"])]]


_WASM = {
    "kernels": Axis(
        "the three products blocked one after another",
        _values("kernels", "naive", "forward", "forward-dA", "forward-dA-dB"),
    ),
    "simd": Axis("instruction set", _values("simd", "scalar", "simd128", "relaxed")),
    "threads": Axis("threads of the pool", _threads),
    "tile": Axis("register tile of all three products", _tiles),
    "address": Axis("32- and 64-bit addresses", lambda _: ("wasm", "wasm64")),
}
AXES: dict[str, dict[str, Axis]] = {
    "wasm": _WASM,
    "wasm64": _WASM,
    "webgpu": {
        "kernels": Axis("variant of the products", _values("matmul", *reversed(VARIANTS))),
        "tile": Axis(
            "elements that an invocation of the blocked products makes",
            _values("tile", *reversed(GPU_TILES)),
        ),
        "workgroup": Axis(
            "invocations of a workgroup of the blocked products", _values("workgroup", *WORKGROUPS)
        ),
        "split": Axis(
            "parts into which the depth of the blocked Aᵀ·dC is cut",
            _values("split_db", *SPLITS[:4]),
        ),
        "precision": Axis(
            "weights, then products too, in half precision",
            _values("f16", "off", "storage", "compute"),
        ),
    },
}


def axis_of(arm: ArmSpec, name: str) -> Axis:
    """The arm's axis of that name; raises ArmError for one that it does not have."""
    axes = AXES.get(arm.name, {})
    if name in axes:
        return axes[name]
    has = f"it has {', '.join(axes)}" if axes else "it has none"
    raise ArmError(
        f"--axis {name}: arm {arm.name} has no such axis; {has}. "
        f"Arms with a ladder: {', '.join(AXES)}"
    )


def check(name: str, arm: ArmSpec) -> None:
    """Raises ArmError where the arm has no such axis or fixes what it changes, on any machine."""
    given = {key: value for key, value in arm.options.items() if value != AUTO}
    anywhere = {"threads": 2, "simd": "relaxed"} | given
    steps(name, arm, ArmJob(name=arm.name, module="", options=anywhere))


def steps(name: str, arm: ArmSpec, here: ArmJob) -> tuple[Step, ...]:
    """The rungs of an axis, everything else as the arm says; `here` is that arm on this machine.

    Raises ArmError where the arm fixes what the axis is to change.
    """
    written = [(text, parse_arm(text)) for text in axis_of(arm, name).texts(here)]
    default = {key: option.default for key, option in OPTIONS[arm.name].items()}
    set_by = [
        {key: value for key, value in spec.options.items() if value != default[key]}
        for _, spec in written
    ]
    varied = {(key, value) for given in set_by for key, value in given.items()}
    # What a rung's own option brings with it may be fixed, if to the same.
    own = {text.partition(":")[2].partition("=")[0] for text, _ in written}
    fixed = {
        f"{key}={arm.options[key]}"
        for key, value in varied
        if arm.options[key] not in ((default[key],) if key in own else (default[key], value))
    }
    if fixed:
        raise ArmError(
            f"--arm {arm.name}: {', '.join(sorted(fixed))} is what --axis {name} changes; "
            "leave it out"
        )
    return tuple(
        Step(
            label=text.partition("=")[2] or spec.name,
            spec=ArmSpec(name=spec.name, options=arm.options | given),
        )
        for (text, spec), given in zip(written, set_by, strict=True)
    )
