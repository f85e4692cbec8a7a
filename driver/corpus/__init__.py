"""Corpora: the generated default text or a user's file, its digest, and batches drawn from it.

`driver.corpus.text` describes the default text and derives its entropy rate.
"""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from driver.corpus.text import SIZE_BYTES, EntropyRate, entropy_rate, generate
from driver.draws import Offsets, hashed_offsets
from driver.errors import CorpusError
from driver.records import ModelConfig, Record

__all__ = [
    "SIZE_BYTES",
    "Corpus",
    "EntropyRate",
    "batches",
    "check",
    "entropy_rate",
    "generate",
    "load",
    "unigram_entropy",
]

KEY = 1 << 64  # Philox key of the batches' stream, beside the seed; the weights' stream has 0


class Corpus(Record):
    """Bytes to train on, and what is known of them."""

    name: str
    data: bytes = Field(repr=False)
    sha256: str
    entropy_nats_per_byte: float | None = Field(description="null when it is not known")


def load(path: str | None = None, seed: int = 0) -> Corpus:
    """The corpus in a file, or the one generated from `seed` (≥ 0) without a path.

    Raises CorpusError for a file that is missing, empty, not regular or not readable.
    """
    if path is None:
        data = generate(seed)
        return _corpus(f"generated:seed={seed}", data, entropy_rate().nats_per_byte)
    file = Path(path)
    try:
        if file.is_dir():
            raise CorpusError(f"corpus {path} is a folder; name a file")
        if file.exists() and not file.is_file():  # reading a pipe or a device may never end
            raise CorpusError(f"corpus {path} is not a regular file; copy its content into one")
        data = file.read_bytes()
    except MemoryError:
        raise CorpusError(f"corpus {path} does not fit into memory; train on a part") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise CorpusError(f"corpus {path!r} cannot be read: {reason}") from None
    if not data:
        raise CorpusError(f"corpus {path} is empty; it needs at least ctx + 1 bytes")
    return _corpus(file.name, data, None)


def demand(required_sha256: str, hint: str) -> str:
    """What a preset that names its corpus asks for, and how a person gets there."""
    return (
        f"the preset trains only on the corpus with SHA-256 {required_sha256}"
        f"{f' ({hint})' if hint else ''}; name that file with --corpus FILE"
    )


def check(corpus: Corpus, config: ModelConfig, required_sha256: str = "", hint: str = "") -> None:
    """Refuse a corpus on which `config` cannot train, or another one than the preset names.

    `required_sha256` and `hint` are a preset's `corpus_sha256` and `corpus_hint`; an empty digest
    allows any. Raises CorpusError.
    """
    if required_sha256 and corpus.sha256 != required_sha256:
        raise CorpusError(
            f"corpus {corpus.name} has SHA-256 {corpus.sha256} and {len(corpus.data):,} bytes; "
            + demand(required_sha256, hint)
        )
    if len(corpus.data) < config.ctx + 1:
        raise CorpusError(
            f"corpus {corpus.name} has {len(corpus.data)} bytes, but one sequence needs "
            f"ctx + 1 = {config.ctx + 1}; take a longer corpus or a smaller ctx"
        )
    if config.vocab < 256:
        values = np.frombuffer(corpus.data, np.uint8)
        above = np.flatnonzero(values >= config.vocab)
        if above.size:
            raise CorpusError(
                f"corpus {corpus.name} holds byte {values[above[0]]} (at position {above[0]}), "
                f"but vocab = {config.vocab} allows 0 to {config.vocab - 1}; set vocab = 256"
            )


def batches(
    corpus: Corpus, config: ModelConfig, steps: int, seed: int, offsets: Offsets = "philox"
) -> NDArray[np.int32]:
    """Tokens of `steps` batches, int32 (steps, B, T+1), from uniformly drawn or hashed offsets.

    A longer request begins with the same batches. Raises CorpusError where `check` does.
    """
    check(corpus, config)
    T, B = config.ctx, config.batch
    text = np.frombuffer(corpus.data, np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(text, T + 1)
    if offsets == "hashed":
        chosen = windows[hashed_offsets(seed, len(windows), steps, B).reshape(-1)]
    else:
        stream = np.random.Philox(key=seed + KEY)
        chosen = windows[uniform(stream, bound=len(windows), count=steps * B)]
    return chosen.astype(np.int32).reshape(steps, B, T + 1)


def unigram_entropy(corpus: Corpus) -> float:
    """Entropy of the byte frequencies in nats: the best loss that needs no context."""
    counts = np.bincount(np.frombuffer(corpus.data, np.uint8))
    p = counts[counts > 0] / len(corpus.data)
    return float(-(p * np.log(p)).sum())


def uniform(stream: np.random.BitGenerator, bound: int, count: int) -> NDArray[np.int64]:
    """`count` unbiased integers below `bound` from raw draws; a longer request begins the same.

    A draw in the incomplete last copy of [0, bound) below 2^64 is rejected, as the remainder of the
    others is uniform.
    """
    last = np.uint64(2**64 - 2**64 % bound - 1)
    kept = np.empty(0, np.uint64)
    while kept.size < count:
        draws = stream.random_raw(count - kept.size)
        kept = np.concatenate([kept, draws[draws <= last]])
    return (kept % np.uint64(bound)).astype(np.int64)


def _corpus(name: str, data: bytes, entropy_nats_per_byte: float | None) -> Corpus:
    return Corpus(
        name=name,
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        entropy_nats_per_byte=entropy_nats_per_byte,
    )
