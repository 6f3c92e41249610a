"""What a fusion returns: candidates with their scores explained, and diagnostics. Plain values, frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from cayu_pg.frozen_maps import Features
from cayu_pg.ranking import RetrievalCandidateIdentity


class FusedChannelMatch(BaseModel):
    """How one channel saw a candidate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channel: str
    index_version: str
    rank: int
    representation: str
    content_hash: str
    explanations: tuple[str, ...]
    raw_score: float | None


class FusedRetrievalCandidate(BaseModel):
    """A candidate with its score, the two parts of the score, and the channels that found it, by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: RetrievalCandidateIdentity
    score: float
    reciprocal_rank_score: float
    feature_adjustment: float
    features: Features
    best_rank: int
    channel_count: int
    matches: tuple[FusedChannelMatch, ...]


class RetrievalChannelDiagnostics(BaseModel):
    """What one channel brought to a fusion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channel: str
    index_version: str
    candidate_limit: int
    hit_count: int
    unique_candidate_count: int
    truncated: bool
    continuation_available: bool


class RetrievalFusionDiagnostics(BaseModel):
    """What was fused, under which configuration, and what was left out.

    `truncation_reasons` holds `channel:<name>` for each truncated channel, and `fused_head_limit`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy_version: str
    configuration_version: str
    configuration_sha256: str
    channels: tuple[RetrievalChannelDiagnostics, ...]
    unique_candidate_count: int
    returned_candidate_count: int
    omitted_candidate_count: int
    truncated: bool
    truncation_reasons: tuple[str, ...]
    continuation_channels: tuple[str, ...]


class RetrievalFusionResult(BaseModel):
    """The fused ranking, best first, and how it came about."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    candidates: tuple[FusedRetrievalCandidate, ...]
    diagnostics: RetrievalFusionDiagnostics
