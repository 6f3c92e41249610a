"""Weighted reciprocal-rank fusion: several ranked channels become one ranking.

G. V. Cormack, C. L. A. Clarke, S. Büttcher: Reciprocal rank fusion outperforms Condorcet and individual rank
learning methods, SIGIR 2009; here with a weight for each channel and linear terms for features. Scores, order
and fingerprints agree with cayu 0.15.0 to the last bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import fsum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cayu_pg.canonical_json import canonical_json
from cayu_pg.errors import InvalidInput
from cayu_pg.frozen_maps import ChannelWeights, FeatureWeights, FrozenMap
from cayu_pg.fused import (
    FusedChannelMatch,
    FusedRetrievalCandidate,
    RetrievalChannelDiagnostics,
    RetrievalFusionDiagnostics,
    RetrievalFusionResult,
)
from cayu_pg.ranking import Count, RankedRetrievalChannel, RankedRetrievalHit, checked
from cayu_pg.texts import CleanText

__all__ = [
    "WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION",
    "FusedChannelMatch",
    "FusedRetrievalCandidate",
    "RetrievalChannelDiagnostics",
    "RetrievalFusionDiagnostics",
    "RetrievalFusionResult",
    "WeightedReciprocalRankFusion",
    "WeightedReciprocalRankFusionConfig",
]

WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION = "cayu.wrrf.v1"

MAX_VALUES = 250_000
MAX_BYTES = 16_777_216


class WeightedReciprocalRankFusionConfig(BaseModel):
    """The weights and limits of a fusion, under a version of their own.

    `rrf_k` damps the lead of the first ranks. A channel may not ask for more than `max_candidates_per_channel`;
    the fused ranking ends after `fused_head_limit`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    configuration_version: CleanText
    channel_weights: ChannelWeights
    rrf_k: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 60.0
    feature_weights: FeatureWeights = Field(default_factory=FrozenMap)
    max_candidates_per_channel: Count = 100
    fused_head_limit: Count = 50
    strategy_version: CleanText = WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION

    @model_validator(mode="after")
    def _has_a_fingerprint(self) -> Self:
        if not self.channel_weights:
            raise ValueError("channel_weights must name at least one channel")
        values = 1 + len(vars(self)) + len(self.channel_weights) + len(self.feature_weights)
        if values > MAX_VALUES:
            raise ValueError(f"must have at most {MAX_VALUES} values, found {values}")
        size = len(canonical_json(vars(self)))
        if size > MAX_BYTES:
            raise ValueError(f"must have at most {MAX_BYTES} bytes of canonical JSON, found {size}")
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields replaced, validated as if new; `deep` changes nothing, as all is immutable."""
        return self.model_validate({**self.model_dump(exclude_unset=True), **(update or {})})

    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON, the same for every spelling of the same numbers."""
        return hashlib.sha256(canonical_json(vars(self))).hexdigest()


class WeightedReciprocalRankFusion:
    """Fuses channels by weighted reciprocal ranks; the same input in any order gives the same bits.

    The score of a candidate is the sum over its channels of weight / (rrf_k + rank), plus the sum over
    `feature_weights` of weight * feature. Ties are broken by best rank, number of channels, and identity.
    """

    strategy_version: ClassVar[str] = WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION

    def fuse(
        self,
        channels: Iterable[RankedRetrievalChannel],
        config: WeightedReciprocalRankFusionConfig,
    ) -> RetrievalFusionResult:
        """The fused ranking of exactly the channels that `config` weighs.

        Raises TypeError for anything that is not exactly of its class, ValidationError for an instance that was
        built unchecked and holds bad values, InvalidInput where channels, configuration and features disagree.
        """
        return self.fuse_validated((checked(each) for each in channels), config)

    def fuse_validated(
        self,
        channels: Iterable[RankedRetrievalChannel],
        config: WeightedReciprocalRankFusionConfig,
    ) -> RetrievalFusionResult:
        """The same of channels that came out of validation just now: a quarter of the time is not spent on it again."""
        config = _checked_config(config, self.strategy_version)
        ranked = sorted(channels, key=lambda each: each.channel)
        _check_fit(ranked, config)
        groups = _grouped(ranked, config)
        for key, found in groups.items():
            _check_features(key, found)
        weights = config.feature_weights
        places = sorted([_place(key, found, weights) for key, found in groups.items()])
        head = places[: config.fused_head_limit]
        # Plain dicts, because one validation of them all is cheaper than building model by model.
        return RetrievalFusionResult.model_validate(
            {
                "candidates": [_fused(place, groups[place[-1]], weights) for place in head],
                "diagnostics": _diagnostics(ranked, config, len(places)),
            }
        )


_Key = tuple[str, str, str]
_Found = tuple[float, RankedRetrievalHit, RankedRetrievalChannel]  # first what the hit adds to the score
_Place = tuple[float, int, int, _Key]  # score and channel count negated, so that places sort as they are


def _checked_config(
    config: WeightedReciprocalRankFusionConfig, strategy_version: str
) -> WeightedReciprocalRankFusionConfig:
    if type(config) is not WeightedReciprocalRankFusionConfig:
        raise TypeError(f"config: expected WeightedReciprocalRankFusionConfig, found {type(config).__name__}")
    checked = WeightedReciprocalRankFusionConfig.model_validate(vars(config))
    if checked.strategy_version != strategy_version:
        raise InvalidInput("strategy_version", strategy_version, repr(checked.strategy_version)[:80])
    return checked


def _check_fit(channels: list[RankedRetrievalChannel], config: WeightedReciprocalRankFusionConfig) -> None:
    names = [each.channel for each in channels]
    if len(set(names)) < len(names):
        raise InvalidInput("channels", "unique names", ", ".join(names))
    if set(names) != set(config.channel_weights):
        raise InvalidInput(
            "channels", f"exactly {', '.join(sorted(config.channel_weights))}", ", ".join(names)
        )
    for each in channels:
        if each.candidate_limit > config.max_candidates_per_channel:
            expected = f"at most {config.max_candidates_per_channel} in channel {each.channel}"
            raise InvalidInput("candidate_limit", expected, str(each.candidate_limit))


def _grouped(
    channels: list[RankedRetrievalChannel], config: WeightedReciprocalRankFusionConfig
) -> dict[_Key, list[_Found]]:
    """The hits of each candidate, in the order of the channels."""
    groups: dict[_Key, list[_Found]] = {}
    rrf_k = config.rrf_k
    for channel in channels:
        weight = config.channel_weights[channel.channel]
        for hit in channel.hits:
            found = (weight / (rrf_k + hit.rank), hit, channel)
            groups.setdefault(hit.identity.sort_key(), []).append(found)
    return groups


def _place(key: _Key, found: list[_Found], feature_weights: Mapping[str, float]) -> _Place:
    reciprocal_ranks, adjustment = _scores(found, feature_weights)
    best_rank = min([hit.rank for _, hit, _ in found])
    return (-(reciprocal_ranks + adjustment), best_rank, -len(found), key)


def _scores(found: list[_Found], feature_weights: Mapping[str, float]) -> tuple[float, float]:
    # fsum rounds once, so the order of the terms does not matter; adding 0.0 makes a -0.0 positive.
    reciprocal_ranks = fsum([part for part, _, _ in found]) + 0.0
    if not feature_weights:
        return reciprocal_ranks, 0.0
    features = found[0][1].features
    terms = [weight * features.get(name, 0.0) for name, weight in feature_weights.items()]
    return reciprocal_ranks, fsum(terms) + 0.0


def _check_features(key: _Key, found: list[_Found]) -> None:
    features = found[0][1].features
    for _, hit, _ in found[1:]:
        if hit.features != features:
            raise InvalidInput("features", f"the same in every channel for {':'.join(key)}", "different ones")


def _fused(place: _Place, found: list[_Found], feature_weights: Mapping[str, float]) -> dict[str, Any]:
    reciprocal_ranks, adjustment = _scores(found, feature_weights)
    first = found[0][1]
    return {
        "identity": first.identity,
        "score": reciprocal_ranks + adjustment,
        "reciprocal_rank_score": reciprocal_ranks,
        "feature_adjustment": adjustment,
        "features": first.features,
        "best_rank": place[1],
        "channel_count": len(found),
        "matches": [_match(hit, channel) for _, hit, channel in found],
    }


def _match(hit: RankedRetrievalHit, channel: RankedRetrievalChannel) -> dict[str, Any]:
    return {
        "channel": channel.channel,
        "index_version": channel.index_version,
        "rank": hit.rank,
        "representation": hit.representation,
        "content_hash": hit.content_hash,
        "explanations": hit.explanations,
        "raw_score": hit.raw_score,
    }


def _diagnostics(
    channels: list[RankedRetrievalChannel], config: WeightedReciprocalRankFusionConfig, unique: int
) -> dict[str, Any]:
    returned = min(unique, config.fused_head_limit)
    reasons = [f"channel:{each.channel}" for each in channels if each.truncated]
    if returned < unique:
        reasons.append("fused_head_limit")
    return {
        "strategy_version": config.strategy_version,
        "configuration_version": config.configuration_version,
        "configuration_sha256": config.fingerprint(),
        "channels": [_channel_diagnostics(each) for each in channels],
        "unique_candidate_count": unique,
        "returned_candidate_count": returned,
        "omitted_candidate_count": unique - returned,
        "truncated": bool(reasons),
        "truncation_reasons": reasons,
        "continuation_channels": [each.channel for each in channels if each.continuation is not None],
    }


def _channel_diagnostics(channel: RankedRetrievalChannel) -> dict[str, Any]:
    return {
        "channel": channel.channel,
        "index_version": channel.index_version,
        "candidate_limit": channel.candidate_limit,
        "hit_count": len(channel.hits),
        "unique_candidate_count": len(channel.hits),  # identities are unique within a channel
        "truncated": channel.truncated,
        "continuation_available": channel.continuation is not None,
    }
