"""What a search is asked and what it answers: hits, diagnostics, and the explanation of a ranking."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from cayu_pg.frozen_maps import Features, FrozenMap
from cayu_pg.fused import FusedChannelMatch, FusedRetrievalCandidate, RetrievalFusionResult
from cayu_pg.ranking import RetrievalCandidateIdentity

ChannelPath = Literal["exact", "approximate", "approximate+iterative", "approximate+exact", "none"]


class SearchHit(BaseModel):
    """One passage found: its text, where it stands, and its rank in each channel (`matches`).

    `features` are those that its collection declares, by name. `fused_rank` is its place before reranking,
    `rerank_score` what a reranker gave it.
    """

    model_config = ConfigDict(frozen=True)

    text: str
    score: float
    identity: RetrievalCandidateIdentity
    collection: str
    title: str | None
    metadata: dict[str, JsonValue]
    record_id: str
    revision: int
    ordinal: int
    start: int
    end: int
    matches: tuple[FusedChannelMatch, ...]
    features: Features = FrozenMap()
    fused_rank: int
    rerank_score: float | None = None


class ChannelDiagnostics(BaseModel):
    """How one channel came to its hits.

    `requested` is how many were asked for, `eligible` how many there were to choose from (None: not counted).
    `truncated` says that a hit might be missing, and `reason` why, or why there are none. `milliseconds` is the time
    of the statement, which all channels share. `corrections` are the known words that unknown ones were taken for.
    """

    model_config = ConfigDict(frozen=True)

    requested: int
    eligible: int | None
    returned: int
    path: ChannelPath
    truncated: bool
    reason: str | None
    milliseconds: float
    index_version: str
    corrections: dict[str, str] = {}


class RerankDiagnostics(BaseModel):
    """How reranking went: not `applied`, the time was up and the fused order stands."""

    model_config = ConfigDict(frozen=True)

    model: str
    scored: int
    candidates: int
    applied: bool
    milliseconds: float


class SearchDiagnostics(BaseModel):
    """How a search went, channel by channel, and how long its parts took.

    `now` is the moment that features were measured at, None where there are none.
    """

    model_config = ConfigDict(frozen=True)

    channels: dict[str, ChannelDiagnostics]
    rerank: RerankDiagnostics | None = None
    now: datetime | None = None
    embedding_milliseconds: float
    database_milliseconds: float
    total_milliseconds: float


class SearchResult(BaseModel):
    """The hits of a search, best first, with the fusion that ranked them.

    `continuation` asks for the next page, None when the fused candidates are all shown.
    """

    model_config = ConfigDict(frozen=True)

    query: str
    hits: tuple[SearchHit, ...]
    fusion: RetrievalFusionResult
    diagnostics: SearchDiagnostics
    continuation: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts of the hits, best first."""
        return [hit.text for hit in self.hits]

    def explain(self, near_misses: int = 5) -> str:
        """Why the hits stand in this order: ranks, parts of the scores, and who came close."""
        return explain(self, near_misses)


def explain(result: SearchResult, near_misses: int) -> str:
    """The explanation of a result as text for people."""
    candidates = result.fusion.candidates
    lines = [f"{len(result.hits)} hits for {result.query!r}"]
    lines += [_channel_line(name, each) for name, each in result.diagnostics.channels.items()]
    lines += _rerank_lines(result.diagnostics.rerank)
    for place, hit in enumerate(result.hits, start=1):
        lines += _hit_lines(hit, candidates[hit.fused_rank - 1], place)
    shown = {hit.fused_rank for hit in result.hits}
    missed = [each for rank, each in enumerate(candidates, start=1) if rank not in shown][:near_misses]
    lines += ["near misses:"] if missed else []
    lines += [_near_miss_line(candidate) for candidate in missed]
    now = result.diagnostics.now
    lines += [] if now is None else [f"features measured at {now.isoformat()}"]
    fusion = result.fusion.diagnostics
    lines.append(
        f"fused by {fusion.strategy_version}, configuration {fusion.configuration_version}"
        f" ({fusion.configuration_sha256[:12]}), {fusion.unique_candidate_count} candidates"
    )
    return "\n".join(lines)


def _hit_lines(hit: SearchHit, candidate: FusedRetrievalCandidate, place: int) -> list[str]:
    title = f"  {hit.title}" if hit.title else ""
    lines = [f"{place:>3}. {hit.record_id}#{hit.ordinal} revision {hit.revision}{title}"]
    if hit.rerank_score is not None:
        lines.append(f"     reranked from {hit.fused_rank} to {place}, score {hit.rerank_score:.4f}")
    lines.append(f"     score {_score_line(candidate)}")
    lines += _feature_lines(hit.features)
    return lines + [f"       {_match_line(match)}" for match in candidate.matches]


def _feature_lines(features: Features) -> list[str]:
    values = ", ".join(f"{name} {value:.4f}" for name, value in features.items())
    return [f"       features: {values}"] if features else []


def _near_miss_line(candidate: FusedRetrievalCandidate) -> str:
    ranks = "; ".join(f"{match.channel} rank {match.rank}" for match in candidate.matches)
    return f"     {candidate.identity.record_id}  score {_score_line(candidate)}  ({ranks})"


def _rerank_lines(rerank: RerankDiagnostics | None) -> list[str]:
    if rerank is None:
        return []
    if rerank.applied:
        return [f"  reranked {rerank.candidates} candidates by {rerank.model}"]
    scored = f"{rerank.scored} of {rerank.candidates}"
    return [f"  not reranked: the time was up after {scored} by {rerank.model}; the fused order stands"]


def _channel_line(name: str, channel: ChannelDiagnostics) -> str:
    notes: list[str] = [channel.path]
    if channel.truncated:
        notes.append("truncated")
    if channel.reason:
        notes.append(channel.reason)
    notes += [f"{word} taken for {meant}" for word, meant in channel.corrections.items()]
    found = f"{channel.returned} of at most {channel.requested}"
    return f"  {name}: {found} ({', '.join(notes)}; {channel.index_version})"


def _score_line(candidate: FusedRetrievalCandidate) -> str:
    line = f"{candidate.score:.6f} = reciprocal ranks {candidate.reciprocal_rank_score:.6f}"
    return line + f" + features {candidate.feature_adjustment:.6f}" if candidate.features else line


def _match_line(match: FusedChannelMatch) -> str:
    raw = "" if match.raw_score is None else f", raw score {match.raw_score:.4f}"
    why = f" ({'; '.join(match.explanations)})" if match.explanations else ""
    return f"{match.channel}: rank {match.rank}{raw}{why}"
