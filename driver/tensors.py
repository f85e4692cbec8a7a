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

    `attn.wqkv` is three (C,C) draws side by side. The same bits on every machine: see `normals`.
    """
    return unflatten(config, initial_flat(config, seed))


def initial_flat(config: ModelConfig, seed: int) -> F32:
    """The same as one flat array, drawn in place: a large model is in memory once."""
    stream = np.random.Philox(key=seed)
    C, residual = config.d_model, 0.02 / math.sqrt(2 * config.n_layer)
    flat = np.zeros(flat_size(config), np.float32)
    for name, tensor in unflatten(config, flat).items():
        leaf = name.split(".", 2)[-1]
        if leaf == "attn.wqkv":
            for part in range(3):
                _draw(stream, tensor[:, part * C : (part + 1) * C], 0.02)
        elif tensor.ndim == 2:
            _draw(stream, tensor, residual if leaf in ("attn.wo", "mlp.w2") else 0.02)
        elif name.endswith(".g"):
            tensor[:] = 1
    return flat


def _draw(stream: np.random.BitGenerator, matrix: F32, std: float) -> None:
    """Fills a matrix row by row."""
    rows = max(1, DRAW // matrix.shape[1])
    for row in range(0, matrix.shape[0], rows):
        part = matrix[row : row + rows]
        part[:] = (normals(stream, part.size) * std).reshape(part.shape)


def normals(stream: np.random.BitGenerator, count: int) -> NDArray[np.float64]:
    """`count` standard normals (float64) from raw 64-bit draws, the same bits everywhere.

    NumPy keeps a bit generator's raw stream stable across versions and platforms, but not what
    `Generator` makes of it, and log and cos differ in the last bit between C libraries. So this
    inverts the normal distribution with additions, multiplications, divisions and square roots
    alone, which IEEE 754 rounds the same way everywhere.
    Source: Wichura 1988, algorithm AS 241 (PPND16), relative accuracy about 1e-16.
    """
    p = ((stream.random_raw(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    p = np.minimum(p, 1 - 2.0**-53)  # the largest draw would round to 1
    q = p - 0.5
    central = np.abs(q) <= 0.425
    x = np.empty(count)
    r = 0.180625 - q[central] ** 2
    x[central] = q[central] * _ratio(r, _A, _B)

    outer = ~central
    tail = np.minimum(p[outer], 1 - p[outer])
    r = np.sqrt(-_log(tail))
    near = r <= 5
    value = np.empty(r.size)
    value[near] = _ratio(r[near] - 1.6, _C, _D)
    value[~near] = _ratio(r[~near] - 5, _E, _F)
    x[outer] = np.where(q[outer] < 0, -value, value)
    return x


def _ratio(
    x: NDArray[np.float64], above: tuple[float, ...], below: tuple[float, ...]
) -> NDArray[np.float64]:
    """Quotient of two polynomials, coefficients from the constant term up (Horner)."""
    num, den = np.zeros_like(x), np.zeros_like(x)
    for a, b in zip(reversed(above), reversed(below), strict=True):
        num = num * x + a
        den = den * x + b
    return np.asarray(num / den)


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm from arithmetic alone: log m·2^e with 2·atanh((m−1)/(m+1)) for log m."""
    m, e = np.frexp(x)
    low = m < math.sqrt(0.5)
    m, e = np.where(low, 2 * m, m), np.where(low, e - 1, e)
    s = (m - 1) / (m + 1)
    square, series = s * s, np.zeros_like(s)
    for k in range(25, -1, -2):
        series = series * square + 1 / k
    return np.asarray(2 * s * series + e * 0.6931471805599453)


# Wichura 1988, table of PPND16: central region, then r <= 5, then r > 5.
_A = (
    3.3871328727963666080e0,
    1.3314166789178437745e2,
    1.9715909503065514427e3,
    1.3731693765509461125e4,
    4.5921953931549871457e4,
    6.7265770927008700853e4,
    3.3430575583588128105e4,
    2.5090809287301226727e3,
)
_B = (
    1.0,
    4.2313330701600911252e1,
    6.8718700749205790830e2,
    5.3941960214247511077e3,
    2.1213794301586595867e4,
    3.9307895800092710610e4,
    2.8729085735721942674e4,
    5.2264952788528545610e3,
)
_C = (
    1.42343711074968357734e0,
    4.63033784615654529590e0,
    5.76949722146069140550e0,
    3.64784832476320460504e0,
    1.27045825245236838258e0,
    2.41780725177450611770e-1,
    2.27238449892691845833e-2,
    7.74545014278341407640e-4,
)
_D = (
    1.0,
    2.05319162663775882187e0,
    1.67638483018380384940e0,
    6.89767334985100004550e-1,
    1.48103976427480074590e-1,
    1.51986665636164571966e-2,
    5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)
_E = (
    6.65790464350110377720e0,
    5.46378491116411436990e0,
    1.78482653991729133580e0,
    2.96560571828504891230e-1,
    2.65321895265761230930e-2,
    1.24266094738807843860e-3,
    2.71155556874348757815e-5,
    2.01033439929228813265e-7,
)
_F = (
    1.0,
    5.99832206555887937690e-1,
    1.36929880922735805310e-1,
    1.48753612908506148525e-2,
    7.86869131145613259100e-4,
    1.84631831751005468180e-5,
    1.42151175831644588870e-7,
    2.04426310338993978564e-15,
)
