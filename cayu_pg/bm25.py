"""BM25 as an inner product: what is stored with each chunk, what a question asks for, and when the answer is exact.

A chunk keeps, for each of its words, `tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / average))`; a question is the
inverse document frequency of each of its words, `ln(1 + (N - df + 0.5) / (df + 0.5))`. Their inner product is the
score of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with Lucene's idf.
The largest possible gain of the words left out bounds what could be missing (Turtle and Flood's MaxScore, 1995).
"""

from __future__ import annotations

import hashlib

K1 = 1.2
B = 0.75
MAX_TERMS = 64  # the rarest words of a question; more change no ranking and cost time
POSTING_BUDGET = 5_000  # postings of the words that choose candidates at first
WIDENING = 6  # times the budget that may be spent when the first answer is not certain
NO_THRESHOLD = 1e30
MAX_ENTRIES = 16_000  # what a sparsevec holds
DIMENSIONS = 1_000_000_000

# Scores are sums of float32 products; a bound within this share of the score proves nothing.
_SLACK = 1e-5


def dimension(lexeme: str) -> int:
    """The sparsevec dimension of a word, 1 to 1e9: the first 32 bits of its SHA-256, modulo 1e9."""
    return int.from_bytes(hashlib.sha256(lexeme.encode()).digest()[:4], "big") % DIMENSIONS + 1


def threshold(scores: list[float], candidates: int) -> float:
    """The score that a chunk outside `scores` (best first) must reach to be among the first `candidates`."""
    return scores[candidates - 1] * (1 - 2 * _SLACK) if len(scores) >= candidates else 0.0


def is_exact(scores: list[float], candidates: int, rest: float) -> bool:
    """Whether no chunk outside `scores` (best first) can be among the first `candidates`.

    `rest` is the most that the words which chose no candidates can add up to; a chunk that was not chosen holds
    no other word of the question.
    """
    if rest == 0.0:
        return True
    return len(scores) >= candidates and scores[candidates - 1] > rest * (1 + _SLACK)
