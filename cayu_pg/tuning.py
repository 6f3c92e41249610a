"""Weights that are earned: a search over fusion weights on recorded rankings, checked on queries it has not seen.

Pure: the channels are asked once, and every setting of the grid is tried on what they answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isclose, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from cayu_pg.errors import InvalidInput
from cayu_pg.evaluation import Difference, Grades, Qrels, paired_bootstrap
from cayu_pg.fused import FusedRetrievalCandidate, RetrievalFusionResult
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig

STEPS = 10  # weights go from 0.0 to 1.0 by 0.1 and add up to 1
RRF_KS = (10.0, 20.0, 60.0)
DEFAULT_K = 60.0
# Weights of a feature, in units of what a first rank in every channel is worth.
FEATURE_STEPS = (-1.0, -0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.5, 1.0)
ROUNDS = 2  # over the features, each tuned with the others held
# On random judgements of 40 and of 100 queries, 300 runs each, tuning saw a gain in 3 to 5 % of the runs by the 95 %
# interval and in 0.3 % by this one.
CONFIDENCE = 0.99

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recorded:
    """What the channels found for one query: each document once, in the order that breaks ties of the fusion.

    `ranks` has a row a document and a column a channel, infinite where the channel did not find it; `features` has a
    column a feature.
    """

    documents: tuple[str, ...]
    ranks: Floats
    features: Floats


@dataclass(frozen=True)
class Recording:
    """The rankings of all queries, and what the columns of each are called."""

    channels: tuple[str, ...]
    features: tuple[str, ...]
    queries: Mapping[str, Recorded]


@dataclass(frozen=True)
class Setting:
    """One point of the search: a weight for each channel and each feature, and k."""

    weights: tuple[float, ...]
    rrf_k: float
    features: tuple[float, ...]


class Scores(BaseModel):
    """Mean nDCG of equal and of tuned weights over so many queries."""

    model_config = ConfigDict(frozen=True)

    queries: int
    equal: float
    tuned: float


class TuningReport(BaseModel):
    """What tuning found, and whether it holds on the queries that were held out.

    `config` is what to use: `tuned` if there is a `gain`, equal weights if the `difference` on the held-out queries is
    within noise or a loss. `name` is the name it was saved under.
    """

    model_config = ConfigDict(frozen=True)

    config: WeightedReciprocalRankFusionConfig
    tuned: WeightedReciprocalRankFusionConfig
    gain: bool
    k: int
    training: Scores
    held_out: Scores
    difference: Difference
    name: str | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of `config`, which the results of its searches carry."""
        return self.config.fingerprint()

    def evidence(self) -> dict[str, Any]:
        """What is kept beside the configuration: all but the configuration itself."""
        return {"from": "tuning", **self.model_dump(mode="json", exclude={"config", "name"})}

    def __str__(self) -> str:
        weighed = (*self.tuned.channel_weights.items(), *self.tuned.feature_weights.items())
        weights = ", ".join(f"{name} {weight:g}" for name, weight in weighed)
        found = (
            f"{weights}, k {self.tuned.rrf_k:g}: nDCG@{self.k} {self.held_out.tuned:.4f} on {self.held_out.queries}"
            f" held-out queries, equal weights {self.held_out.equal:.4f}; difference {self.difference}"
        )
        return found if self.gain else f"no gain, equal weights stay. Tried {found}"


def record(results: Mapping[str, RetrievalFusionResult]) -> Recording:
    """The rankings behind fused results, one a query; InvalidInput when one holds but the head of what was fused."""
    cut = next((query for query, r in results.items() if r.diagnostics.omitted_candidate_count), None)
    if cut is not None:
        raise InvalidInput("results", "every candidate of each query", f"only the head for {cut!r}")
    channels = sorted({each.channel for r in results.values() for each in r.diagnostics.channels})
    features = sorted({name for r in results.values() for c in r.candidates for name in c.features})
    queries = {query: _recorded(r.candidates, channels, features) for query, r in results.items()}
    return Recording(tuple(channels), tuple(features), queries)


def _recorded(
    candidates: Sequence[FusedRetrievalCandidate], channels: list[str], features: list[str]
) -> Recorded:
    # The order of WeightedReciprocalRankFusion among equal scores.
    ordered = sorted(candidates, key=lambda c: (c.best_rank, -c.channel_count, c.identity.sort_key()))
    ranks = np.full((len(ordered), len(channels)), np.inf)
    for place, candidate in enumerate(ordered):
        for match in candidate.matches:
            ranks[place, channels.index(match.channel)] = match.rank
    values = [[c.features.get(name, 0.0) for name in features] for c in ordered]
    return Recorded(
        tuple(c.identity.record_id for c in ordered),
        ranks,
        np.array(values, dtype=np.float64).reshape(len(ordered), len(features)),
    )


def tune_recorded(
    recording: Recording,
    qrels: Qrels,
    *,
    held_out: Iterable[str] | None = None,
    k: int = 10,
    candidates: int = 100,
    version: str = "tuned",
    seed: int = 0,
) -> TuningReport:
    """The setting with the highest nDCG@`k` on the training queries, and what it is worth on the others.

    Without `held_out` every second query is held out. Ties go to the setting nearest to equal weights and k = 60.
    Documents are the `record_id`s of the recorded candidates.
    """
    judged = [query for query in recording.queries if query in qrels]
    training, checking = share_out(judged, held_out)
    best = _best_setting(recording, qrels, training, k)
    equal = equal_setting(recording)
    trained = [np.mean(_by_query(recording, qrels, training, setting, k)) for setting in (equal, best)]
    checked = [_by_query(recording, qrels, checking, setting, k) for setting in (equal, best)]
    before, after = (dict(zip(checking, values, strict=True)) for values in checked)
    difference = paired_bootstrap(before, after, confidence=CONFIDENCE, seed=seed)
    tuned = config_of(recording, best, version, candidates)
    gain = difference.low > 0
    return TuningReport(
        config=tuned if gain else equal_config(recording, version, candidates),
        tuned=tuned,
        gain=gain,
        k=k,
        training=Scores(queries=len(training), equal=float(trained[0]), tuned=float(trained[1])),
        held_out=Scores(
            queries=len(checking), equal=float(np.mean(checked[0])), tuned=float(np.mean(checked[1]))
        ),
        difference=difference,
    )


def share_out(judged: Sequence[str], held_out: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """The queries to train on and those held out, by default every second one; InvalidInput when either has none."""
    unseen = set(judged[1::2] if held_out is None else held_out)
    checking = [query for query in judged if query in unseen]
    training = [query for query in judged if query not in unseen]
    if not training or not checking:
        expected = "judged queries to train on, and others to check on"
        raise InvalidInput("queries", expected, f"{len(training)} and {len(checking)}")
    return training, checking


def config_of(
    recording: Recording, setting: Setting, version: str, candidates: int
) -> WeightedReciprocalRankFusionConfig:
    """The setting as a configuration; channels and features that weigh 0 are left out."""
    return WeightedReciprocalRankFusionConfig(
        configuration_version=version,
        channel_weights={n: w for n, w in zip(recording.channels, setting.weights, strict=True) if w},
        rrf_k=setting.rrf_k,
        feature_weights={n: w for n, w in zip(recording.features, setting.features, strict=True) if w},
        max_candidates_per_channel=candidates,
        fused_head_limit=candidates,
    )


def equal_config(recording: Recording, version: str, candidates: int) -> WeightedReciprocalRankFusionConfig:
    """What a search without a configuration uses, under this version."""
    return WeightedReciprocalRankFusionConfig(
        configuration_version=version,
        channel_weights=dict.fromkeys(recording.channels, 1.0),
        rrf_k=DEFAULT_K,
        max_candidates_per_channel=candidates,
        fused_head_limit=candidates,
    )


def equal_setting(recording: Recording) -> Setting:
    """The same weight for every channel, none for features."""
    count = len(recording.channels)
    return Setting((1 / count,) * count, DEFAULT_K, (0.0,) * len(recording.features))


def _best_setting(recording: Recording, qrels: Qrels, training: Sequence[str], k: int) -> Setting:
    equal = equal_setting(recording)
    grid = [
        replace(equal, weights=weights, rrf_k=rrf_k)
        for weights in _weights(len(recording.channels))
        for rrf_k in RRF_KS
    ]
    best = _best_of([equal, *grid], recording, qrels, training, k)
    for place in [*range(len(recording.features))] * ROUNDS:
        best = _best_of([*_with_feature(best, place)], recording, qrels, training, k)
    return best


def _weights(count: int) -> Iterator[tuple[float, ...]]:
    """Every way to share 1 among the channels in tenths."""
    for parts in product(range(STEPS + 1), repeat=count - 1):
        if sum(parts) <= STEPS:
            yield tuple(part / STEPS for part in (*parts, STEPS - sum(parts)))


def _with_feature(setting: Setting, place: int) -> Iterator[Setting]:
    first_rank = 1 / (setting.rrf_k + 1)
    for step in FEATURE_STEPS:
        features = list(setting.features)
        features[place] = step * first_rank
        yield replace(setting, features=tuple(features))


def _best_of(
    settings: list[Setting], recording: Recording, qrels: Qrels, training: Sequence[str], k: int
) -> Setting:
    total = np.zeros(len(settings))
    for query in training:
        total += ndcgs(recording.queries[query], qrels[query], settings, k)
    highest = total.max()
    tied = [s for s, value in zip(settings, total, strict=True) if isclose(value, highest, abs_tol=1e-9)]
    return min(tied, key=_distance_from_equal)


def _distance_from_equal(setting: Setting) -> tuple[float, float, float]:
    middle = 1 / len(setting.weights)
    return (
        round(sum(abs(weight) for weight in setting.features), 9),
        round(sum(abs(weight - middle) for weight in setting.weights), 9),
        abs(setting.rrf_k - DEFAULT_K),
    )


def _by_query(
    recording: Recording, qrels: Qrels, queries: Sequence[str], setting: Setting, k: int
) -> list[float]:
    return [float(ndcgs(recording.queries[query], qrels[query], [setting], k)[0]) for query in queries]


def ndcgs(recorded: Recorded, grades: Grades, settings: Sequence[Setting], k: int = 10) -> Floats:
    """The nDCG@`k` of one query under each setting; fused as WeightedReciprocalRankFusion does, all at once."""
    ideal = _discounts(k)[: len(grades)] @ np.sort(_gains(list(grades.values())))[::-1][:k]
    if not ideal or not recorded.documents:
        return np.zeros(len(settings))
    weights = np.array([setting.weights for setting in settings])[:, None, :]
    rrf_k = np.array([setting.rrf_k for setting in settings])[:, None, None]
    features = np.array([setting.features for setting in settings]).reshape(len(settings), -1)
    found = ((weights > 0) & np.isfinite(recorded.ranks)).any(axis=2)
    scores = (weights / (rrf_k + recorded.ranks)).sum(axis=2) + features @ recorded.features.T
    order = np.argsort(np.where(found, -scores, np.inf), axis=1, kind="stable")[:, :k]
    gains = _gains([grades.get(document, 0) for document in recorded.documents])
    shown = gains[order] * np.take_along_axis(found, order, axis=1)
    result: Floats = shown @ _discounts(k)[: shown.shape[1]] / ideal
    return result


def _gains(grades: Sequence[int]) -> Floats:
    return np.maximum(np.array(grades, dtype=np.float64), 0.0)


def _discounts(k: int) -> Floats:
    return np.array([1 / log2(place + 1) for place in range(1, k + 1)])
