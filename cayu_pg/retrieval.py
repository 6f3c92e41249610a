"""The search pipeline: embed the question, ask both channels in one statement, fuse, read the texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg import bm25
from cayu_pg.analysis import analyze
from cayu_pg.embedding import Embedder, check_vectors
from cayu_pg.errors import DimensionMismatch, InvalidInput, NotFound
from cayu_pg.fused import FusedRetrievalCandidate, RetrievalFusionResult
from cayu_pg.fusion import WeightedReciprocalRankFusion, WeightedReciprocalRankFusionConfig
from cayu_pg.query import ChannelDiagnostics, ChannelPath, SearchDiagnostics, SearchHit, SearchResult
from cayu_pg.ranking import RankedRetrievalChannel, RankedRetrievalHit, RetrievalCandidateIdentity
from cayu_pg.sql.channels import (
    ChannelRow,
    ChannelRows,
    HitText,
    Question,
    ef_search,
    fetch_channels,
    fetch_texts,
)
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.settings import set_for_search
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, compute, read
from cayu_pg.texts import storable

CHANNELS = ("vector", "text")
MAX_LIMIT = 10_000
MAX_CANDIDATES = 100_000
MAX_QUERY = 1_000_000  # characters


@dataclass(frozen=True)
class SearchRequest:
    """A search whose arguments have been checked."""

    query: str
    limit: int
    channels: tuple[str, ...]
    candidates: int
    fusion: WeightedReciprocalRankFusionConfig
    exact: bool
    per_record: bool
    max_distance: float | None
    timeout_ms: int | None


class StaleCollection(Exception):
    """The collection changed since it was looked up: another space is active now."""


def search_request(
    query: str,
    *,
    limit: int = 10,
    channels: Sequence[str] = CHANNELS,
    candidates: int = 100,
    fusion: WeightedReciprocalRankFusionConfig | None = None,
    per_record: bool = False,
    exact: bool = False,
    max_distance: float | None = None,
    timeout: float | None = None,
) -> SearchRequest:
    """Check the arguments of a search; InvalidInput names the first that is wrong."""
    _check_query(query)
    _check_int("limit", limit, MAX_LIMIT)
    _check_int("candidates", candidates, MAX_CANDIDATES)
    names = _check_channels(channels)
    candidates = max(limit, candidates)
    config = _default_fusion(names, limit, candidates) if fusion is None else fusion
    _check_fusion(config, names, limit, candidates)
    if max_distance is not None and not (
        isinstance(max_distance, int | float) and max_distance == max_distance
    ):
        raise InvalidInput("max_distance", "a number", type(max_distance).__name__)
    if timeout is not None and not (isinstance(timeout, int | float) and 0.001 <= timeout < 2_000_000):
        raise InvalidInput("timeout", "seconds from 0.001", repr(timeout)[:80])
    return SearchRequest(
        query=query,
        limit=limit,
        channels=names,
        candidates=candidates,
        fusion=config,
        exact=bool(exact),
        per_record=bool(per_record),
        max_distance=None if max_distance is None else float(max_distance),
        timeout_ms=None if timeout is None else int(timeout * 1000),
    )


def search(
    t: Tables, collection: CollectionRow, embedder: Embedder, request: SearchRequest
) -> Steps[SearchResult]:
    """The steps of one search: the model first, with no connection held, then one reading transaction."""
    began = time.perf_counter()
    vector = None
    if "vector" in request.channels and collection.space is not None:
        check_embedder(embedder, collection)
        vector = yield from compute(_encode, embedder, request.query, collection)
    embedded = time.perf_counter()
    question = Question(
        vector=None if vector is None else vector_literal(vector),
        analyzed=analyze(collection.analyzer, request.query) if "text" in request.channels else None,
        candidates=request.candidates,
        approximate=collection.has_hnsw and not request.exact,
        per_record=request.per_record,
        max_distance=request.max_distance,
    )
    answer = yield from read(_ask, t, collection, request, question)
    total = time.perf_counter()
    diagnostics = SearchDiagnostics(
        channels=answer.channels,
        embedding_milliseconds=(embedded - began) * 1000,
        database_milliseconds=answer.milliseconds,
        total_milliseconds=(total - began) * 1000,
    )
    return SearchResult(query=request.query, hits=answer.hits, fusion=answer.fusion, diagnostics=diagnostics)


def check_embedder(embedder: Embedder, collection: CollectionRow) -> None:
    """Refuse an embedder whose vectors do not belong into the collection's active space."""
    space = collection.space
    if space is None:
        return
    if embedder.model != space.model or embedder.dimensions != space.dimensions:
        raise DimensionMismatch(
            "embedder",
            f"{space.model} with {space.dimensions} dimensions, which made the vectors of {collection.name!r}",
            f"{embedder.model} with {embedder.dimensions} dimensions",
        )


def vector_literal(vector: NDArray[np.float32]) -> str:
    """A vector as pgvector reads it; float32 survives the way there unchanged."""
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def identity_of(row: ChannelRow, *, per_record: bool) -> RetrievalCandidateIdentity:
    """What names a hit: the chunk's place in its record, or the record alone."""
    if per_record:
        return RetrievalCandidateIdentity(
            record_type=row.record_type, record_id=row.record_id, revision=str(row.revision)
        )
    return RetrievalCandidateIdentity(
        record_type="chunk", record_id=chunk_name(row.record_id, row.ordinal), revision=str(row.revision)
    )


def chunk_name(record_id: str, ordinal: int) -> str:
    """`<record id>#<ordinal>`, with `%` and `#` of the id percent-encoded, so that it can be taken apart."""
    return f"{record_id.replace('%', '%25').replace('#', '%23')}#{ordinal}"


@dataclass(frozen=True)
class _Answer:
    hits: tuple[SearchHit, ...]
    fusion: RetrievalFusionResult
    channels: dict[str, ChannelDiagnostics]
    milliseconds: float


def _ask(
    conn: sa.Connection, t: Tables, collection: CollectionRow, request: SearchRequest, question: Question
) -> _Answer:
    """The channels, their fusion, and the texts of the hits, all from one transaction."""
    set_for_search(conn, ef_search=ef_search(question), timeout_ms=request.timeout_ms)
    began = time.perf_counter()
    rows = fetch_channels(conn, t, collection, question)
    milliseconds = (time.perf_counter() - began) * 1000
    if rows is None:
        raise NotFound("collection", collection.name)
    if rows.active_space_id != (None if collection.space is None else collection.space.space_id):
        raise StaleCollection(collection.name)
    named = _named_rows(request, rows)
    channels = tuple(
        _ranked(
            name,
            index_version(collection, name, rows),
            request.candidates,
            pairs,
            _truncated(name, pairs, request, rows),
        )
        for name, pairs in named.items()
    )
    fused = WeightedReciprocalRankFusion().fuse(channels, request.fusion)
    hits = _read_hits(conn, t, collection, request, named, fused)
    diagnostics = {
        channel.channel: _diagnostics(channel, collection, request, question, rows, milliseconds)
        for channel in channels
    }
    return _Answer(hits, fused, diagnostics, milliseconds)


_Named = list[tuple[RetrievalCandidateIdentity, ChannelRow]]


def _named_rows(request: SearchRequest, rows: ChannelRows) -> dict[str, _Named]:
    """The rows of each channel with their identities, in ranking order: by value, ties by identity."""
    found = {"vector": rows.vector, "text": rows.text}
    named = {}
    for channel in request.channels:
        pairs = [(identity_of(row, per_record=request.per_record), row) for row in found[channel]]
        named[channel] = sorted(pairs, key=lambda pair: (pair[1].value, pair[0].sort_key()))
    return named


def _ranked(
    channel: str, version: str, candidates: int, pairs: _Named, truncated: bool
) -> RankedRetrievalChannel:
    representation = {"vector": "embedding", "text": "lexemes"}[channel]
    sign = 1.0 if channel == "vector" else -1.0  # a distance ascends, a score descends
    hits = tuple(
        RankedRetrievalHit(
            identity=identity,
            rank=rank,
            representation=representation,
            content_hash=row.content_hash.hex(),
            raw_score=sign * row.value,
        )
        for rank, (identity, row) in enumerate(pairs, start=1)
    )
    return RankedRetrievalChannel(
        channel=channel, index_version=version, candidate_limit=candidates, hits=hits, truncated=truncated
    )


def _truncated(channel: str, pairs: _Named, request: SearchRequest, rows: ChannelRows) -> bool:
    if channel == "vector":
        return False
    return not bm25.is_exact([-row.value for _, row in pairs], request.candidates, rows.rest)


def index_version(collection: CollectionRow, channel: str, rows: ChannelRows) -> str:
    """What a channel's ranking depends on: the model and space, or analyzer, configuration and statistics."""
    if channel == "vector":
        space = collection.space
        return "no vectors" if space is None else f"{space.model}:{space.distance}:space-{space.space_id}"
    version = rows.statistics_version or 0
    return f"{collection.analyzer}:{collection.text_config}:statistics-{version}"


def _diagnostics(
    channel: RankedRetrievalChannel,
    collection: CollectionRow,
    request: SearchRequest,
    question: Question,
    rows: ChannelRows,
    milliseconds: float,
) -> ChannelDiagnostics:
    is_vector = channel.channel == "vector"
    path, reason = _vector_path(collection, question, rows) if is_vector else _text_path(channel, rows)
    returned = len(channel.hits)
    complete = returned < request.candidates and not channel.truncated and request.max_distance is None
    return ChannelDiagnostics(
        requested=request.candidates,
        eligible=returned if complete else None,
        returned=returned,
        path=path,
        truncated=channel.truncated,
        reason=reason,
        milliseconds=milliseconds,
        index_version=channel.index_version,
    )


def _vector_path(
    collection: CollectionRow, question: Question, rows: ChannelRows
) -> tuple[ChannelPath, str | None]:
    if collection.space is None:
        return "none", "the collection has no vectors yet"
    if not question.approximate:
        return "exact", None if rows.vector else "no chunk is eligible"
    if rows.approximate_returned is not None and rows.approximate_returned < question.candidates:
        return "approximate+exact", f"the index returned {rows.approximate_returned} of {question.candidates}"
    return "approximate", None


def _text_path(channel: RankedRetrievalChannel, rows: ChannelRows) -> tuple[ChannelPath, str | None]:
    if rows.terms == 0:
        return "none", "the query has no searchable words"
    if channel.truncated:
        return "exact", "common words only add to the scores of chunks that hold a rarer one"
    return "exact", None if channel.hits else "no chunk holds any of the words"


def _read_hits(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    request: SearchRequest,
    named: dict[str, _Named],
    fused: RetrievalFusionResult,
) -> tuple[SearchHit, ...]:
    head = fused.candidates[: request.limit]
    # Channels may show different chunks of one record; the one of the best rank speaks for it.
    best: dict[tuple[str, str, str], tuple[int, ChannelRow]] = {}
    for pairs in named.values():
        for rank, (identity, row) in enumerate(pairs):
            key = identity.sort_key()
            if key not in best or rank < best[key][0]:
                best[key] = (rank, row)
    rows = [best[candidate.identity.sort_key()][1] for candidate in head]
    wanted = [(row.chunk_id, row.record_id, row.revision) for row in rows]
    texts = fetch_texts(conn, t, collection.collection_id, wanted) if wanted else {}
    return tuple(_hit(candidate, row, texts[row.chunk_id]) for candidate, row in zip(head, rows, strict=True))


def _hit(candidate: FusedRetrievalCandidate, row: ChannelRow, shown: HitText) -> SearchHit:
    return SearchHit(
        text=shown.text,
        score=candidate.score,
        identity=candidate.identity,
        title=shown.title,
        metadata=shown.metadata,
        record_id=row.record_id,
        revision=row.revision,
        ordinal=row.ordinal,
        start=row.start,
        end=row.end,
        matches=candidate.matches,
    )


def _encode(embedder: Embedder, query: str, collection: CollectionRow) -> NDArray[np.float32]:
    space = collection.space
    dimensions = embedder.dimensions if space is None else space.dimensions
    vectors = check_vectors(
        [embedder.encode_query(query)], count=1, dimensions=dimensions, field="query vector"
    )
    vector: NDArray[np.float32] = vectors[0]
    return vector


@lru_cache(maxsize=64)
def _default_fusion(
    channels: tuple[str, ...], limit: int, candidates: int
) -> WeightedReciprocalRankFusionConfig:
    return WeightedReciprocalRankFusionConfig(
        configuration_version="default",
        channel_weights=dict.fromkeys(channels, 1.0),
        max_candidates_per_channel=candidates,
        fused_head_limit=max(limit, 50),
    )


def _check_query(query: str) -> None:
    if not isinstance(query, str):
        raise InvalidInput("query", "text", f"a value of type {type(query).__name__}")
    if not query.strip():
        raise InvalidInput("query", "text with something to search for", "blank text")
    if len(query) > MAX_QUERY:
        raise InvalidInput("query", f"at most {MAX_QUERY} characters", f"{len(query)}")
    try:
        storable(query)
    except ValueError as error:
        raise InvalidInput("query", "text that Postgres can take", f"text that {error}") from None


def _check_int(field: str, value: int, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        found = repr(value)[:40] if isinstance(value, int | float) else type(value).__name__
        raise InvalidInput(field, f"an int from 1 to {most}", found)


def _check_channels(channels: Sequence[str]) -> tuple[str, ...]:
    names = tuple(channels) if not isinstance(channels, str) else (channels,)
    if not names or len(set(names)) != len(names) or not set(names) <= set(CHANNELS):
        raise InvalidInput("channels", "one or both of vector and text", repr(names)[:80])
    return names


def _check_fusion(
    config: WeightedReciprocalRankFusionConfig, channels: tuple[str, ...], limit: int, candidates: int
) -> None:
    if not isinstance(config, WeightedReciprocalRankFusionConfig):
        raise InvalidInput("fusion", "a WeightedReciprocalRankFusionConfig", type(config).__name__)
    if set(config.channel_weights) != set(channels):
        expected = f"weights for exactly {', '.join(channels)}"
        raise InvalidInput("fusion", expected, f"weights for {', '.join(config.channel_weights)}")
    if config.fused_head_limit < limit:
        raise InvalidInput(
            "fusion", f"fused_head_limit of at least limit {limit}", str(config.fused_head_limit)
        )
    if config.max_candidates_per_channel < candidates:
        found = str(config.max_candidates_per_channel)
        raise InvalidInput("fusion", f"max_candidates_per_channel of at least {candidates}", found)
