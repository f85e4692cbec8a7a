"""Corpora: the generated text and its entropy rate, files, batches."""

import hashlib
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driver import corpus, presets
from driver.corpus import Corpus, text
from driver.corpus.lexicon import TOTAL, lexicons
from driver.errors import CorpusError
from driver.records import ModelConfig

# A busy machine is no failure.
STEADY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LOWEST_BYTES = 1_100_000


@pytest.fixture(scope="module")
def generated() -> Corpus:
    return corpus.load()


def model(**changes: int) -> ModelConfig:
    """The smallest preset's model with some sizes replaced."""
    return ModelConfig.model_validate(presets.load("tiny").model.model_dump() | changes)


def made_of(data: bytes) -> Corpus:
    return Corpus(name="mine", data=data, sha256="0" * 64, entropy_nats_per_byte=None)


# --------------------------------------------------------------------------- the generated text


def test_the_text_has_the_same_bytes_everywhere(generated: Corpus) -> None:
    pinned = "99f3eb4a14faa309da3327b206d966ce3b7f0158a91a5930206727f22e93b17f"
    assert generated.sha256 == pinned == hashlib.sha256(generated.data).hexdigest()


def test_the_text_looks_like_prose(generated: Corpus) -> None:
    assert len(generated.data) == corpus.SIZE_BYTES >= LOWEST_BYTES
    prose = generated.data.decode("ascii")
    assert set(re.sub(r"[A-Za-z0-9]", "", prose)) == set(' \n.,;?!"')
    assert prose[0].isupper() or prose[0] == '"'
    for sentence in re.findall(r'(?<=[.?!] )"?\w', prose):
        assert not sentence[-1].islower()
    paragraphs = prose.split("\n\n")
    assert len(paragraphs) > 3000
    assert max(map(len, paragraphs)) < 20_000
    # Quotation marks alternate between opening and closing.
    inside = False
    for before, after in re.findall(r'(.)"(.)', " " + prose.replace("\n", " ")):
        assert (before == " ", after == " ") == ((False, True) if inside else (True, False))
        inside = not inside


def test_seeds_give_different_texts(generated: Corpus) -> None:
    other = corpus.load(seed=1)
    assert other.data[:1000] != generated.data[:1000]
    assert len(other.data) == corpus.SIZE_BYTES
    assert other.entropy_nats_per_byte == generated.entropy_nats_per_byte


def test_lexicons_share_no_word() -> None:
    words = [word.lower() for lexicon in lexicons().values() for word in lexicon.words]
    assert len(words) == len(set(words)) > 6000
    assert all(re.fullmatch("[a-z0-9]+", word) for word in words)
    for name in ("noun", "adjective"):  # "a" is right before them
        assert not [word for word in lexicons()[name].words if word[0] in "aeiou"]


def test_probabilities_are_integers_over_a_power_of_two() -> None:
    for lexicon in lexicons().values():
        assert lexicon.weights.min() > 0
        assert lexicon.weights.sum() == lexicon.edges[-1] == TOTAL
    for state in text.states():
        assert all(arc.weight > 0 for arc in state.arcs)
        assert sum(arc.weight for arc in state.arcs) == state.edges[-1] == 2**18


def test_a_state_and_what_follows_give_the_arc() -> None:
    """The condition under which text and choices determine each other."""
    graph = text.states()
    for state in graph:
        seen = [(arc.separator, graph[arc.target].lexicon) for arc in state.arcs]
        assert len(set(seen)) == len(seen)
        assert not any(re.search("[A-Za-z0-9]", separator) for separator, _ in seen)


def test_every_state_is_reached_from_every_other() -> None:
    graph = text.states()
    for start in range(len(graph)):
        reached, frontier = {start}, [start]
        while frontier:
            targets = {arc.target for arc in graph[frontier.pop()].arcs} - reached
            reached |= targets
            frontier += targets
        assert len(reached) == len(graph)


def test_the_text_can_be_parsed_back(generated: Corpus) -> None:
    """Every (separator, word) is explained by exactly one choice, and writing it gives the text."""
    lexicon_of = {w: name for name, lexicon in lexicons().items() for w in lexicon.words}
    steps = re.findall(r"([^A-Za-z0-9]+)([A-Za-z0-9]+)", ".\n\n" + generated.data.decode())
    graph = text.states()
    arcs = [
        {(arc.separator, graph[arc.target].lexicon): arc for arc in state.arcs} for state in graph
    ]
    # The text begins a paragraph after an ordinary end of sentence: any state with one will do.
    state = next(i for i, s in enumerate(graph) if s.name == "year" and not s.quoted)
    bits, length = 0.0, 0
    word_bits = {
        word: -math.log2(weight / TOTAL)
        for lexicon in lexicons().values()
        for word, weight in zip(lexicon.words, lexicon.weights.tolist(), strict=True)
    }
    for separator, shown in steps[:-1]:  # the end may cut a word
        word = shown if shown in lexicon_of else shown[0].lower() + shown[1:]
        arc = arcs[state][separator, lexicon_of[word]]
        assert text.written(separator, word) == separator + shown
        bits += word_bits[word] - math.log2(arc.weight / 2**18)
        length += len(separator) + len(word)
        state = arc.target
    # The text's own surprise per byte is the entropy rate (Shannon, McMillan, Breiman).
    assert bits / length == pytest.approx(corpus.entropy_rate().bits_per_byte, rel=0.005)


def test_the_entropy_rate_is_that_of_the_docs(generated: Corpus) -> None:
    rate = corpus.entropy_rate()
    assert rate.nats_per_byte == pytest.approx(0.91573524, abs=2e-9)
    assert rate.bits_per_byte == pytest.approx(rate.nats_per_byte / math.log(2), rel=1e-8)
    assert rate.bits_per_word / rate.bytes_per_word == pytest.approx(rate.bits_per_byte, rel=1e-8)
    assert f"{rate.nats_per_byte:.3f} nats ({rate.bits_per_byte:.3f} bits)" in text.__doc__
    assert f"{corpus.unigram_entropy(generated):.2f} nats" in text.__doc__
    assert rate.bits_per_byte > 1.2
    assert generated.entropy_nats_per_byte == rate.nats_per_byte


def conditional_entropy(data: bytes, order: int) -> float:
    """Entropy of a byte given the `order` bytes before it, from counts, in nats."""
    values = np.frombuffer(data, np.uint8).astype(np.int64)

    def entropy(length: int) -> float:
        key = np.zeros(values.size - order, np.int64)
        for back in range(length):
            key = key * 256 + values[back : back + key.size]
        p = np.unique(key, return_counts=True)[1] / key.size
        return float(-(p * np.log(p)).sum())

    return entropy(order + 1) - entropy(order)


def test_there_is_something_to_learn(generated: Corpus) -> None:
    """Each byte of context lowers the reachable loss, down to the rate."""
    losses = [conditional_entropy(generated.data, order) for order in (0, 1, 2)]
    assert losses[0] == pytest.approx(corpus.unigram_entropy(generated), abs=1e-5)
    assert losses[0] < 3.2 < math.log(256) - 2
    assert losses[1] < losses[0] - 0.7
    assert losses[2] < losses[1] - 0.4
    assert losses[2] > corpus.entropy_rate().nats_per_byte + 0.5


@pytest.mark.parametrize("name", presets.names())
def test_no_slot_sees_the_whole_text(name: str) -> None:
    preset = presets.load(name)
    steps = preset.warmup_steps + preset.windows * preset.max_steps_per_window
    assert steps * preset.batch * preset.ctx <= corpus.SIZE_BYTES / 2


# --------------------------------------------------------------------------- files


def test_any_bytes_can_be_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "bytes.bin"
    file.write_bytes(bytes(range(256)))
    loaded = corpus.load(str(file))
    assert loaded.name == "bytes.bin"
    assert loaded.data == bytes(range(256))
    assert loaded.sha256 == hashlib.sha256(loaded.data).hexdigest()
    assert loaded.entropy_nats_per_byte is None
    assert corpus.unigram_entropy(loaded) == pytest.approx(math.log(256))
    corpus.check(loaded, model(), loaded.sha256)


def test_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for path, message in {
        str(tmp_path): "is a folder",
        str(tmp_path / "none"): "cannot be read: No such file",
        str(tmp_path / "empty"): "is empty",
        str(tmp_path / "pipe"): "is not a regular file",
        "a\0b": "cannot be read",
        "x" * 5000: "cannot be read",
    }.items():
        with pytest.raises(CorpusError, match=message) as error:
            corpus.load(path)
        assert error.value.exit_code == 2


def test_too_short_a_corpus_gives_both_lengths() -> None:
    config = model(ctx=32)
    corpus.check(made_of(bytes(33)), config)
    with pytest.raises(CorpusError, match=r"has 32 bytes, but .* ctx \+ 1 = 33"):
        corpus.check(made_of(bytes(32)), config)
    with pytest.raises(CorpusError, match="has 32 bytes"):
        corpus.batches(made_of(bytes(32)), config, 1, 0)


def test_another_corpus_than_the_preset_names() -> None:
    with pytest.raises(CorpusError, match=f"mine has SHA-256 {'0' * 64}.*{'a' * 64}.*a hint"):
        corpus.check(made_of(bytes(100)), model(), "a" * 64, "a hint")


def test_a_byte_outside_the_vocabulary() -> None:
    data = bytes([1, 96] * 30 + [97, 98])
    corpus.check(made_of(data), model(vocab=99))
    corpus.check(made_of(data), model(vocab=300))
    with pytest.raises(CorpusError, match=r"byte 97 \(at position 60\), but vocab = 97"):
        corpus.check(made_of(data), model(vocab=97))


# --------------------------------------------------------------------------- batches


@STEADY
@given(
    st.binary(min_size=2, max_size=60),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 20),
    st.integers(0, 2**53 - 1),
)
def test_batches_are_pieces_of_the_corpus(
    data: bytes, batch: int, ctx: int, steps: int, seed: int
) -> None:
    ctx = min(ctx, len(data) - 1)
    config = model(batch=batch, ctx=ctx)
    tokens = corpus.batches(made_of(data), config, steps, seed)
    assert tokens.dtype == np.int32
    assert tokens.shape == (steps, batch, ctx + 1)
    for row in tokens.reshape(-1, ctx + 1):
        assert bytes(row.tolist()) in data
    longer = corpus.batches(made_of(data), config, steps + 3, seed)
    np.testing.assert_array_equal(longer[:steps], tokens)


def test_batches_have_the_same_bits_everywhere(generated: Corpus) -> None:
    tokens = corpus.batches(generated, model(), 20, 42)
    digest = hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()
    assert digest == "6d93ed6fb478c6585db77ea02989c1609696efbaa7ea3ff71631e98749a46ed5"
    assert not np.array_equal(tokens, corpus.batches(generated, model(), 20, 43))


def test_offsets_do_not_reuse_the_draws_of_the_weights() -> None:
    weights = np.random.Philox(key=42).random_raw(100)
    batches = np.random.Philox(key=42 + corpus.KEY).random_raw(100)
    assert not np.intersect1d(weights, batches).size


class Draws:
    """A stream of chosen raw draws."""

    def __init__(self, *draws: int) -> None:
        self._draws = list(draws)

    def random_raw(self, count: int) -> np.ndarray:
        taken, self._draws = self._draws[:count], self._draws[count:]
        return np.array(taken, np.uint64)


def test_draws_that_would_bias_the_remainder_are_rejected() -> None:
    # 2^64 = 3·q + 1: the last draw alone has no full copy of {0, 1, 2}.
    stream = Draws(2**64 - 1, 2**64 - 2, 2**64 - 1, 5)
    assert corpus.uniform(stream, 3, 2).tolist() == [2, 2]  # type: ignore[arg-type]
    # A power of two divides 2^64: nothing is rejected.
    assert corpus.uniform(Draws(2**64 - 1), 256, 1).tolist() == [255]  # type: ignore[arg-type]


def test_offsets_are_uniform() -> None:
    drawn = corpus.uniform(np.random.Philox(key=1), 10, 100_000).tolist()
    counts = [drawn.count(value) for value in range(10)]
    assert sum(counts) == 100_000
    chi_square = sum((count - 10_000) ** 2 / 10_000 for count in counts)
    assert chi_square < 27.9  # 99.9% point with 9 degrees of freedom
