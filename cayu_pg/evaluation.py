"""How good rankings are by judgements: nDCG, recall, MRR and MAP as trec_eval computes them, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from cayu_pg.errors import InvalidInput

# Query to document to grade; documents with a grade from 1 on are relevant, those without one are not.
Grades: TypeAlias = Mapping[str, int]
Qrels: TypeAlias = Mapping[str, Grades]

CONFIDENCE = 0.95
RESAMPLES = 10_000
RESAMPLES_AT_ONCE = 500  # so that the indices of thousands of queries stay within tens of megabytes


class QueryMeasures(BaseModel):
    """The measures of one query's ranking, each from 0 to 1."""

    model_config = ConfigDict(frozen=True)

    ndcg: float
    recall: float
    reciprocal_rank: float
    average_precision: float


class Evaluation(BaseModel):
    """The measures of a set of rankings: means over all queries, and each query's own.

    nDCG looks at the first `k` documents, recall at the first `recall_k`, the others at all.
    """

    model_config = ConfigDict(frozen=True)

    k: int
    recall_k: int
    ndcg: float
    recall: float
    mrr: float
    map: float
    queries: dict[str, QueryMeasures]

    def ndcgs(self) -> dict[str, float]:
        """The nDCG of each query."""
        return {query: each.ndcg for query, each in self.queries.items()}


class Difference(BaseModel):
    """A mean difference between two configurations, and the interval that a paired bootstrap puts around it."""

    model_config = ConfigDict(frozen=True)

    mean: float
    low: float
    high: float
    confidence: float

    @property
    def within_noise(self) -> bool:
        """Whether the interval includes 0."""
        return self.low <= 0 <= self.high

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ({self.confidence:.0%} interval {self.low:+.4f} to {self.high:+.4f})"


class Latency(BaseModel):
    """Percentiles of the time of a search, in milliseconds."""

    model_config = ConfigDict(frozen=True)

    p50: float
    p90: float
    p95: float
    p99: float
    longest: float


def ranking_of(scores: Mapping[str, float]) -> list[str]:
    """Documents by descending score; trec_eval breaks ties by descending id."""
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)


def evaluate(
    rankings: Mapping[str, Sequence[str]], qrels: Qrels, *, k: int = 10, recall_k: int = 100
) -> Evaluation:
    """The measures over all queries that `qrels` judges; one without a ranking, or nothing relevant, counts 0."""
    if not qrels:
        raise InvalidInput("qrels", "judgements of at least one query", "none")
    queries = {
        query: measure(rankings.get(query, ()), grades, k=k, recall_k=recall_k)
        for query, grades in qrels.items()
    }
    found = list(queries.values())
    return Evaluation(
        k=k,
        recall_k=recall_k,
        ndcg=fmean(each.ndcg for each in found),
        recall=fmean(each.recall for each in found),
        mrr=fmean(each.reciprocal_rank for each in found),
        map=fmean(each.average_precision for each in found),
        queries=queries,
    )


def measure(ranking: Sequence[str], grades: Grades, *, k: int = 10, recall_k: int = 100) -> QueryMeasures:
    """The measures of one ranking of documents, best first."""
    relevant = {document for document, grade in grades.items() if grade > 0}
    places = [place for place, document in enumerate(ranking, start=1) if document in relevant]
    return QueryMeasures(
        ndcg=ndcg(ranking, grades, k),
        recall=sum(place <= recall_k for place in places) / len(relevant) if relevant else 0.0,
        reciprocal_rank=1 / places[0] if places else 0.0,
        average_precision=(
            sum(number / place for number, place in enumerate(places, start=1)) / len(relevant)
            if relevant
            else 0.0
        ),
    )


def ndcg(ranking: Sequence[str], grades: Grades, k: int = 10) -> float:
    """nDCG of the first `k` documents with linear gain: grade / log2(place + 1), over that of the best ranking."""
    ideal = _discounted(sorted(grades.values(), reverse=True)[:k])
    return _discounted([grades.get(document, 0) for document in ranking[:k]]) / ideal if ideal else 0.0


def _discounted(gains: Sequence[int]) -> float:
    # A grade below 0 marks a document as worse than irrelevant to some; trec_eval counts it as no gain.
    return sum(gain / log2(place + 1) for place, gain in enumerate(gains, start=1) if gain > 0)


def paired_bootstrap(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """How much better `after` is than `before`, both by query, and how much of that may be chance.

    The queries are drawn anew, with replacement, `resamples` times; the interval holds the middle `confidence` of the
    mean differences. The same seed gives the same interval.
    """
    if before.keys() != after.keys() or not before:
        raise InvalidInput("after", f"a value for each of the {len(before)} queries", f"{len(after)} values")
    differences = np.array([after[query] - before[query] for query in sorted(before)])
    low, high = bootstrap_interval(differences, confidence=confidence, resamples=resamples, seed=seed)
    return Difference(mean=float(differences.mean()), low=low, high=high, confidence=confidence)


def bootstrap_interval(
    values: Sequence[float] | NDArray[np.float64],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of at least one value."""
    sample, random = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    means = [
        sample[
            random.integers(len(sample), size=(min(RESAMPLES_AT_ONCE, resamples - start), len(sample)))
        ].mean(axis=1)
        for start in range(0, resamples, RESAMPLES_AT_ONCE)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def latency(milliseconds: Sequence[float]) -> Latency:
    """The percentiles of at least one measured time."""
    p50, p90, p95, p99 = np.percentile(milliseconds, [50, 90, 95, 99])
    return Latency(p50=p50, p90=p90, p95=p95, p99=p99, longest=max(milliseconds))
