"""The search pipeline: embed the question, ask the channels in one statement, fuse, rerank, read the texts."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from cayu_pg.asking import Searched, ask_channels, embedded_question
from cayu_pg.continuation import Continuation, check_order, check_state, parse_continuation
from cayu_pg.errors import Conflict
from cayu_pg.features import check_declared
from cayu_pg.fused import FusedRetrievalCandidate, RetrievalFusionResult
from cayu_pg.fusion import WeightedReciprocalRankFusion
from cayu_pg.query import ChannelDiagnostics, RerankDiagnostics, SearchDiagnostics, SearchHit, SearchResult
from cayu_pg.ranked_rows import Key, RankedRows, channel_diagnostics
from cayu_pg.reranking import Reranker
from cayu_pg.search_request import CHANNELS, SearchRequest
from cayu_pg.sql.channels import ChannelRow, HitText, fetch_texts
from cayu_pg.sql.spaces import Maker
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, compute, read
from cayu_pg.tracing import span

log = logging.getLogger(__name__)

RERANK_BATCH = 16  # passages scored between two looks at the clock


@dataclass(frozen=True)
class _Found:
    """What one reading transaction brought: the fused ranking, and each candidate's row and text."""

    fusion: RetrievalFusionResult
    rows: dict[Key, tuple[Searched, ChannelRow]]
    texts: dict[Key, HitText]
    channels: dict[str, ChannelDiagnostics]
    state: str
    now: datetime | None
    milliseconds: float


def search(t: Tables, searched: Sequence[Searched], request: SearchRequest) -> Steps[SearchResult]:
    """The steps of a search: models with no connection held, and one reading transaction."""
    names = [each.row.name for each in searched]
    with span("search", collections=names, limit=request.limit, candidates=request.candidates) as note:
        result = yield from _search(t, searched, request)
        note(hits=len(result.hits), fused=len(result.fusion.candidates))
    taken = result.diagnostics
    log.debug(
        "searched %s: %d hits in %.1f ms, of which model %.1f and database %.1f",
        ", ".join(names),
        len(result.hits),
        taken.total_milliseconds,
        taken.embedding_milliseconds,
        taken.database_milliseconds,
    )
    return result


def _search(t: Tables, searched: Sequence[Searched], request: SearchRequest) -> Steps[SearchResult]:
    began = time.perf_counter()
    check_declared(request.fusion, [each.row.features for each in searched])
    names = [each.row.name for each in searched]
    token = request.continuation
    page = None if token is None else parse_continuation(token, request.digest(names))
    vectors = yield from embedded_question(searched, request)
    embedded = time.perf_counter()
    found = yield from read(_find, t, searched, request, vectors, page)
    order, reranked = yield from _reranked(request, found)
    applied = None if reranked is None else reranked.applied
    if page is not None:
        check_order(page, applied)
    offset = page.offset if page else 0
    shown = order[offset : offset + request.limit]
    more = offset + len(shown) < len(order)
    following = (
        Continuation(request.digest(names), found.state, offset + len(shown), applied, found.now).token()
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
            now=found.now,
            embedding_milliseconds=(embedded - began) * 1000,
            database_milliseconds=found.milliseconds,
            total_milliseconds=(time.perf_counter() - began) * 1000,
        ),
        continuation=following,
    )


def _find(
    conn: sa.Connection,
    t: Tables,
    searched: Sequence[Searched],
    request: SearchRequest,
    vectors: dict[Maker, str],
    page: Continuation | None,
) -> _Found:
    """The channels of every collection, their fusion, and the texts of the candidates that may be shown."""
    with span("channels", collections=[each.row.name for each in searched]) as note:
        asked = ask_channels(conn, t, searched, request, vectors, None if page is None else page.now)
        diagnostics = {
            each.channel.channel: channel_diagnostics(each, request, asked.milliseconds)
            for each in asked.ranked
        }
        note(**_counted(diagnostics))
    if page is not None:
        check_state(page, asked.state)
    channels = tuple(each.channel for each in asked.ranked)
    fusion = WeightedReciprocalRankFusion().fuse_validated(
        channels, request.fusion_of(tuple(each.channel for each in channels))
    )
    rows_of = _best_rows(asked.ranked, {each.label: each for each in searched})
    texts = _texts(conn, t, _wanted(request, fusion, page), rows_of)
    return _Found(fusion, rows_of, texts, diagnostics, asked.state, asked.now, asked.milliseconds)


def _counted(channels: dict[str, ChannelDiagnostics]) -> dict[str, object]:
    """What a span says of the vector and of the text channels, those of all collections together.

    One statement asks both, so neither has a time of its own.
    """
    facts: dict[str, object] = {}
    for kind in CHANNELS:
        asked = [each for name, each in channels.items() if name.partition(":")[0] == kind]
        if asked:
            eligible = [each.eligible for each in asked if each.eligible is not None]
            facts[f"{kind}.returned"] = sum(each.returned for each in asked)
            facts[f"{kind}.eligible"] = sum(eligible) if len(eligible) == len(asked) else None
            facts[f"{kind}.path"] = ", ".join(sorted({each.path for each in asked}))
            facts[f"{kind}.truncated"] = any(each.truncated for each in asked)
    return facts


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
    with span("rerank", model=reranker.model, candidates=len(texts)) as note:
        for start in range(0, len(texts), RERANK_BATCH):
            if deadline is not None and time.monotonic() > deadline:
                break
            scores += [float(score) for score in reranker.score(query, texts[start : start + RERANK_BATCH])]
        note(scored=len(scores))
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
        features=candidate.features,
        fused_rank=place + 1,
        rerank_score=rerank_score,
    )
