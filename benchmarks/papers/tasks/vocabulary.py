"""The tokens of all tasks. Digits are themselves: token 7 is the digit 7."""

from enum import IntEnum

DIGITS = 10


class Token(IntEnum):
    """Everything but the digits 0–9."""

    BEGIN = 10
    END = 11
    """Ends an action: a tool call or an answer."""
    SORT = 12
    GIVES = 13
    """Ends the question."""
    FIND = 14
    CALL = 15
    ANSWER = 16
    RESULT = 17
    """Opens an observation."""
    NOISE = 18
    """Filler inside an observation."""
    LARGEST = 19
    CUTE_1 = 20
    CUTE_2 = 21
    HEROIC_1 = 22
    HEROIC_2 = 23
    CLASSICAL_1 = 24
    CLASSICAL_2 = 25


VOCABULARY = 32
"""Rows of the embedding; the last ones are unused."""
