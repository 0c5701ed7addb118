"""What the simulated users accept as language at all, whatever its style: the quality check, 0 or 1.

It uses a word list and counts, no model, so that it is fast and anybody can check a verdict by hand. It is meant to
be fair to a small model at temperature 1 and hard on gibberish and repetition; it cannot see nonsense made of known
words, which is what the held-out judge (`online_rl.demo.judge`) is for.
"""

import re
from collections import Counter
from functools import cache
from importlib import resources
from itertools import pairwise

MIN_WORDS = 3
MAX_WORDS = 80
MIN_KNOWN = 0.9
"""Smallest share of words that must be known."""
MIN_DISTINCT = 0.6
"""Smallest share of distinct words in an answer of more than a few words."""
MAX_RUN = 3
"""Longest run of one punctuation character: `!!!` passes, `!!!!` does not."""

_SHORT_WORDS = frozenset(
    (
        *("a", "i", "am", "an", "as", "at", "be", "by", "do", "go", "he", "hi", "if", "in", "is", "it", "me", "my"),
        *("no", "of", "oh", "ok", "on", "or", "so", "to", "up", "us", "we", "ah", "uh", "hm", "tv", "dj", "ai", "eg"),
        *("ie", "id", "ad", "ca", "wo"),  # the last two are left of can't and won't
    )
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_CONTRACTION = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))$")
_RUN = re.compile(rf"([^\w\s])\1{{{MAX_RUN},}}")
_SUFFIXES = (
    ("ies", "y"), ("es", ""), ("s", ""), ("ed", ""), ("ed", "e"), ("ing", ""), ("ing", "e"), ("ly", ""), ("er", ""),
    ("er", "e"), ("est", ""), ("ness", ""), ("ful", ""), ("less", ""), ("y", ""),
)  # fmt: skip


@cache
def known_words() -> frozenset[str]:
    """The word list: the lower-case whole-word entries of three and more letters in SmolLM2's vocabulary."""
    text = resources.files("online_rl.demo").joinpath("words.txt").read_text("utf-8")
    return frozenset(text.split())


def is_known(word: str) -> bool:
    """Whether a word, or what is left of it without a contraction or one common ending, is on the list."""
    word = _CONTRACTION.sub("", word.lower())
    if len(word) < 3:
        return word in _SHORT_WORDS
    words = known_words()
    return word in words or any(
        word.endswith(suffix) and (word[: -len(suffix)] + replacement) in words for suffix, replacement in _SUFFIXES
    )


def split_words(text: str) -> list[str]:
    """The words of `text` in order; hyphens separate, apostrophes do not."""
    return _WORD.findall(text)


def is_complete(text: str) -> bool:
    """Whether `text` ends as a sentence does, closing quotes and brackets aside."""
    return text.rstrip().rstrip("\"'”’)*").endswith((".", "!", "?", "…"))


def score_quality(text: str) -> float:
    """1.0 for text that reads as language, else 0.0: enough letters, known words, no repetition, sensible length."""
    text = text.strip()
    words = split_words(text)
    if not is_complete(text):
        words = words[:-1]  # the token limit may have cut the last word in two
    if not MIN_WORDS <= len(words) <= MAX_WORDS:
        return 0.0
    if sum(c.isascii() and (c.isalpha() or c.isspace()) for c in text) < 0.8 * len(text):
        return 0.0
    if sum(map(is_known, words)) < MIN_KNOWN * len(words):
        return 0.0
    return 0.0 if is_repetitive(text, words) else 1.0


def is_repetitive(text: str, words: list[str]) -> bool:
    """Whether `text` repeats itself: one word twice in a row, a pair of words three times, few distinct words."""
    lower = [word.lower() for word in words]
    pairs = list(pairwise(lower))
    return (
        _RUN.search(text) is not None
        or any(first == second for first, second in pairs)
        or max(Counter(pairs).values(), default=0) >= 3
        or len(set(lower)) < MIN_DISTINCT * len(lower)
    )
