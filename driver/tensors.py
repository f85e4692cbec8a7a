"""The one table of tensors: name, shape, offset; and the initial state drawn from a seed.

Letters: V vocab, T context, C d_model, F d_ff, L layers. C, JavaScript and WGSL receive this
table; none keeps a copy. Every tensor starts at a multiple of 64 floats (256 bytes), which is both
WebGPU's strictest binding alignment and a whole number of SIMD vectors; the gaps hold zeros and
stay zero.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driver.draws import Init, NormalSource, normal_source
from driver.records import ModelConfig, Product, TensorSlot

ALIGN = 64
DRAW = 1 << 16  # normals drawn at a time: they stay in a core's cache, and memory stays small
F32 = NDArray[np.float32]
State = dict[str, F32]


def table(config: ModelConfig) -> tuple[TensorSlot, ...]:
    """All parameters of `config` in storage order."""
    C, F = config.d_model, config.d_ff
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("wte", (config.vocab, C)),
        ("wpe", (config.ctx, C)),
    ]
    for layer in range(config.n_layer):
        h = f"h.{layer}."
        shapes += [
            (h + "ln1.g", (C,)),
            (h + "ln1.b", (C,)),
            (h + "attn.wqkv", (C, 3 * C)),
            (h + "attn.bqkv", (3 * C,)),
            (h + "attn.wo", (C, C)),
            (h + "attn.bo", (C,)),
            (h + "ln2.g", (C,)),
            (h + "ln2.b", (C,)),
            (h + "mlp.w1", (C, F)),
            (h + "mlp.b1", (F,)),
            (h + "mlp.w2", (F, C)),
            (h + "mlp.b2", (C,)),
        ]
    shapes += [("lnf.g", (C,)), ("lnf.b", (C,))]

    slots: list[TensorSlot] = []
    offset = 0
    for name, shape in shapes:
        size = math.prod(shape)
        slots.append(
            TensorSlot(name=name, shape=shape, offset=offset, size=size, decay=len(shape) == 2)
        )
        offset += -(-size // ALIGN) * ALIGN
    return tuple(slots)


def flat_size(config: ModelConfig) -> int:
    """Length in floats of a flat array with the padding of `table`."""
    last = table(config)[-1]
    return last.offset + -(-last.size // ALIGN) * ALIGN


def parameter_count(config: ModelConfig) -> int:
    """Number of trainable parameters, padding left out."""
    return sum(slot.size for slot in table(config))


def model_flops(config: ModelConfig) -> int:
    """Model FLOPs of one training step: 6·N·(params − T·C) + 12·L·N·T·C.

    Attention counts in full, not halved for the causal mask, so that figures compare with published
    ones (Chowdhery et al. 2022, PaLM, appendix B).
    """
    N, T, C = config.positions, config.ctx, config.d_model
    return 6 * N * (parameter_count(config) - T * C) + 12 * config.n_layer * N * T * C


@dataclass(frozen=True)
class StepProduct:
    """A matrix product C (M,N), K deep, that a step makes `count` times in operation `op`.

    `option` chooses its kernel; `layout` says how its operands lie (see Kernel). They differ for
    the tied head, whose matrix is stored the other way round.
    """

    op: str
    option: Product
    layout: Product
    M: int
    N: int
    K: int
    count: int

    @property
    def flops(self) -> int:
        """A multiply-add is 2."""
        return 2 * self.M * self.N * self.K


def products(config: ModelConfig) -> tuple[StepProduct, ...]:
    """All matrix products of one training step but attention's."""
    N, C, F, V, L = config.positions, config.d_model, config.d_ff, config.vocab, config.n_layer
    found = []
    for inner, outer in ((C, 3 * C), (C, C), (C, F), (F, C)):  # y (N,outer) = x (N,inner) · w
        forward = "matmul_gelu_forward" if (inner, outer) == (C, F) else "matmul_forward"
        found += [
            StepProduct(forward, "mm_fwd", "mm_fwd", N, outer, inner, L),
            StepProduct("matmul_backward_da", "mm_da", "mm_da", N, inner, outer, L),
            StepProduct("matmul_backward_db", "mm_db", "mm_db", inner, outer, N, L),
        ]
    return (
        *found,
        StepProduct("head_forward", "mm_fwd", "mm_da", N, V, C, 1),
        StepProduct("head_backward_da", "mm_da", "mm_fwd", N, C, V, 1),
        StepProduct("head_backward_db", "mm_db", "mm_db", V, C, N, 1),
    )


def operation_flops(config: ModelConfig) -> dict[str, int]:
    """FLOPs that one training step really takes in the products of each of its operations.

    Each matrix, the tied head included, makes three products (forward, dA, dB); attention makes 2
    forward and 5 backward (scores twice), of which only the causal half with its diagonal counts.
    What is not a product (norms, GELU, softmax, AdamW) counts nothing and is left out.
    """
    pairs = config.n_layer * config.positions * (config.ctx + 1) * config.d_model
    found = {"attention_forward": 2 * pairs, "attention_backward": 5 * pairs}
    for product in products(config):
        found[product.op] = found.get(product.op, 0) + product.flops * product.count
    return found


def executed_flops(config: ModelConfig) -> int:
    """All of `operation_flops`, for a share of a roofline."""
    return sum(operation_flops(config).values())


def flatten(config: ModelConfig, state: State) -> F32:
    """Tensors by name → one flat float32 array, gaps zero."""
    flat = np.zeros(flat_size(config), np.float32)
    for slot in table(config):
        flat[slot.offset : slot.offset + slot.size] = state[slot.name].reshape(-1)
    return flat


def unflatten(config: ModelConfig, flat: F32) -> State:
    """One flat float32 array → tensors by name (views)."""
    return {
        slot.name: flat[slot.offset : slot.offset + slot.size].reshape(slot.shape)
        for slot in table(config)
    }


# --------------------------------------------------------------------------- initial state


def initial_state(config: ModelConfig, seed: int) -> State:
    """GPT-2 initialisation: normals of std 0.02, residual projections 0.02/sqrt(2L).

    `attn.wqkv` is three (C,C) draws side by side. The same bits on every machine: see
    `driver.draws`.
    """
    return unflatten(config, initial_flat(config, seed))


def initial_flat(config: ModelConfig, seed: int, init: Init = "philox") -> F32:
    """The same as one flat array, drawn in place: a large model is in memory once.

    `init` names the generator of the normals, see `driver.draws`.
    """
    draw = normal_source(init, seed)
    C, residual = config.d_model, 0.02 / math.sqrt(2 * config.n_layer)
    flat = np.zeros(flat_size(config), np.float32)
    for name, tensor in unflatten(config, flat).items():
        leaf = name.split(".", 2)[-1]
        if leaf == "attn.wqkv":
            for part in range(3):
                _draw(draw, tensor[:, part * C : (part + 1) * C], 0.02)
        elif tensor.ndim == 2:
            _draw(draw, tensor, residual if leaf in ("attn.wo", "mlp.w2") else 0.02)
        elif name.endswith(".g"):
            tensor[:] = 1
    return flat


def _draw(draw: NormalSource, matrix: F32, std: float) -> None:
    """Fills a matrix row by row."""
    rows = max(1, DRAW // matrix.shape[1])
    for row in range(0, matrix.shape[0], rows):
        part = matrix[row : row + rows]
        part[:] = (draw(part.size) * std).reshape(part.shape)
