"""Which known word a mistyped one most likely meant."""

from __future__ import annotations

from collections.abc import Iterable

MIN_LENGTH = 4  # shorter words are near to too many others


def pairs_of(word: str) -> list[str]:
    """The different pairs of neighbouring characters of a word."""
    return sorted({word[place : place + 2] for place in range(len(word) - 1)})


def nearest(word: str, known: Iterable[tuple[str, int]]) -> str | None:
    """The known word, given with its frequency, that is fewest edits away; None when none is near.

    One edit is allowed in a word of up to five characters, two in a longer one; the commoner word wins a tie.
    """
    allowed = 1 if len(word) <= 5 else 2
    found = [(edits(word, other, allowed), -frequency, other) for other, frequency in known if other != word]
    best = min((each for each in found if each[0] <= allowed), default=None)
    return None if best is None else best[2]


def edits(one: str, other: str, most: int) -> int:
    """Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.

    Counted up to `most`; a larger number only says more. (Optimal string alignment distance.)
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before_before, before, row = before, row, [i]
        for j, right in enumerate(other, start=1):
            cost = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                cost = min(cost, before_before[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]
