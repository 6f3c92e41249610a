"""The search pipeline: embed the question, ask the channels in one statement, fuse, rerank, read the texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg import bm25
from cayu_pg.analysis import analyze
from cayu_pg.bm25 import POSTING_BUDGET
from cayu_pg.continuation import Continuation, check_order, check_state, parse_continuation
from cayu_pg.embedding import Embedder, check_vectors
from cayu_pg.errors import Conflict, HistoryPruned, NotFound
from cayu_pg.fitting_embedder import active_embedder
from cayu_pg.fused import FusedRetrievalCandidate, RetrievalFusionResult
from cayu_pg.fusion import WeightedReciprocalRankFusion
from cayu_pg.query import ChannelDiagnostics, RerankDiagnostics, SearchDiagnostics, SearchHit, SearchResult
from cayu_pg.ranked_rows import (
    Key,
    RankedRows,
    channel_diagnostics,
    ranked_rows,
)
from cayu_pg.reranking import Reranker
from cayu_pg.search_request import SearchRequest
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
from cayu_pg.sql.filters import compile_filter
from cayu_pg.sql.records import sequence_at
from cayu_pg.sql.settings import set_for_search
from cayu_pg.sql.shapes import stood
from cayu_pg.sql.spaces import Maker
from cayu_pg.sql.spelling import corrections
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, compute, read

RERANK_BATCH = 16  # passages scored between two looks at the clock


class StaleCollection(Conflict):
    """A collection changed since it was looked up: another space is active now."""

    def __init__(self, collection: CollectionRow) -> None:
        super().__init__(f"the embedding model of {collection.name!r} was changed meanwhile; search again")


@dataclass(frozen=True)
class Searched:
    """One collection of a search: what it is called in the channels, its row, and what may embed questions for it."""

    label: str | None
    row: CollectionRow
    embedders: Sequence[Embedder]


@dataclass(frozen=True)
class _Found:
    """What one reading transaction brought: the fused ranking, and each candidate's row and text."""

    fusion: RetrievalFusionResult
    rows: dict[Key, tuple[Searched, ChannelRow]]
    texts: dict[Key, HitText]
    channels: dict[str, ChannelDiagnostics]
    state: str
    milliseconds: float


def search(t: Tables, searched: Sequence[Searched], request: SearchRequest) -> Steps[SearchResult]:
    """The steps of a search: models with no connection held, and one reading transaction."""
    began = time.perf_counter()
    names = [each.row.name for each in searched]
    token = request.continuation
    page = None if token is None else parse_continuation(token, request.digest(names))
    vectors = yield from _embedded(searched, request)
    embedded = time.perf_counter()
    found = yield from read(_ask, t, searched, request, vectors, page)
    order, reranked = yield from _reranked(request, found)
    applied = None if reranked is None else reranked.applied
    if page is not None:
        check_order(page, applied)
    offset = page.offset if page else 0
    shown = order[offset : offset + request.limit]
    more = offset + len(shown) < len(order)
    following = (
        Continuation(request.digest(names), found.state, offset + len(shown), applied).token()
        if more
        else None
    )
    return SearchResult(
        query=request.query,
        hits=tuple(_hit(found, place, score) for place, score in shown),
        fusion=found.fusion,
        diagnostics=SearchDiagnostics(
            channels=found.channels,
            rerank=reranked,
            embedding_milliseconds=(embedded - began) * 1000,
            database_milliseconds=found.milliseconds,
            total_milliseconds=(time.perf_counter() - began) * 1000,
        ),
        continuation=following,
    )


def vector_literal(vector: NDArray[np.float32]) -> str:
    """A vector as pgvector reads it; float32 survives the way there unchanged."""
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _embedded(searched: Sequence[Searched], request: SearchRequest) -> Steps[dict[Maker, str]]:
    """The question's vector, as pgvector reads it, by what makes it; each model is asked once."""
    vectors: dict[Maker, str] = {}
    if "vector" not in request.channels:
        return vectors
    for each in searched:
        space = each.row.space
        if space is not None and space.maker not in vectors:
            embedder = active_embedder(each.row, each.embedders)
            vector = yield from compute(_encode, embedder, request.query, space.dimensions)
            vectors[space.maker] = vector_literal(vector)
    return vectors


def _encode(embedder: Embedder, query: str, dimensions: int) -> NDArray[np.float32]:
    vectors = check_vectors(
        [embedder.encode_query(query)], count=1, dimensions=dimensions, field="query vector"
    )
    vector: NDArray[np.float32] = vectors[0]
    return vector


def _ask(
    conn: sa.Connection,
    t: Tables,
    searched: Sequence[Searched],
    request: SearchRequest,
    vectors: dict[Maker, str],
    page: Continuation | None,
) -> _Found:
    """The channels of every collection, their fusion, and the texts of the candidates that may be shown."""
    questions = [
        _question(t, each, request, vectors, _sequence(conn, t, each.row, request)) for each in searched
    ]
    efforts = [ef_search(each.row, question) for each, question in zip(searched, questions, strict=True)]
    set_for_search(
        conn,
        ef_search=max((e for e in efforts if e), default=None),
        timeout_ms=request.timeout_ms,
        filtered=request.where is not None,
    )
    began = time.perf_counter()
    ranked: list[RankedRows] = []
    states: list[str] = []
    for each, question in zip(searched, questions, strict=True):
        fetched = _fetched(conn, t, each.row, question, fuzzy=request.fuzzy)
        rows = fetched.rows
        states.append(f"{each.row.name}@{rows.sequence}.{rows.statistics_version or 0}")
        ranked += ranked_rows(each.label, each.row, request, question, rows, fetched.corrections)
    milliseconds = (time.perf_counter() - began) * 1000
    state = " ".join(states)
    if page is not None:
        check_state(page, state)
    channels = tuple(each.channel for each in ranked)
    fusion = WeightedReciprocalRankFusion().fuse(
        channels, request.fusion_of(tuple(each.channel for each in channels))
    )
    by_label = {each.label: each for each in searched}
    rows_of = _best_rows(ranked, by_label)
    texts = _texts(conn, t, _wanted(request, fusion, page), rows_of)
    diagnostics = {each.channel.channel: channel_diagnostics(each, request, milliseconds) for each in ranked}
    return _Found(fusion, rows_of, texts, diagnostics, state, milliseconds)


def _sequence(conn: sa.Connection, t: Tables, row: CollectionRow, request: SearchRequest) -> int | None:
    if request.as_of is None:
        return None
    found = sequence_at(conn, t, row.collection_id, request.as_of)
    if found is None:
        raise NotFound("collection", row.name)
    sequence, horizon = found
    if sequence < horizon:
        raise HistoryPruned(f"{row.name!r} was pruned before sequence {horizon}; asked for {request.as_of}")
    return sequence


def _question(
    t: Tables, each: Searched, request: SearchRequest, vectors: dict[Maker, str], as_of: int | None
) -> Question:
    where, words, analyzer = request.where, request.words, each.row.analyzer
    asked = "text" in request.channels
    metadata = t.chunks if as_of is None else stood(t)
    return Question(
        vector=None if each.row.space is None else vectors.get(each.row.space.maker),
        analyzed=analyze(analyzer, words.scored) if asked else None,
        candidates=request.candidates,
        approximate=each.row.has_hnsw and not request.exact and as_of is None,
        per_record=request.per_record,
        max_distance=request.max_distance,
        budget=POSTING_BUDGET,
        where=None if where is None else compile_filter(where, metadata.c.metadata),
        as_of=as_of,
        clauses=tuple(replace(c, text=analyze(analyzer, c.text)) for c in words.clauses) if asked else (),
    )


@dataclass(frozen=True)
class _Fetched:
    rows: ChannelRows
    corrections: dict[str, str]


def _fetched(
    conn: sa.Connection, t: Tables, row: CollectionRow, question: Question, *, fuzzy: bool
) -> _Fetched:
    """The channels of one collection; asked once more for words where spelling or certainty wants it."""
    rows = fetch_channels(conn, t, row, question)
    if rows is None:
        raise NotFound("collection", row.name)
    if rows.active_space_id != (None if row.space is None else row.space.space_id):
        raise StaleCollection(row)
    words = replace(question, vector=None)
    meant: dict[str, str] = {}
    if fuzzy and rows.unknown and not question.clauses:
        meant = corrections(conn, t, row.collection_id, rows.statistics_version or 0, rows.unknown)
        if meant:
            words = replace(words, corrections=tuple(sorted(set(meant.values()))))
            rows = _with_text(rows, fetch_channels(conn, t, row, words))
    scores = [-each.value for each in rows.text]
    if not bm25.is_exact(scores, question.candidates, rows.rest):
        wider = replace(words, threshold=bm25.threshold(scores, question.candidates))
        rows = _with_text(rows, fetch_channels(conn, t, row, wider))
    return _Fetched(rows, meant)


def _with_text(rows: ChannelRows, again: ChannelRows | None) -> ChannelRows:
    return rows if again is None else replace(rows, text=again.text, rest=again.rest, terms=again.terms)


def _best_rows(
    ranked: list[RankedRows], by_label: dict[str | None, Searched]
) -> dict[Key, tuple[Searched, ChannelRow]]:
    """The row that speaks for each candidate: channels may show different chunks of one record."""
    best: dict[Key, tuple[int, Searched, ChannelRow]] = {}
    for each in ranked:
        for rank, (key, row) in enumerate(each.rows):
            if key not in best or rank < best[key][0]:
                best[key] = (rank, by_label[each.label], row)
    return {key: (searched, row) for key, (_, searched, row) in best.items()}


def _wanted(
    request: SearchRequest, fusion: RetrievalFusionResult, page: Continuation | None
) -> tuple[FusedRetrievalCandidate, ...]:
    if request.reranker is not None:
        return fusion.candidates
    offset = page.offset if page else 0
    return fusion.candidates[offset : offset + request.limit]


def _texts(
    conn: sa.Connection,
    t: Tables,
    wanted: tuple[FusedRetrievalCandidate, ...],
    rows_of: dict[Key, tuple[Searched, ChannelRow]],
) -> dict[Key, HitText]:
    """The texts of the candidates: one statement a collection."""
    by_collection: dict[int, list[tuple[Key, ChannelRow]]] = {}
    for candidate in wanted:
        key = candidate.identity.sort_key()
        searched, row = rows_of[key]
        by_collection.setdefault(searched.row.collection_id, []).append((key, row))
    texts: dict[Key, HitText] = {}
    for collection_id, pairs in by_collection.items():
        hits = [(row.chunk_id, row.record_id, row.revision) for _, row in pairs]
        found = fetch_texts(conn, t, collection_id, hits)
        if any(row.chunk_id not in found for _, row in pairs):
            # Only in a caller's READ COMMITTED transaction; ours read from one snapshot.
            raise Conflict("records were erased or pruned during the search; search again")
        texts |= {key: found[row.chunk_id] for key, row in pairs}
    return texts


_Order = list[tuple[int, float | None]]


def _reranked(request: SearchRequest, found: _Found) -> Steps[tuple[_Order, RerankDiagnostics | None]]:
    """The order in which candidates are shown, as (place in the fused order, score of the reranker)."""
    candidates = found.fusion.candidates
    fused: _Order = [(place, None) for place in range(len(candidates))]
    if request.reranker is None or not candidates:
        return fused, None
    began = time.perf_counter()
    texts = [found.texts[each.identity.sort_key()].text for each in candidates]
    scores = yield from compute(_score, request.reranker, request.query, texts, request.rerank_seconds)
    complete = len(scores) == len(texts)
    diagnostics = RerankDiagnostics(
        model=request.reranker.model,
        scored=len(scores),
        candidates=len(texts),
        applied=complete,
        milliseconds=(time.perf_counter() - began) * 1000,
    )
    if not complete:
        return fused, diagnostics
    order = sorted(range(len(texts)), key=lambda place: (-scores[place], place))
    return [(place, scores[place]) for place in order], diagnostics


def _score(reranker: Reranker, query: str, texts: list[str], seconds: float | None) -> list[float]:
    """Scores in batches, until all are scored or the time is up."""
    deadline = None if seconds is None else time.monotonic() + seconds
    scores: list[float] = []
    for start in range(0, len(texts), RERANK_BATCH):
        if deadline is not None and time.monotonic() > deadline:
            break
        scores += [float(score) for score in reranker.score(query, texts[start : start + RERANK_BATCH])]
    return scores


def _hit(found: _Found, place: int, rerank_score: float | None) -> SearchHit:
    candidate: Any = found.fusion.candidates[place]
    key = candidate.identity.sort_key()
    searched, row = found.rows[key]
    shown = found.texts[key]
    return SearchHit(
        text=shown.text,
        score=candidate.score,
        identity=candidate.identity,
        collection=searched.row.name,
        title=shown.title,
        metadata=shown.metadata,
        record_id=row.record_id,
        revision=row.revision,
        ordinal=row.ordinal,
        start=row.start,
        end=row.end,
        matches=candidate.matches,
        fused_rank=place + 1,
        rerank_score=rerank_score,
    )
