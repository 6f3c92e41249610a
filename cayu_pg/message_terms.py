"""Which words of a question choose the messages that are scored, and what each word is worth.

The rarest words choose all their messages while a budget lasts. If these are too few, the next word, too common for
that, chooses its newest messages. The others just add to the scores, which are those of `bm25` with a smaller share
for the length, because turns of a chat are short.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cayu_pg import bm25

K1 = 1.2
B = 0.4
KEY_SPACE = 2**32


@dataclass(frozen=True, slots=True)
class Choice:
    """What to look for: all messages with a word of `all_of`, and the newest that have one of `newest_of`.

    `idf` has every word of the question, the rarest first.
    """

    idf: Mapping[str, float]
    all_of: Sequence[str]
    newest_of: Sequence[str]


def choose(frequencies: Mapping[str, float], messages: float, limit: int, budget: int) -> Choice:
    """The words that choose from `messages`, given in how many of them each is: `budget` at most with all they have."""
    ordered = sorted(frequencies.items(), key=lambda item: (item[1], item[0]))
    postings = list(itertools.accumulate(frequency for _, frequency in ordered))
    whole = bisect.bisect_right(postings, budget)
    enough = whole > 0 and postings[whole - 1] > limit
    names = [lexeme for lexeme, _ in ordered]
    idf = {lexeme: _idf(frequency, messages) for lexeme, frequency in ordered}
    return Choice(idf, names[:whole], [] if enough else names[whole : whole + 1])


def with_newest_of_all(choice: Choice) -> Choice:
    """The choice widened to the newest messages with any word of the question."""
    return replace(choice, newest_of=[lexeme for lexeme in choice.idf if lexeme not in choice.all_of])


def is_exact(choice: Choice, scores: list[float], limit: int, *, complete: bool) -> bool:
    """Whether no other message can be among the first `limit`; `scores` are those of the hits, best first.

    `complete` says that no message with a word of `newest_of` was left out for its age.
    """
    chosen = {*choice.all_of, *(choice.newest_of if complete else ())}
    rest = sum(idf for lexeme, idf in choice.idf.items() if lexeme not in chosen) * (K1 + 1)
    return bm25.is_exact(scores, limit, rest)


def extrapolated(messages: float, last_key: int) -> float:
    """How many messages all transcripts have, when `messages` are in the first ones in order of their keys.

    Keys are hashes, evenly spread, so the share of all keys up to the last one seen is the share of messages seen;
    `last_key` has its first 32 bits.
    """
    return messages * KEY_SPACE / (last_key + 1)


def _idf(frequency: float, messages: float) -> float:
    everything = max(messages, frequency)
    return math.log(1 + (everything - frequency + 0.5) / (frequency + 0.5))
