"""Both ranked channels in ONE statement, hence from one snapshot, and the texts of the hits by id in a second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from cayu_pg.bm25 import NO_THRESHOLD, POSTING_BUDGET, WIDENING
from cayu_pg.features import Signals, signals
from cayu_pg.sql.collections import CollectionRow, has_valid_index, hnsw_name
from cayu_pg.sql.identified import identified, now
from cayu_pg.sql.settings import MAX_EF_SEARCH
from cayu_pg.sql.shapes import Shape, Where, exact_below, literal
from cayu_pg.sql.spaces import Space
from cayu_pg.sql.tables import Tables
from cayu_pg.sql.text_channel import text_part
from cayu_pg.sql.vector_channel import vector_part
from cayu_pg.text_query import Clause

Channel = Literal["vector", "text"]


@dataclass(frozen=True)
class Question:
    """What one search asks of the database: `vector` as pgvector reads it, `analyzed` as to_tsvector does.

    `clauses` say which words a passage must hold; `threshold` is a score that further
    words must be able to reach; `corrections` are lexemes that are scored beside those of the text.
    `as_of` is the sequence of the write after which to look, None the present. `signals` names the keys of metadata
    to be read with the hits for their features, None where the collection declares none.
    """

    vector: str | None
    analyzed: str | None
    candidates: int
    approximate: bool
    per_record: bool = False
    max_distance: float | None = None
    budget: int = POSTING_BUDGET
    threshold: float = NO_THRESHOLD
    where: Where = None
    as_of: int | None = None
    clauses: tuple[Clause, ...] = ()
    corrections: tuple[str, ...] = ()
    signals: tuple[str, ...] | None = None


class ChannelRow(NamedTuple):
    """One hit as the database returns it; `value` ascends from the best."""

    content_hash: bytes
    chunk_id: int
    value: float
    record_id: str
    record_type: str
    revision: int
    ordinal: int
    start: int
    end: int
    signals: Signals | None = None


@dataclass(frozen=True, slots=True)
class ChannelRows:
    """The hits of both channels, and what the statement saw of the collection.

    `rest` bounds what the words that chose no candidates could add, `terms` counts the words of the question,
    `unknown` names those that the statistics do not know.
    `eligible` counts what passes the filter, as far as it was counted; `approximate_returned` what HNSW returned.
    `same_features` says whether the collection still declares what its row says; `now` is the time that features are
    measured at, None where there are none.
    """

    active_space_id: int | None
    has_hnsw: bool
    statistics_version: int | None
    sequence: int
    rest: float
    terms: int
    unknown: tuple[str, ...]
    eligible: int | None
    approximate_returned: int | None
    same_features: bool
    now: datetime | None
    vector: list[ChannelRow]
    text: list[ChannelRow]


@dataclass(frozen=True)
class HitText:
    """What is shown of a hit."""

    text: str
    title: str | None
    metadata: dict[str, Any]


def fetch_channels(
    conn: sa.Connection, t: Tables, collection: CollectionRow, question: Question
) -> ChannelRows | None:
    """The ranked hits of the channels that `question` names; None when the collection is gone."""
    build = _cached_statement if question.where is None else _statement
    statement = build(t, collection.space, shape_of(collection, question), question.where)
    rows = conn.execute(statement, _binds(collection, question)).all()
    if not rows:
        return None
    first = rows[0]
    hits: dict[str, list[ChannelRow]] = {"vector": [], "text": []}
    for row in rows:
        if row.channel is not None:
            hits[row.channel].append(_channel_row(row))
    return ChannelRows(
        active_space_id=first.active_space_id,
        has_hnsw=first.has_hnsw,
        statistics_version=first.active_statistics,
        sequence=first.sequence,
        rest=float(first.rest),
        terms=first.terms,
        unknown=tuple(first.unknown or ()),
        eligible=first.eligible,
        approximate_returned=first.approximate_returned,
        same_features=first.same_features,
        now=first.now,
        vector=hits["vector"],
        text=hits["text"],
    )


def _channel_row(row: Sequence[Any]) -> ChannelRow:
    # By position, in the order of `_statement`: names would cost more than the hit.
    hit = ChannelRow(bytes(row[20]), *row[12:20])
    return hit if len(row) == 21 else hit._replace(signals=signals(row[21], row[22]))


def fetch_texts(
    conn: sa.Connection, t: Tables, collection_id: int, hits: Sequence[tuple[int, str, int]]
) -> dict[int, HitText]:
    """Texts by chunk id, for hits given as (chunk id, record id, revision); all rows read are immutable."""
    binds = {
        "collection_id": collection_id,
        "chunk_ids": [hit[0] for hit in hits],
        "record_ids": [hit[1] for hit in hits],
        "revisions": [hit[2] for hit in hits],
    }
    rows = conn.execute(_text_statement(t), binds)
    return {chunk_id: HitText(*shown) for chunk_id, *shown in rows}


@lru_cache(maxsize=64)
def _text_statement(t: Tables) -> sa.Select[Any]:
    k, v = t.chunks, t.revisions
    collection_id = sa.bindparam("collection_id", type_=sa.BigInteger)
    wanted = (
        sa.func.unnest(
            sa.cast(sa.bindparam("chunk_ids"), sa.ARRAY(sa.BigInteger)),
            sa.cast(sa.bindparam("record_ids"), sa.ARRAY(sa.Text)),
            sa.cast(sa.bindparam("revisions"), sa.ARRAY(sa.Integer)),
        )
        .table_valued("chunk_id", "record_id", "revision", name="wanted")
        .render_derived()
    )
    same_chunk = (k.c.collection_id == collection_id) & (k.c.chunk_id == wanted.c.chunk_id)
    same_revision = (
        (v.c.collection_id == collection_id)
        & (v.c.record_id == wanted.c.record_id)
        & (v.c.revision == wanted.c.revision)
    )
    shown = (k.c.chunk_id, k.c.text, v.c.title, v.c.metadata)
    return sa.select(*shown).select_from(wanted).join(k, same_chunk).join(v, same_revision)


def sample_vectors(conn: sa.Connection, t: Tables, collection: CollectionRow, count: int) -> list[str]:
    """Up to `count` stored vectors of the active space, the same ones each time, spread over the collection."""
    e, space = t.chunk_embeddings, collection.space
    if space is None:
        return []
    spread = sa.func.md5(sa.cast(e.c.chunk_id, sa.Text))
    query = (
        sa.select(sa.cast(e.c.embedding, sa.Text))
        .where(e.c.collection_id == collection.collection_id, e.c.space_id == space.space_id, e.c.current)
        .order_by(spread, e.c.chunk_id)
        .limit(count)
    )
    return list(conn.scalars(query))


def ef_search(collection: CollectionRow, question: Question) -> int | None:
    """How far HNSW has to look for `question`; None where it is not used."""
    if not question.approximate or question.vector is None:
        return None
    return min(MAX_EF_SEARCH, shape_of(collection, question).approximate_limit)


def shape_of(collection: CollectionRow, question: Question) -> Shape:
    """The shape of the statement that asks `question`."""
    space = collection.space
    filtered = question.approximate and question.where is not None
    return Shape(
        vector=question.vector is not None and space is not None,
        text=question.analyzed is not None,
        approximate=question.approximate,
        quantized=space is not None and space.quantization != "none",
        per_record=question.per_record,
        cut=question.max_distance is not None,
        clauses=bool(question.clauses),
        as_of=question.as_of is not None,
        signals=question.signals is not None,
        candidates=question.candidates,
        exact_below=exact_below(collection.chunks, question.candidates) if filtered else 0,
    )


def _binds(collection: CollectionRow, question: Question) -> dict[str, object]:
    binds: dict[str, object] = {**collection.key, "features": json.dumps(collection.features)}
    if question.signals is not None:
        binds["signals"] = list(question.signals)
    if question.vector is not None and collection.space is not None:
        binds |= {"vector": question.vector, "space_id": collection.space.space_id}
        if question.max_distance is not None:
            binds["max_distance"] = question.max_distance
    if question.as_of is not None:
        binds["as_of"] = question.as_of
    if question.analyzed is not None:
        binds |= _text_binds(collection, question)
    return binds


def _text_binds(collection: CollectionRow, question: Question) -> dict[str, object]:
    binds: dict[str, object] = {
        "analyzed": question.analyzed,
        "config": collection.text_config,
        "budget": question.budget,
        "threshold": question.threshold,
        "most_postings": question.budget * WIDENING,
        "corrections": list(question.corrections),
    }
    if question.clauses:
        binds |= {
            "groups": [each.group for each in question.clauses],
            "clauses": [each.text for each in question.clauses],
            "phrases": [each.phrase for each in question.clauses],
            "exclusions": [each.excluded for each in question.clauses],
        }
    return binds


def _statement(t: Tables, space: Space | None, shape: Shape, where: Where) -> sa.Select[Any]:
    state = _state(t, shape)
    parts: list[sa.Select[Any]] = []
    named = [state]  # referred to by name in SQL text, so written first and in this order
    rest: sa.ColumnElement[Any] = sa.literal_column("0")
    terms: sa.ColumnElement[Any] = sa.literal_column("0")
    unknown: sa.ColumnElement[Any] = sa.null()
    eligible: sa.ColumnElement[Any] = sa.null()
    returned: sa.ColumnElement[Any] = sa.null()
    if shape.vector and space is not None:
        nearest, eligible, returned = vector_part(t, space, shape, where)
        parts.append(nearest)
    if shape.text:
        text, of_text, question = text_part(t, shape, where, state)
        parts.append(text)
        named += of_text
        rest = sa.select(question.c.rest).scalar_subquery()
        terms = sa.select(question.c.terms).scalar_subquery()
        unknown = sa.select(question.c.unknown).scalar_subquery()
    hits = identified(t, parts, shape)
    return (
        sa.select(
            state.c.active_space_id,
            state.c.has_hnsw,
            state.c.active_statistics,
            state.c.sequence,
            rest.label("rest"),
            terms.label("terms"),
            unknown.label("unknown"),
            eligible.label("eligible"),
            returned.label("approximate_returned"),
            state.c.same_features,
            state.c.now,
            *hits.c,
        )
        .select_from(state.outerjoin(hits, sa.true()))
        .order_by(hits.c.channel, hits.c.value, hits.c.record_id, hits.c.ordinal)
        .add_cte(*named)
    )


_cached_statement = lru_cache(maxsize=256)(_statement)


def _state(t: Tables, shape: Shape) -> sa.CTE:
    """One row while the collection exists: what the search must know to be sure that it asked the right thing."""
    c, v, b = t.collections, t.statistics_versions, t.batches
    last = sa.select(sa.func.max(b.c.sequence)).where(b.c.collection_id == literal("collection_id"))
    sequence = sa.func.coalesce(last.scalar_subquery(), 0)
    # By the order of commits: a chunk with a small id may have been written late, or have come back.
    newer = sa.func.coalesce(sequence > v.c.sequence, sa.true())
    # As text, which Postgres reads exactly, whatever serializer the caller's engine was given.
    declared = sa.cast(sa.bindparam("features", type_=sa.Text), JSONB)
    same_version = (v.c.collection_id == literal("collection_id")) & (v.c.version == c.c.active_statistics)
    return (
        sa.select(
            c.c.active_space_id,
            c.c.active_statistics,
            c.c.k1,
            v.c.weights_version,
            sa.func.coalesce(v.c.chunks, 0).label("chunks"),
            newer.label("has_newer"),
            has_valid_index(t, hnsw_name(t)).label("has_hnsw"),
            sequence.label("sequence"),
            (c.c.features == declared).label("same_features"),
            now(t, shape).label("now"),
        )
        .select_from(c.outerjoin(v, same_version))
        .where(c.c.id == literal("collection_id"), c.c.tenant == sa.bindparam("tenant"))
        .cte("state")
    )
