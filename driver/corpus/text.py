"""The generated text: a source of English-like prose whose entropy rate is known.

It looks like English prose (sentences, commas, dialogue, paragraphs, years) and most of its
content words are invented. What no natural text can offer is the rate: a byte model's loss on text
that it has not seen cannot fall below it, whatever the model's size, so a lower loss is memory and
not learning.

*The source.* A Markov chain with stationary distribution π walks over the grammatical states of
`_GRAMMAR`, each of which exists outside and inside quotation marks. A step draws an arc (a
separator and the next state), then a word from that state's lexicon; it writes the separator and
the word, with a capital if the separator ends a sentence. Every probability is an integer over a
power of two, compared with raw bits of Philox, so the bytes are the same on every machine.

*The rate.* Text and choices determine each other. A separator has no letter or digit and a word
nothing else, so text splits into (separator, word) pairs in one way; lexicons share no word, and
no state has two arcs with the same separator and lexicon, so a state and the pair that follows
give the arc, the next state and the word. (Tests check these conditions and parse the text back.)
The source is unifilar, and its entropy per step is exactly

    h = Σ_s π(s) · [ H(arc | s) + Σ_a p(a | s) · H(word | lexicon of a) ]

(Shannon 1948, "A Mathematical Theory of Communication", section 7; Cover & Thomas, "Elements of
Information Theory", 2nd ed., theorem 4.2.4). A step writes ℓ bytes on average over π. By the
ergodic theorem the rate per byte is h / ℓ: `entropy_rate` gives 0.916 nats (1.321 bits). Bytes
drawn by frequency alone have 3.10 nats and uniform ones 5.55, so a loss curve has much to gain
before it meets the floor.

*Not to be memorised.* Whatever the context, the conditional entropy of the next byte is at least
the rate (Cover & Thomas, theorem 4.2.1): the floor holds for every model on fresh text. To beat it
a model has to store the text itself, 1.6 million bits. It gets no chance to: windows are drawn
uniformly, and no slot of the project's presets trains on more than half as many bytes as the
corpus has (a test computes it), while storing text takes many passes.
"""

import functools
import math
from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from driver.corpus.lexicon import TOTAL, Lexicon, lexicons
from driver.records import Record

SIZE_BYTES = 1_200_000
KEY = 2 << 64  # Philox key of the text's stream, beside the seed

_ARC_TOTAL = 1 << 18
_ENDS_SENTENCE = frozenset(".?!")

# State: its lexicon, then its arcs with weights out of 64. A comma before a target is written in
# the text as well. END stands for `_ENDS`, and START for the ways in which a clause begins.
_GRAMMAR = {
    # subject
    "det": ("determiner", "noun:42 adj:22"),
    "adj": ("adjective", "noun:57 ,adj:7"),
    "noun": ("noun", "does:36 goes:24 how:4"),
    "pron": ("pronoun", "does:36 goes:24 how:4"),
    "name": ("name", "does:36 goes:25 how:3"),
    "how": ("adverb", "does:34 goes:30"),
    # verb
    "does": ("transitive", "o.det:42 o.name:6 o.pron:8 number:8"),
    "goes": ("intransitive", "prep:36 adv:10 ,conj:6 END:12"),
    # object
    "o.det": ("determiner", "o.noun:40 o.adj:24"),
    "o.adj": ("adjective", "o.noun:57 ,o.adj:7"),
    "o.noun": ("noun", "prep:18 time:3 adv:4 conj:5 ,conj:6 END:28"),
    "o.name": ("name", "prep:18 adv:6 ,conj:10 END:30"),
    "o.pron": ("object", "prep:20 adv:6 conj:4 ,conj:6 END:28"),
    "number": ("number", "plural:46 n.adj:18"),
    "n.adj": ("adjective", "plural:64"),
    "plural": ("plural", "prep:18 conj:4 ,conj:8 END:34"),
    # what follows
    "prep": ("preposition", "p.det:56 o.name:4 number:4"),
    "p.det": ("determiner", "p.noun:46 p.adj:18"),
    "p.adj": ("adjective", "p.noun:64"),
    "p.noun": ("noun", "prep:8 time:4 conj:4 ,conj:8 END:40"),
    "time": ("time", "year:64"),
    "year": ("year", ",conj:10 END:54"),
    "adv": ("adverb", "prep:14 ,conj:10 END:40"),
    "conj": ("conjunction", "START:64"),
    # an opening: "In the meadow, she …"
    "f.prep": ("preposition", "f.det:64"),
    "f.det": ("determiner", "f.noun:64"),
    "f.noun": ("noun", ",det:26 ,pron:26 ,name:12"),
    "f.adv": ("adverb", ",det:24 ,pron:28 ,name:12"),
    # after a quotation: "…," said Ruth softly.
    "said": ("speech", "who:40 he:24"),
    "who": ("name", "adv:10 END:54"),
    "he": ("pronoun", "adv:10 END:54"),
}
_START = {"det": 26, "pron": 20, "name": 12, "f.prep": 4, "f.adv": 2}

# How a clause ends, outside and inside a quotation: (separator, inside a quotation afterwards,
# weight out of 64). What follows is a START, except after the comma that ends a quotation.
_ENDS = {
    False: [
        (". ", False, 40),
        (".\n\n", False, 8),
        ("; ", False, 2),
        ("? ", False, 1),
        ("! ", False, 1),
        ('. "', True, 5),
        ('.\n\n"', True, 7),
    ],
    True: [
        (". ", True, 20),
        ("? ", True, 3),
        ("! ", True, 2),
        ('." ', False, 6),
        ('!" ', False, 2),
        ('."\n\n', False, 6),
        ('."\n\n"', True, 6),
        ('?"\n\n"', True, 5),
        ('," ', False, 14),
    ],
}


class Arc(NamedTuple):
    """One way on from a state."""

    separator: str
    target: int
    weight: int  # out of 2^18


class State(NamedTuple):
    """A grammatical state, outside or inside a quotation."""

    name: str
    quoted: bool
    lexicon: str
    arcs: tuple[Arc, ...]
    edges: tuple[int, ...]  # cumulative weights of the arcs


class EntropyRate(Record):
    """Entropy rate of the generated text, exact up to the rounding of floats."""

    nats_per_byte: float
    bits_per_byte: float
    bits_per_word: float
    bytes_per_word: float


def generate(seed: int = 0) -> bytes:
    """`SIZE_BYTES` of ASCII text, the same bytes everywhere for a seed in [0, 2^64).

    The lexicons do not depend on the seed, so neither does the entropy rate.
    """
    graph = states()
    stream = np.random.Philox(key=seed + KEY)
    draws = stream.random_raw(SIZE_BYTES // 5)  # more than enough: a step writes 6 bytes
    arc_draws = (draws & np.uint64(_ARC_TOTAL - 1)).tolist()
    word_draws = ((draws >> np.uint64(32)) & np.uint64(TOTAL - 1)).astype(np.int64)

    separators: list[str] = []
    reached: list[int] = []
    state = 0
    for draw in arc_draws:
        here = graph[state]
        arc = here.arcs[bisect_right(here.edges, draw)]
        state = arc.target
        separators.append(arc.separator)
        reached.append(state)

    lexicon_of = np.array([list(lexicons()).index(s.lexicon) for s in graph])[reached]
    words = np.empty(len(reached), object)
    for index, lexicon in enumerate(lexicons().values()):
        steps = np.flatnonzero(lexicon_of == index)  # one search for all words of a lexicon
        chosen = np.searchsorted(lexicon.edges, word_draws[steps], side="right")
        words[steps] = np.array(lexicon.words, object)[chosen]

    text = "".join(map(written, separators, words.tolist()))
    begin = text.index(".\n\n") + 3  # the walk began in the middle of a sentence
    return text[begin : begin + SIZE_BYTES].encode("ascii")


def written(separator: str, word: str) -> str:
    """One step's text."""
    if _ENDS_SENTENCE.isdisjoint(separator):
        return separator + word
    return separator + word[0].upper() + word[1:]


@functools.cache
def entropy_rate() -> EntropyRate:
    """The source's entropy rate, by the formula above."""
    graph = states()
    bits, length = np.zeros(len(graph)), np.zeros(len(graph))
    transition = np.zeros((len(graph), len(graph)))
    word_bits = {name: _bits(lexicon.weights) for name, lexicon in lexicons().items()}
    word_bytes = {name: _mean_bytes(lexicon) for name, lexicon in lexicons().items()}
    for index, state in enumerate(graph):
        bits[index] = _bits(np.array([arc.weight for arc in state.arcs]))
        for arc in state.arcs:
            p, lexicon = arc.weight / _ARC_TOTAL, graph[arc.target].lexicon
            bits[index] += p * word_bits[lexicon]
            length[index] += p * (len(arc.separator) + word_bytes[lexicon])
            transition[index, arc.target] += p

    # π·(P − 1) = 0 with Σ π = 1: one balance equation is redundant and gives way to the sum.
    balance = transition.T - np.eye(len(graph))
    balance[-1] = 1
    stationary = np.linalg.solve(balance, np.eye(len(graph))[-1])
    bits_per_word, bytes_per_word = float(stationary @ bits), float(stationary @ length)
    bits_per_byte = bits_per_word / bytes_per_word
    # Rounded, since linear algebra and logarithms differ in the last bits between machines.
    return EntropyRate(
        nats_per_byte=round(bits_per_byte * math.log(2), 9),
        bits_per_byte=round(bits_per_byte, 9),
        bits_per_word=round(bits_per_word, 9),
        bytes_per_word=round(bytes_per_word, 9),
    )


@functools.cache
def states() -> tuple[State, ...]:
    """The chain: every state of the grammar outside, then inside quotation marks."""
    order = [(name, quoted) for quoted in (False, True) for name in _reachable(quoted)]
    number = {key: index for index, key in enumerate(order)}
    found = []
    for name, quoted in order:
        lexicon, text = _GRAMMAR[name]
        weights: Counter[tuple[str, int]] = Counter()  # arcs that look alike are one
        for item in text.split():
            target, weight = item.removeprefix(",").split(":")
            separator = ", " if item.startswith(",") else " "
            for arc, share in _expanded(target, separator, quoted):
                weights[arc[0], number[arc[1:]]] += int(weight) * share
        arcs = tuple(Arc(*arc, weight) for arc, weight in weights.items())
        edges = tuple(accumulate(arc.weight for arc in arcs))
        found.append(State(name, quoted, lexicon, arcs, edges))
    return tuple(found)


def _reachable(quoted: bool) -> list[str]:
    """States that exist there: after a quotation's comma the narrator speaks."""
    return [name for name in _GRAMMAR if not (quoted and name in ("said", "who", "he"))]


def _expanded(target: str, separator: str, quoted: bool) -> list[tuple[tuple[str, str, bool], int]]:
    """END and START as real arcs (separator, state, quoted), with shares adding up to 64²."""
    if target == "START":
        return [((separator, name, quoted), 64 * share) for name, share in _START.items()]
    if target != "END":
        return [((separator, target, quoted), 64 * 64)]
    arcs = []
    for mark, quoted_then, share in _ENDS[quoted]:
        if mark == '," ':
            arcs.append(((mark, "said", quoted_then), 64 * share))
        else:
            arcs += [((mark, name, quoted_then), share * part) for name, part in _START.items()]
    return arcs


def _bits(weights: NDArray[np.int64]) -> float:
    """Entropy of integer weights, in bits."""
    p = weights / weights.sum()
    return float(-(p * np.log2(p)).sum())


def _mean_bytes(lexicon: Lexicon) -> float:
    lengths = np.array([len(word) for word in lexicon.words])
    return float((lexicon.weights * lengths).sum() / lexicon.weights.sum())
