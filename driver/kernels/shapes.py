"""`--op` and `--shapes`: which kernels at which shapes."""

import re
from dataclasses import dataclass

from pydantic import ValidationError

from driver import presets
from driver.arms import TILE_OF, ArmSpec
from driver.errors import UsageError
from driver.faults import in_words
from driver.kernels.case import Case
from driver.kernels.operations import ENTRIES, GROUPS, cases_of, size_bytes
from driver.records import ModelConfig, Product
from driver.tensors import products

OPS = ("all", "matmul", *TILE_OF, *GROUPS, "fork")
LARGEST = 1 << 30  # floats of a product's operands together
# Of another operation's operands, which are drawn here and sent; its reference and its bound take
# ten to thirty times as much memory.
LARGEST_BYTES = 1 << 28
LARGEST_SQUARE = 1 << 25  # B·H·T·T of attention, whose reference keeps such arrays
STEP = "a step's sizes B=2+T=17+C=15+H=3+V=11"
GRAMMAR = f"preset:NAME, {STEP}, or a product's MxNxK"
Shape = tuple[Product, int, int, int]

_REQUIRED = ("B", "T", "C")
_OPTIONAL = ("H", "V", "F", "L")
_FIELDS = {"B": "batch", "T": "ctx", "C": "d_model", "H": "n_head", "V": "vocab", "F": "d_ff",
           "L": "n_layer"}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What is to be checked and timed, each kernel once."""

    products: tuple[Shape, ...] = ()
    cases: tuple[Case, ...] = ()


def check_op(op: str) -> None:
    """Raises UsageError for what no kernel is called."""
    if op not in OPS and op not in ENTRIES:
        raise UsageError(
            f"--op {op}: expected one of {', '.join(OPS)}, or one direction: "
            f"{', '.join(name for name in ENTRIES if name not in OPS)}"
        )


def check_arm(spec: ArmSpec, op: str) -> None:
    """Raises UsageError for an arm that does not run this apart from its step."""
    if not spec.is_wasm and spec.name != "webgpu":
        raise UsageError(
            f"--arm {spec.name}: only wasm, wasm64 and webgpu have kernels to run apart"
        )
    if op == "fork" and not spec.is_wasm:
        raise UsageError("--op fork: only wasm and wasm64 have threads to fork")


def parse_shapes(text: str, op: str, device: bool = False) -> Work:
    """The kernels of `op` at the shapes of `--shapes`; a device has WGSL's. Raises UsageError.

    Parts are joined by commas. A preset or a step's sizes stand for every product and operation of
    that step; MxNxK stands for the three products.
    """
    shapes: dict[Shape, None] = {}
    cases: dict[tuple[str, str], Case] = {}
    for part in (piece.strip() for piece in text.split(",")):
        size = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,6})x([1-9]\d{0,6})", part)
        if size:
            M, N, K = (int(n) for n in size.groups())
            shapes.update(dict.fromkeys((product, M, N, K) for product in TILE_OF))
            continue
        config = _model(part)
        shapes.update(dict.fromkeys((p.layout, p.M, p.N, p.K) for p in products(config)))
        cases.update({(case.name, case.label): case for case in cases_of(config, device)})
    found = Work(
        tuple(shape for shape in shapes if op in ("all", "matmul", shape[0])),
        tuple(c for c in cases.values() if op in ("all", c.name, ENTRIES[c.name].group)),
    )
    if device and cases and not (found.products or found.cases):
        apart = dict.fromkeys(case.name for case in cases.values())
        raise UsageError(
            f"--op {op}: on webgpu it is part of another kernel; apart run {', '.join(apart)}"
        )
    if not (found.products or found.cases):
        raise UsageError(
            f"--shapes {text}: MxNxK is a product's; --op {op} needs preset:NAME or {STEP}"
        )
    _check_sizes(found)
    return found


def _model(part: str) -> ModelConfig:
    """The model whose step is meant."""
    name, colon, preset = part.partition(":")
    if colon and name == "preset":
        return presets.load(preset).model
    if "=" not in part:
        raise UsageError(f"--shapes {part!r}: write {GRAMMAR}")
    given: dict[str, int] = {}
    for word in part.split("+"):
        letter, _, number = word.partition("=")
        if letter not in _REQUIRED + _OPTIONAL or letter in given:
            raise UsageError(
                f"--shapes {part!r}: {word!r}: expected each of {', '.join(_REQUIRED)} once, "
                f"and {', '.join(_OPTIONAL)} if wanted, joined by +"
            )
        if not re.fullmatch(r"[1-9]\d{0,6}", number):
            raise UsageError(f"--shapes {part!r}: {word!r}: expected a whole number from 1")
        given[letter] = int(number)
    missing = [letter for letter in _REQUIRED if letter not in given]
    if missing:
        raise UsageError(
            f"--shapes {part!r}: no {' and no '.join(missing)}; sizes are joined by +, say "
            "B=2+T=17+C=15"
        )
    return _config(part, given)


def _config(part: str, given: dict[str, int]) -> ModelConfig:
    """Raises UsageError for sizes that no model has."""
    defaults = {"H": 1, "V": 256, "F": 4 * given["C"], "L": 1}
    recipe = presets.load("tiny").model.model_dump()  # every preset has the same
    sizes = {_FIELDS[letter]: size for letter, size in (defaults | given).items()}
    try:
        return ModelConfig.model_validate(recipe | sizes)
    except ValidationError as error:
        fault = error.errors()[0]
        letter = {field: letter for letter, field in _FIELDS.items()}
        of = "".join(f"{letter[str(field)]} " for field in fault["loc"])
        raise UsageError(f"--shapes {part!r}: {of}{in_words(fault)}") from None


def _check_sizes(work: Work) -> None:
    for _, M, N, K in work.products:
        if max(M, N, K) > 1 << 20 or M * K + K * N + M * N > LARGEST:
            raise UsageError(f"--shapes {M}x{N}x{K}: too large for one kernel's memory here")
    for case in work.cases:
        advice = "name another --op, or smaller sizes"
        if size_bytes(case) > LARGEST_BYTES:
            raise UsageError(
                f"--shapes: {case.name} at {case.label} has operands of "
                f"{size_bytes(case) >> 20} MiB; at most {LARGEST_BYTES >> 20} are drawn and sent "
                f"for one kernel: {advice}"
            )
        n = case.sizes
        if "H" in n and n["B"] * n["H"] * n["T"] ** 2 > LARGEST_SQUARE:
            raise UsageError(
                f"--shapes: {case.name} at {case.label}: B·H·T·T is above {LARGEST_SQUARE}, more "
                f"than the float64 reference is given memory for: {advice}"
            )
