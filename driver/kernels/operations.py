"""The one table of a step's operations beside the products, and the judgement of their results.

An entry says everything that another arm, another language and the report need: the sizes that the
kernel takes, its operands with their shapes, what it is given and what it must give, how far it may
be off, and what a call has to move or compute. The names are those of NumPy, C and WGSL.

Work is counted so: where memory binds, the bytes of every operand once, twice where it is written
over (STREAM's counting: what is read plus what is written); for attention, multiply-adds of the
causal half with its diagonal, 2 products forward and 5 backward, as in `tensors.executed_flops`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from driver.kernels import bounds, oracle, webgpu
from driver.kernels.case import Arrays, Case, Sizes
from driver.kernels.entry import Entry, letters, read, updated, written
from driver.kernels.timing import figures, refused
from driver.parity import largest_ratio
from driver.records import ModelConfig, Operand, Operation, OperationRow, OperationSamples
from driver.workbench import speeds


def _bias_sizes(config: ModelConfig) -> Sequence[Sizes]:
    """Biases of three widths: C, 3C and F."""
    widths = dict.fromkeys((config.d_model, 3 * config.d_model, config.d_ff))
    return [{"N": config.positions, "O": width} for width in widths]


def _attention_flops(products: int) -> Callable[[Sizes], int]:
    return lambda n: products * n["B"] * n["T"] * (n["T"] + 1) * n["C"]


_TOKENS = read("tokens", "B T+1", "<i4")
_KEPT = (read("row_top", "B H T"), read("row_inverse", "B H T"))

# Sizes and operands stand as wasm_src/kernels.c takes them.
TABLE = (
    Entry(
        "encoder_forward", "encoder", letters("B", "T", "C", "V"),
        (written("x", "B T C"), _TOKENS, read("wte", "V C"), read("wpe", "T C")),
        oracle.draw_encoder_forward, oracle.encoder_forward, bounds.encoder_forward,
    ),
    Entry(
        "encoder_backward", "encoder", letters("B", "T", "C", "V"),
        (updated("dwte", "V C"), written("dwpe", "T C"), read("dx", "B T C"), _TOKENS),
        oracle.draw_encoder_backward, oracle.encoder_backward, bounds.encoder_backward,
    ),
    Entry(
        "layernorm_forward", "layernorm", letters("N", "C"),
        (written("y", "N C"), written("mean", "N"), written("rstd", "N"), read("x", "N C"),
         read("g", "C"), read("b", "C")),
        oracle.draw_layernorm_forward, oracle.layernorm_forward, bounds.layernorm_forward,
    ),
    Entry(
        "layernorm_backward", "layernorm", letters("N", "C"),
        (updated("dx", "N C"), written("dg", "C"), written("db", "C"), read("g", "C"),
         read("dy", "N C"), read("x", "N C"), read("mean", "N"), read("rstd", "N")),
        oracle.draw_layernorm_backward, oracle.layernorm_backward, bounds.layernorm_backward,
    ),
    Entry(
        "attention_forward", "attention", letters("B", "T", "C", "H"),
        (written("out", "B T C"), written("row_top", "B H T"), written("row_inverse", "B H T"),
         read("qkv", "B T 3C")),
        oracle.draw_attention_forward, oracle.attention_forward, bounds.attention_forward,
        flops=_attention_flops(2),
    ),
    Entry(
        "attention_backward", "attention", letters("B", "T", "C", "H"),
        (written("dqkv", "B T 3C"), read("dout", "B T C"), *_KEPT, read("qkv", "B T 3C")),
        oracle.draw_attention_backward, oracle.attention_backward, bounds.attention_backward,
        flops=_attention_flops(5),
    ),
    Entry(
        "gelu_forward", "gelu", letters("N", "F"),
        (written("y", "N F"), written("slope", "N F"), read("x", "N F")),
        oracle.draw_gelu_forward, oracle.gelu_forward, bounds.gelu_forward,
    ),
    Entry(
        "gelu_backward", "gelu", letters("N", "F"),
        (updated("dx", "N F"), read("slope", "N F")),
        oracle.draw_gelu_backward, oracle.gelu_backward, bounds.gelu_backward,
        most_calls=8,  # dx shrinks with every slope below 1
    ),
    Entry(
        "crossentropy", "crossentropy", letters("B", "T", "V"),
        (updated("logits", "B T V"), written("loss", "1", "<f8"), _TOKENS),
        oracle.draw_crossentropy, oracle.crossentropy, bounds.crossentropy,
    ),
    Entry(
        "bias_backward", "bias", _bias_sizes,
        (written("db", "O"), read("dy", "N O")),
        oracle.draw_bias_backward, oracle.bias_backward, bounds.bias_backward,
    ),
    Entry(
        "grad_norm", "grad_norm", letters("floats"),
        (written("norm", "1", "<f8"), read("grad", "floats")),
        oracle.draw_grad_norm, oracle.grad_norm, bounds.grad_norm,
    ),
    Entry(
        "adamw", "adamw", letters("floats", "tensors"),
        (updated("param", "floats"), updated("m", "floats"), updated("v", "floats"),
         read("grad", "floats"), read("slots", "tensors 3", "<i4"), read("recipe", "7", "<f8")),
        oracle.draw_adamw, oracle.adamw, bounds.adamw,
    ),
)  # fmt: skip
ENTRIES = {entry.name: entry for entry in TABLE}
GROUPS = tuple(dict.fromkeys(entry.group for entry in TABLE))


def entry_of(case: Case) -> Entry:
    """The operation as its language has it: C, or WGSL on a device."""
    return webgpu.ENTRIES[case.name] if case.device else ENTRIES[case.name]


def cases_of(config: ModelConfig, device: bool = False) -> list[Case]:
    """Every operation of one model's step that runs apart."""
    table = webgpu.TABLE if device else TABLE
    return [
        Case(entry.name, sizes, config, device) for entry in table for sizes in entry.sizes(config)
    ]


def size_bytes(case: Case) -> int:
    """All operands together."""
    return sum(array.size_bytes(case.sizes) for array in entry_of(case).operands)


def work(case: Case) -> int:
    """FLOPs of one call where arithmetic binds, else bytes that it must move."""
    entry = entry_of(case)
    if entry.flops:
        return entry.flops(case.sizes)
    return sum(
        array.size_bytes(case.sizes) * (2 if array.role == "inout" else 1)
        for array in entry.operands
    )


def draw(case: Case, seed: int) -> Arrays:
    """An operation's inputs, the same for the same seed whatever else is drawn."""
    number = list(ENTRIES).index(case.name) + 1  # 0 is the products' stream
    return entry_of(case).draw(case, np.random.Philox(key=seed + (number << 64)))


def pack(case: Case, x: Arrays) -> bytes:
    """The bytes of what the kernel reads, one operand after another."""
    return b"".join(
        np.ascontiguousarray(x[array.name], array.dtype).tobytes()
        for array in entry_of(case).operands
        if array.role != "out"
    )


def unpack(case: Case, results: bytes | bytearray) -> Arrays:
    """The results that a page posted, by name."""
    found: Arrays = {}
    at = 0
    for array in entry_of(case).operands:
        if array.role != "in":
            size = array.size_bytes(case.sizes)
            flat = np.frombuffer(results, array.dtype, size // np.dtype(array.dtype).itemsize, at)
            found[array.name] = flat.reshape(array.lengths(case.sizes))
            at += size
    return found


def operation_of(case: Case, inputs: str) -> Operation:
    """The case as the page runs it, on the asset `inputs`."""
    entry = entry_of(case)
    return Operation(
        name=case.name,
        sizes=tuple(case.sizes.values()),
        operands=tuple(
            Operand(name=array.name, role=array.role, size_bytes=array.size_bytes(case.sizes))
            for array in entry.operands
        ),
        inputs=inputs,
        bound_by="arithmetic" if entry.flops else "memory",
        most_calls=entry.most_calls,
    )


def errors_over_bound(case: Case, x: Arrays, got: Arrays) -> dict[str, float]:
    """For every result the largest |r − r64| over its bound; more than 1 is wrong."""
    entry = entry_of(case)
    bound = entry.bound(case, x)
    return {
        name: largest_ratio(np.abs(got[name].astype(np.float64) - exact), bound[name])
        for name, exact in entry.exact(case, x).items()
    }


def judge(
    case: Case, x: Arrays, results: bytes | bytearray, detail: dict[str, Any], same_bits: bool
) -> OperationRow:
    """Parity of one operation, before it is timed, from its results and its instruction's detail.

    `same_bits`: so it gave on another number of threads.
    """
    errors = errors_over_bound(case, x, unpack(case, results))
    worst = max(errors, key=lambda name: errors[name])
    reason = None
    if errors[worst] > 1:
        reason = f"{worst}: {errors[worst]:.3g} times the bound"
    elif not same_bits:
        reason = (
            f"other bits {'when it ran again' if case.device else 'on another number of threads'}"
        )
    return OperationRow(
        name=case.name,
        sizes=case.sizes,
        status="FAIL" if reason else "ok",
        reason=reason,
        error_over_bound=errors[worst],
        errors=errors,
        same_bits=same_bits,
        unit="GFLOP/s" if entry_of(case).flops else "GB/s",
        work=work(case),
        forks=detail["forks"],
        chunks=detail["chunks"],
    )


def timed(row: OperationRow, digest: str, detail: dict[str, Any]) -> OperationRow:
    """The row with its samples; what was timed must have given what was checked."""
    if failed := refused(row, digest, detail):
        return failed
    samples = OperationSamples.model_validate(
        {key: value for key, value in detail.items() if key in OperationSamples.model_fields}
    )
    found = figures(
        "rate", speeds(row.work * samples.calls_per_sample, samples.samples_ms), samples.roofline
    )
    return row.model_copy(update=found | {"samples": samples})
