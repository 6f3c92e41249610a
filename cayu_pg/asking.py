"""What a search asks of the database: each collection's question, its channels, and their rankings."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg import bm25
from cayu_pg.analysis import analyze
from cayu_pg.bm25 import POSTING_BUDGET
from cayu_pg.embedding import Embedder, check_vectors
from cayu_pg.errors import Conflict, HistoryPruned, NotFound
from cayu_pg.features import CollectionFeature, Measure, metadata_fields, parse_features
from cayu_pg.fitting_embedder import active_embedder
from cayu_pg.ranked_rows import RankedRows, ranked_rows
from cayu_pg.search_request import SearchRequest
from cayu_pg.sql.channels import ChannelRows, Question, ef_search, fetch_channels
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.filters import compile_filter
from cayu_pg.sql.records import sequence_at
from cayu_pg.sql.settings import set_for_search
from cayu_pg.sql.shapes import stood
from cayu_pg.sql.spaces import Maker
from cayu_pg.sql.spelling import corrections
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, compute
from cayu_pg.tracing import span


class StaleCollection(Conflict):
    """A collection changed since it was looked up: another space is active now, or it has other features."""

    def __init__(self, collection: CollectionRow, changed: str) -> None:
        super().__init__(f"the {changed} of {collection.name!r} changed meanwhile; search again")


@dataclass(frozen=True)
class Searched:
    """One collection of a search: what it is called in the channels, its row, and what may embed questions for it."""

    label: str | None
    row: CollectionRow
    embedders: Sequence[Embedder]


@dataclass(frozen=True)
class Asked:
    """The rankings of all channels, and the state of the data that they were made from.

    `now` is the moment that features are measured at, None where no collection declares any.
    """

    questions: list[Question]
    ranked: list[RankedRows]
    state: str
    now: datetime | None
    milliseconds: float


def embedded_question(searched: Sequence[Searched], request: SearchRequest) -> Steps[dict[Maker, str]]:
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


def vector_literal(vector: NDArray[np.float32]) -> str:
    """A vector as pgvector reads it; float32 survives the way there unchanged."""
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _encode(embedder: Embedder, query: str, dimensions: int) -> NDArray[np.float32]:
    with span("embed", kind="query", count=1, model=embedder.model, dimensions=dimensions):
        vectors = check_vectors(
            [embedder.encode_query(query)], count=1, dimensions=dimensions, field="query vector"
        )
    vector: NDArray[np.float32] = vectors[0]
    return vector


def ask_channels(
    conn: sa.Connection,
    t: Tables,
    searched: Sequence[Searched],
    request: SearchRequest,
    vectors: dict[Maker, str],
    now: datetime | None,
) -> Asked:
    """The channels of every collection, ranked; features are measured `now`, else when the search is made."""
    declared = [parse_features(each.row.features, each.row.name) for each in searched]
    questions = [
        _question(t, each, request, vectors, _sequence(conn, t, each.row, request), features)
        for each, features in zip(searched, declared, strict=True)
    ]
    efforts = [ef_search(each.row, question) for each, question in zip(searched, questions, strict=True)]
    set_for_search(
        conn,
        ef_search=max((e for e in efforts if e), default=None),
        timeout_ms=request.timeout_ms,
        filtered=request.where is not None,
    )
    began = time.perf_counter()
    fetched = [
        _fetched(conn, t, each.row, question, fuzzy=request.fuzzy)
        for each, question in zip(searched, questions, strict=True)
    ]
    now = now or max((each.rows.now for each in fetched if each.rows.now), default=None)
    ranked: list[RankedRows] = []
    for each, question, found, features in zip(searched, questions, fetched, declared, strict=True):
        measure = None if now is None or not features else Measure(features, now)
        ranked += ranked_rows(each.label, each.row, request, question, found.rows, found.corrections, measure)
    state = " ".join(_state(each.row, found.rows) for each, found in zip(searched, fetched, strict=True))
    return Asked(questions, ranked, state, now, (time.perf_counter() - began) * 1000)


def _state(row: CollectionRow, rows: ChannelRows) -> str:
    """What the order of the hits depends on in the data; a page that goes on must find the same."""
    state = f"{row.name}@{rows.sequence}.{rows.statistics_version or 0}"
    if not row.features:
        return state
    digest = hashlib.sha256(json.dumps(row.features, sort_keys=True).encode())
    return f"{state}.{digest.hexdigest()[:16]}"


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
    t: Tables,
    each: Searched,
    request: SearchRequest,
    vectors: dict[Maker, str],
    as_of: int | None,
    features: Mapping[str, CollectionFeature],
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
        signals=tuple(metadata_fields(features)) if features else None,
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
        raise StaleCollection(row, "embedding model")
    if not rows.same_features:
        raise StaleCollection(row, "features")
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
