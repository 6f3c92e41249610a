"""What a search is asked and what it answers: hits, diagnostics, and the explanation of a ranking."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from cayu_pg.fused import FusedChannelMatch, FusedRetrievalCandidate, RetrievalFusionResult
from cayu_pg.ranking import RetrievalCandidateIdentity

ChannelPath = Literal["exact", "approximate", "approximate+iterative", "approximate+exact", "none"]


class SearchHit(BaseModel):
    """One passage found: its text, where it stands, and its rank in each channel (`matches`)."""

    model_config = ConfigDict(frozen=True)

    text: str
    score: float
    identity: RetrievalCandidateIdentity
    title: str | None
    metadata: dict[str, JsonValue]
    record_id: str
    revision: int
    ordinal: int
    start: int
    end: int
    matches: tuple[FusedChannelMatch, ...]


class ChannelDiagnostics(BaseModel):
    """How one channel came to its hits.

    `requested` is how many were asked for, `eligible` how many there were to choose from (None: not counted).
    `truncated` says that a hit might be missing, and `reason` why, or why there are none. `milliseconds` is the time
    of the statement, which all channels share.
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


class SearchDiagnostics(BaseModel):
    """How a search went, channel by channel, and how long its parts took."""

    model_config = ConfigDict(frozen=True)

    channels: dict[str, ChannelDiagnostics]
    embedding_milliseconds: float
    database_milliseconds: float
    total_milliseconds: float


class SearchResult(BaseModel):
    """The hits of a search, best first, with the fusion that ranked them."""

    model_config = ConfigDict(frozen=True)

    query: str
    hits: tuple[SearchHit, ...]
    fusion: RetrievalFusionResult
    diagnostics: SearchDiagnostics

    @property
    def texts(self) -> list[str]:
        """The texts of the hits, best first."""
        return [hit.text for hit in self.hits]

    def explain(self, near_misses: int = 5) -> str:
        """Why the hits stand in this order: ranks, parts of the scores, and who came close."""
        return explain(self, near_misses)


def explain(result: SearchResult, near_misses: int) -> str:
    """The explanation of a result as text for people."""
    lines = [f"{len(result.hits)} hits for {result.query!r}"]
    lines += [_channel_line(name, each) for name, each in result.diagnostics.channels.items()]
    for place, (hit, candidate) in enumerate(
        zip(result.hits, result.fusion.candidates, strict=False), start=1
    ):
        title = f"  {hit.title}" if hit.title else ""
        lines.append(f"{place:>3}. {hit.record_id}#{hit.ordinal} revision {hit.revision}{title}")
        lines.append(f"     score {_score_line(candidate)}")
        lines += [f"       {_match_line(match)}" for match in candidate.matches]
    missed = result.fusion.candidates[len(result.hits) :][:near_misses]
    if missed:
        lines.append("near misses:")
        lines += [
            f"     {candidate.identity.record_id}  score {_score_line(candidate)}"
            f"  ({'; '.join(f'{match.channel} rank {match.rank}' for match in candidate.matches)})"
            for candidate in missed
        ]
    fusion = result.fusion.diagnostics
    lines.append(
        f"fused by {fusion.strategy_version}, configuration {fusion.configuration_version}"
        f" ({fusion.configuration_sha256[:12]}), {fusion.unique_candidate_count} candidates"
    )
    return "\n".join(lines)


def _channel_line(name: str, channel: ChannelDiagnostics) -> str:
    notes: list[str] = [channel.path]
    if channel.truncated:
        notes.append("truncated")
    if channel.reason:
        notes.append(channel.reason)
    found = f"{channel.returned} of at most {channel.requested}"
    return f"  {name}: {found} ({', '.join(notes)}; {channel.index_version})"


def _score_line(candidate: FusedRetrievalCandidate) -> str:
    line = f"{candidate.score:.6f} = reciprocal ranks {candidate.reciprocal_rank_score:.6f}"
    return line + f" + features {candidate.feature_adjustment:.6f}" if candidate.features else line


def _match_line(match: FusedChannelMatch) -> str:
    raw = "" if match.raw_score is None else f", raw score {match.raw_score:.4f}"
    why = f" ({'; '.join(match.explanations)})" if match.explanations else ""
    return f"{match.channel}: rank {match.rank}{raw}{why}"
