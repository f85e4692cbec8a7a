"""The generated text's words: some real, most invented, each in one lexicon, with integer weights.

Invented words are drawn once from a fixed Philox stream, as onset + vowel + middle + ending, so
that they read like English and a reader can tell a noun from a past tense. The weights of a lexicon
fall with the rank as in Zipf's law and add up to 2^20, so that a word is drawn exactly with its
probability by comparing 20 random bits with `edges`. Nouns and adjectives begin with a consonant:
"a" is right before all of them.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WEIGHT_BITS = 20
TOTAL = 1 << WEIGHT_BITS
KEY = 3 << 64  # Philox key of the stream that invents words

# name: (words in all, rank offset of the Zipf law: weight ∝ 1 / (rank + offset)).
# Plurals are made of nouns and the closed classes have no invented words.
_OPEN = {
    "noun": (2400, 50),
    "adjective": (800, 35),
    "transitive": (600, 40),
    "intransitive": (500, 40),
    "adverb": (300, 12),
    "name": (500, 20),
}
_CLOSED = {
    "determiner": 0.3,
    "pronoun": 1,
    "object": 2,
    "preposition": 1,
    "conjunction": 0.5,
    "time": 2,
    "speech": 1,
}
_PLURALS = 1200

_REAL = {
    "determiner": """the a his her this that their my every our some your one no each another
        such""",
    "pronoun": "he she they we you I it nobody everyone",
    "object": "him them us me himself herself nothing everything",
    "preposition": """of in to with on from at for by into over under through beside behind
        against beyond across toward near among without above below along between inside""",
    "conjunction": "and but so while because though or yet",
    "time": "during since before after until about around",
    "speech": """said asked answered replied cried whispered shouted muttered called laughed
        agreed declared""",
    "number": "two three four five six seven eight nine ten twelve twenty forty",
    "noun": """house door night hand way water room day road head town river field voice light
        book wind table letter street garden mother father brother sister morning fire ship
        captain horse bridge window king tree lake stone hill forest wall bird boat lamp chair
        bell coat doctor dog cat cloud shadow storm song tale winter summer face name word
        village market castle valley mountain farmer sailor teacher soldier merchant cousin
        neighbour daughter secret question promise journey kitchen basket candle mirror
        hammer ladder pocket rope wagon tower harbour meadow barrel kettle""",
    "adjective": """little great long good dark quiet new white black cold heavy small warm
        deep strange red green blue soft bright wide poor tall thin round sharp rough
        gentle lonely narrow clever proud slow bitter distant hollow golden silver
        wooden careful broken hidden curious foolish merry weary pale sudden steady
        plain faithful""",
    "transitive": """saw found took made had left heard knew brought held carried watched
        followed remembered opened lost kept wanted loved met pulled pushed painted mended
        covered touched counted built sold caught dropped forgot feared praised hid burned
        crossed reached borrowed cleaned noticed visited welcomed warned trusted missed""",
    "intransitive": """went came stood sat walked waited looked ran fell slept turned smiled
        lived stayed danced sang wept travelled worked listened vanished appeared arrived
        rested wandered climbed knelt trembled sighed nodded leaned hurried shone""",
    "adverb": """again slowly always there never quietly now soon once together away often
        here suddenly gently alone already sometimes early softly everywhere carefully
        gladly tonight twice far late""",
    "name": """Anna Martin Clara Thomas Ruth Peter Helen Oliver Nora Simon Edith Walter Jane
        Hugo Rosa Albert Mary Conrad Alice Gregor Emma Victor Sarah Leon""",
}

# Repeated parts are drawn more often. The lists avoid combinations that would spell a rude word.
_ONSETS = """b c d f g h k l m n p r s t w b d f g h l m n p r s t w v br ch cl cr dr fl fr gl
    gr pl pr qu sh sl sm sn st str sw th tr tw"""
_VOWELS = "a e i o u a e i o u a e o ai ee oo ou"
_MIDDLES = "ll r rr nd mb d bb lb lt lm rk sk th sh z ddl mbl ndl rsh lf rth"
_ENDINGS = {
    "noun": "er et ow en el in on age or ure ant ing ment",
    "adjective": "y ish en ous ful some less al ic ern ive",
    "transitive": "ed",
    "intransitive": "ened ered",
    "adverb": "ily ly wise ward",
    "name": "a win ton ley mund ric beth ina us ford aby ola",
}


class Lexicon(NamedTuple):
    """Words of one class, most frequent first."""

    words: tuple[str, ...]
    weights: NDArray[np.int64]  # positive, adding up to 2^20
    edges: NDArray[np.int64]  # cumulative weights


@functools.cache
def lexicons() -> dict[str, Lexicon]:
    """All lexicons by name. No two share a word, also when capitals are ignored."""
    listed = {name: tuple(text.split()) for name, text in _REAL.items()}
    taken = {word.lower() for words in listed.values() for word in words}
    stream = np.random.Philox(key=KEY)

    found = {name: _lexicon(listed[name], offset) for name, offset in _CLOSED.items()}
    for name, (size, offset) in _OPEN.items():
        invented = _invent(stream, name, size - len(listed[name]), taken)
        found[name] = _lexicon(listed[name] + invented, offset)
    plurals = [f"{noun}s" for noun in found["noun"].words]
    found["plural"] = _lexicon([p for p in plurals if p not in taken][:_PLURALS], 30)
    digits = tuple(str(n) for n in range(13, 100))
    found["number"] = _lexicon(listed["number"] + digits, 3)
    # Any year is as likely as any other: equal weights.
    years = tuple(str(year) for year in range(1600, 1600 + 256))
    found["year"] = _weighted(years, np.full(len(years), TOTAL // len(years)))
    return found


def _invent(
    stream: np.random.BitGenerator, name: str, count: int, taken: set[str]
) -> tuple[str, ...]:
    """`count` new words, shorter ones first as in natural languages; adds them to `taken`."""
    parts = [text.split() for text in (_ONSETS, _VOWELS, _MIDDLES, _ENDINGS[name])]
    words: list[str] = []
    while len(words) < count:
        draw = int(stream.random_raw())
        word = ""
        for part in parts:  # mixed-radix digits of one draw; a bias of 2^-45 does not matter here
            draw, digit = divmod(draw, len(part))
            word += part[digit]
        if word not in taken and f"{word}s" not in taken:
            taken.add(word)
            words.append(word.capitalize() if name == "name" else word)
    return tuple(sorted(words, key=len))


def _lexicon(words: tuple[str, ...] | list[str], offset: float) -> Lexicon:
    """Weights ∝ 1 / (rank + offset), each at least 1; the first word takes the rounding's rest."""
    law = [10**9 // (10 * rank + round(10 * offset)) for rank in range(len(words))]
    weights = np.array([max(1, part * TOTAL // sum(law)) for part in law])
    weights[0] += TOTAL - weights.sum()
    return _weighted(tuple(words), weights)


def _weighted(words: tuple[str, ...], weights: NDArray[np.int64]) -> Lexicon:
    return Lexicon(words, weights, np.cumsum(weights))
