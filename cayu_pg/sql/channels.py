"""Both ranked channels in ONE statement, hence from one snapshot, and the texts of the hits by id in a second.

The statement is built once per shape and cached. Ids and limits are rendered as literals, because a partial index
is only considered for a predicate that the planner can prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import sqlalchemy as sa

from cayu_pg import bm25
from cayu_pg.sql.collections import CollectionRow, Space, has_valid_index
from cayu_pg.sql.lexemes import DIMENSION
from cayu_pg.sql.settings import MAX_EF_SEARCH
from cayu_pg.sql.tables import Tables, quoted

Channel = Literal["vector", "text"]
OPERATORS = {"cosine": "<=>", "inner_product": "<#>", "l2": "<->"}
PER_RECORD_OVERSAMPLING = 4  # chunks fetched from HNSW per record asked for, before the fallback to exact

_TERMS = """
SELECT w.lexeme, i.idf, coalesce(CASE WHEN v.has_newer THEN NULL ELSE s.max_weight END, v.k1 + 1) AS top,
       sum(f.df) OVER (ORDER BY f.df, w.lexeme) <= :budget
           OR row_number() OVER (ORDER BY f.df, w.lexeme) = 1 AS chosen,
       count(*) OVER () AS words
FROM state v
CROSS JOIN unnest(to_tsvector(CAST(:config AS regconfig), :analyzed)) w
LEFT JOIN {schema}.lexeme_statistics s
       ON s.collection_id = :collection_id AND s.version = v.active_statistics AND s.lexeme = w.lexeme
CROSS JOIN LATERAL (SELECT coalesce(s.document_frequency, 0) AS df) f
CROSS JOIN LATERAL (SELECT ln(1 + (greatest(v.chunks, f.df) - f.df + 0.5) / (f.df + 0.5)) AS idf) i
ORDER BY f.df, w.lexeme LIMIT {max_terms}"""

# A word goes into the tsquery as a quoted lexeme, never as the user's syntax.
_QUESTION = """
SELECT (SELECT string_agg('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''', ' | ')
        FROM terms WHERE chosen)::tsquery AS words,
       (SELECT ('{{' || string_agg(d.dimension || ':' || d.idf, ',' ORDER BY d.dimension) || '}}/{dimensions}')
               ::{extension}.sparsevec
        FROM (SELECT {dimension} AS dimension, sum(idf)::real AS idf FROM terms GROUP BY 1) d) AS idf,
       (SELECT coalesce(sum(idf * top), 0) FROM terms WHERE NOT chosen) AS rest,
       (SELECT count(*) FROM terms) AS terms"""


@dataclass(frozen=True)
class Question:
    """What one search asks of the database."""

    vector: str | None
    analyzed: str | None
    candidates: int
    approximate: bool
    per_record: bool = False
    max_distance: float | None = None
    budget: int = bm25.POSTING_BUDGET
    where: sa.ColumnElement[bool] | None = None


@dataclass(frozen=True, slots=True)
class ChannelRow:
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


@dataclass(frozen=True, slots=True)
class ChannelRows:
    """The hits of both channels, and what the statement saw of the collection."""

    active_space_id: int | None
    has_hnsw: bool
    statistics_version: int | None
    rest: float
    terms: int
    approximate_returned: int | None
    vector: list[ChannelRow]
    text: list[ChannelRow]


def fetch_channels(
    conn: sa.Connection, t: Tables, collection: CollectionRow, question: Question
) -> ChannelRows | None:
    """The ranked hits of the channels that `question` names; None when the collection is gone."""
    statement = (
        _cached_statement(t, collection.space, _shape(question))
        if question.where is None
        else _statement(t, collection.space, _shape(question), question.where)
    )
    rows = conn.execute(statement, _binds(collection, question)).all()
    if not rows:
        return None
    first = rows[0]
    hits: dict[str, list[ChannelRow]] = {"vector": [], "text": []}
    for row in rows:
        if row.channel is not None:
            hits[row.channel].append(ChannelRow(bytes(row[15]), *row[7:15]))
    return ChannelRows(
        active_space_id=first.active_space_id,
        has_hnsw=first.has_hnsw,
        statistics_version=first.active_statistics,
        rest=float(first.rest),
        terms=first.terms,
        approximate_returned=first.approximate_returned,
        vector=hits["vector"],
        text=hits["text"],
    )


@dataclass(frozen=True)
class HitText:
    """What is shown of a hit."""

    text: str
    title: str | None
    metadata: dict[str, Any]


def fetch_texts(
    conn: sa.Connection, t: Tables, collection_id: int, hits: Sequence[tuple[int, str, int]]
) -> dict[int, HitText]:
    """Texts by chunk id, for hits given as (chunk id, record id, revision); all rows read are immutable."""
    k, v = t.chunks, t.revisions
    wanted = (
        sa.func.unnest(
            sa.cast(sa.bindparam("chunk_ids"), sa.ARRAY(sa.BigInteger)),
            sa.cast(sa.bindparam("record_ids"), sa.ARRAY(sa.Text)),
            sa.cast(sa.bindparam("revisions"), sa.ARRAY(sa.Integer)),
        )
        .table_valued("chunk_id", "record_id", "revision", name="wanted")
        .render_derived()
    )
    query = (
        sa.select(k.c.chunk_id, k.c.text, v.c.title, v.c.metadata)
        .select_from(wanted)
        .join(k, (k.c.collection_id == collection_id) & (k.c.chunk_id == wanted.c.chunk_id))
        .join(
            v,
            (v.c.collection_id == collection_id)
            & (v.c.record_id == wanted.c.record_id)
            & (v.c.revision == wanted.c.revision),
        )
    )
    binds = {
        "chunk_ids": [hit[0] for hit in hits],
        "record_ids": [hit[1] for hit in hits],
        "revisions": [hit[2] for hit in hits],
    }
    return {row.chunk_id: HitText(row.text, row.title, row.metadata) for row in conn.execute(query, binds)}


def ef_search(question: Question) -> int | None:
    """How far HNSW has to look for `question`; None where it is not used."""
    if not question.approximate or question.vector is None:
        return None
    return min(MAX_EF_SEARCH, _approximate_limit(question.candidates, question.per_record))


@dataclass(frozen=True)
class _Shape:
    vector: bool
    text: bool
    approximate: bool
    per_record: bool
    cut: bool
    candidates: int


def _shape(question: Question) -> _Shape:
    return _Shape(
        vector=question.vector is not None,
        text=question.analyzed is not None,
        approximate=question.approximate,
        per_record=question.per_record,
        cut=question.max_distance is not None,
        candidates=question.candidates,
    )


def _binds(collection: CollectionRow, question: Question) -> dict[str, object]:
    binds: dict[str, object] = dict(collection.key)
    if question.vector is not None and collection.space is not None:
        binds |= {"vector": question.vector, "space_id": collection.space.space_id}
        if question.max_distance is not None:
            binds["max_distance"] = question.max_distance
    if question.analyzed is not None:
        binds |= {
            "analyzed": question.analyzed,
            "config": collection.text_config,
            "budget": question.budget,
        }
    return binds


def _literal(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger, literal_execute=True)


def _approximate_limit(candidates: int, per_record: bool) -> int:
    return candidates * PER_RECORD_OVERSAMPLING if per_record else candidates


@lru_cache(maxsize=256)
def _cached_statement(t: Tables, space: Space | None, shape: _Shape) -> sa.Select[Any]:
    return _statement(t, space, shape, None)


def _statement(
    t: Tables, space: Space | None, shape: _Shape, where: sa.ColumnElement[bool] | None
) -> sa.Select[Any]:
    state = _state(t)
    parts: list[sa.Select[Any]] = []
    named = [state]  # referred to by name in SQL text, so written first and in this order
    rest: sa.ColumnElement[Any] = sa.literal_column("0::float8")
    terms: sa.ColumnElement[Any] = sa.literal_column("0")
    approximate_returned: sa.ColumnElement[Any] = sa.null()
    if shape.vector and space is not None:
        vector, approximate_returned = _vector_hits(t, space, shape, where)
        parts.append(vector)
    if shape.text:
        text, words, question = _text_hits(t, shape, where, state)
        parts.append(text)
        named += [words, question]
        rest = sa.select(question.c.rest).scalar_subquery()
        terms = sa.select(question.c.terms).scalar_subquery()
    hits = _identified(t, parts)
    return (
        sa.select(
            state.c.active_space_id,
            state.c.has_hnsw,
            state.c.active_statistics,
            rest.label("rest"),
            terms.label("terms"),
            approximate_returned.label("approximate_returned"),
            hits.c.channel,
            hits.c.chunk_id,
            hits.c.value,
            hits.c.record_id,
            hits.c.record_type,
            hits.c.current_revision,
            hits.c.ordinal,
            hits.c.start_offset,
            hits.c.end_offset,
            hits.c.content_hash,
        )
        .select_from(state.outerjoin(hits, sa.true()))
        .order_by(hits.c.channel, hits.c.value, hits.c.record_id, hits.c.ordinal)
        .add_cte(*named)
    )


def _state(t: Tables) -> sa.CTE:
    """One row while the collection exists: what the search must know to be sure that it asked the right thing."""
    c, v, k = t.collections, t.statistics_versions, t.chunks
    # max() of a key prefix reads one index entry; EXISTS (newer) would scan where there is none.
    newest = sa.select(sa.func.max(k.c.chunk_id)).where(k.c.collection_id == _literal("collection_id"))
    newer = sa.func.coalesce(newest.scalar_subquery() > v.c.newest_chunk_id, sa.true())
    return (
        sa.select(
            c.c.active_space_id,
            c.c.active_statistics,
            c.c.k1,
            v.c.weights_version,
            sa.func.coalesce(v.c.chunks, 0).label("chunks"),
            newer.label("has_newer"),
            has_valid_index(t, "hnsw_").label("has_hnsw"),
        )
        .select_from(
            c.outerjoin(
                v,
                (v.c.collection_id == _literal("collection_id")) & (v.c.version == c.c.active_statistics),
            )
        )
        .where(c.c.id == _literal("collection_id"), c.c.tenant == sa.bindparam("tenant"))
        .cte("state")
    )


def _vector_hits(
    t: Tables, space: Space, shape: _Shape, where: sa.ColumnElement[bool] | None
) -> tuple[sa.Select[Any], sa.ColumnElement[Any]]:
    distance = _distance(t, space)
    exact = _nearest(t, shape, where, distance)
    if not shape.approximate:
        found = exact.cte("vector_hits")
        return sa.select(sa.literal("vector").label("channel"), found.c.chunk_id, found.c.value), sa.null()
    candidates = _approximate(t, space, shape, where).cte("approximate").prefix_with("MATERIALIZED")
    e = t.chunk_embeddings
    rescored = sa.select(e.c.chunk_id, distance.label("value"), *_group_columns(t, shape)).select_from(
        candidates.join(
            e,
            (e.c.collection_id == _literal("collection_id"))
            & (e.c.space_id == _literal("space_id"))
            & (e.c.chunk_id == candidates.c.chunk_id),
        )
    )
    if shape.per_record:
        rescored = rescored.join(t.chunks, _same_chunk(t.chunks, e))
    near = _best(rescored, shape).cte("rescored").prefix_with("MATERIALIZED")
    returned = sa.select(sa.func.count()).select_from(near).scalar_subquery()
    enough = returned >= sa.literal_column(str(shape.candidates))
    # The same snapshot answers exactly when HNSW, which filters afterwards, came back short.
    fallback = _nearest(t, shape, where, distance, sa.not_(enough)).cte("fallback")
    union = sa.union_all(
        sa.select(near.c.chunk_id, near.c.value).where(enough, *_cut(shape, near.c.value)),
        sa.select(fallback.c.chunk_id, fallback.c.value),
    ).subquery("vector_hits")
    return sa.select(sa.literal("vector").label("channel"), union.c.chunk_id, union.c.value), returned


def _distance(t: Tables, space: Space) -> sa.ColumnElement[Any]:
    asked = sa.cast(sa.bindparam("vector", type_=sa.Text), t.vector())
    return t.chunk_embeddings.c.embedding.op(t.operator(OPERATORS[space.distance]))(asked)


def _eligible(t: Tables) -> list[sa.ColumnElement[bool]]:
    e = t.chunk_embeddings
    return [e.c.collection_id == _literal("collection_id"), e.c.space_id == _literal("space_id"), e.c.current]


def _nearest(
    t: Tables,
    shape: _Shape,
    where: sa.ColumnElement[bool] | None,
    distance: sa.ColumnElement[Any],
    *conditions: sa.ColumnElement[bool],
) -> sa.Select[Any]:
    e, k = t.chunk_embeddings, t.chunks
    query = sa.select(e.c.chunk_id, distance.label("value"), *_group_columns(t, shape)).where(
        *_eligible(t), *conditions, *_cut(shape, distance)
    )
    if shape.per_record or where is not None:
        query = query.join(k, _same_chunk(k, e))
    if where is not None:
        query = query.where(where)
    return _best(query, shape)


def _approximate(
    t: Tables, space: Space, shape: _Shape, where: sa.ColumnElement[bool] | None
) -> sa.Select[Any]:
    """The nearest by HNSW: the very expression and predicate of its index, and nothing to break its order."""
    e, k = t.chunk_embeddings, t.chunks
    half = t.vector("halfvec", space.dimensions)
    asked = sa.cast(sa.bindparam("vector", type_=sa.Text), half)
    order = sa.cast(e.c.embedding, half).op(t.operator(OPERATORS[space.distance]))(asked)
    limit = _approximate_limit(shape.candidates, shape.per_record)
    query = sa.select(e.c.chunk_id).where(*_eligible(t)).order_by(order).limit(sa.literal_column(str(limit)))
    if where is not None:
        query = query.join(k, _same_chunk(k, e)).where(where)
    return query


def _text_hits(
    t: Tables, shape: _Shape, where: sa.ColumnElement[bool] | None, state: sa.CTE
) -> tuple[sa.Select[Any], sa.CTE, sa.CTE]:
    terms, question = _terms(t)
    lexemes, k = t.chunk_lexemes, t.chunks
    idf = sa.select(question.c.idf).scalar_subquery()
    score = lexemes.c.weights.op(t.operator("<#>"))(idf)
    words = sa.select(question.c.words).scalar_subquery()
    query = sa.select(lexemes.c.chunk_id, score.label("value"), *_group_columns(t, shape)).where(
        lexemes.c.collection_id == _literal("collection_id"),
        lexemes.c.weights_version == sa.select(state.c.weights_version).scalar_subquery(),
        lexemes.c.current,
        lexemes.c.tsv.op("@@")(words),
    )
    if shape.per_record or where is not None:
        query = query.join(k, _same_chunk(k, lexemes))
    if where is not None:
        query = query.where(where)
    found = _best(query, shape).cte("text_hits")
    hits = sa.select(sa.literal("text").label("channel"), found.c.chunk_id, found.c.value)
    return hits, terms, question


def _terms(t: Tables) -> tuple[sa.CTE, sa.CTE]:
    terms = (
        _sql(_TERMS.format(schema=quoted(t.schema), max_terms=bm25.MAX_TERMS))
        .bindparams(_literal("collection_id"), sa.bindparam("config"), sa.bindparam("analyzed"))
        .columns(sa.column("lexeme"), sa.column("idf"), sa.column("top"), sa.column("chosen"))
        .cte("terms")
        .prefix_with("MATERIALIZED")
    )
    question = (
        _sql(
            _QUESTION.format(
                dimensions=bm25.DIMENSIONS,
                extension=quoted(t.extension_schema),
                dimension=DIMENSION.format(lexeme="lexeme"),
            )
        )
        .columns(sa.column("words"), sa.column("idf"), sa.column("rest"), sa.column("terms"))
        .cte("question")
        .prefix_with("MATERIALIZED")
    )
    return terms, question


def _sql(statement: str) -> sa.TextClause:
    return sa.text(statement.replace("::", r"\:\:"))


def _same_chunk(k: sa.Table, other: sa.Table) -> sa.ColumnElement[bool]:
    return (k.c.collection_id == _literal("collection_id")) & (k.c.chunk_id == other.c.chunk_id)


def _group_columns(t: Tables, shape: _Shape) -> list[sa.ColumnElement[Any]]:
    return [t.chunks.c.record_id] if shape.per_record else []


def _cut(shape: _Shape, distance: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
    return [distance <= sa.bindparam("max_distance", type_=sa.Double)] if shape.cut else []


def _best(query: sa.Select[Any], shape: _Shape) -> sa.Select[Any]:
    """The first `candidates` by value; per record only the best chunk of each counts."""
    limit: sa.ColumnElement[Any] = sa.literal_column(str(shape.candidates))
    if not shape.per_record:
        return query.order_by(sa.column("value"), sa.column("chunk_id")).limit(limit)
    found = query.subquery()
    place = sa.func.row_number().over(
        partition_by=found.c.record_id, order_by=(found.c.value, found.c.chunk_id)
    )
    best = sa.select(found, place.label("place")).subquery()
    firsts = sa.select(best.c.chunk_id, best.c.value).where(best.c.place == sa.literal_column("1"))
    return firsts.order_by(best.c.value, best.c.chunk_id).limit(limit)


def _identified(t: Tables, parts: list[sa.Select[Any]]) -> sa.Subquery:
    """The hits of all channels with what names them: record, revision and first place in it."""
    k, r, p = t.chunks, t.records, t.revision_chunks
    hits = sa.union_all(*parts).subquery("hits") if parts else _no_hits()
    place = (
        sa.select(p.c.ordinal, p.c.start_offset, p.c.end_offset)
        .where(
            p.c.collection_id == _literal("collection_id"),
            p.c.chunk_id == hits.c.chunk_id,
            p.c.revision == r.c.current_revision,
        )
        .order_by(p.c.ordinal)
        .limit(sa.literal_column("1"))
        .lateral("place")
    )
    return (
        sa.select(
            hits.c.channel,
            hits.c.chunk_id,
            hits.c.value,
            k.c.record_id,
            r.c.record_type,
            r.c.current_revision,
            place.c.ordinal,
            place.c.start_offset,
            place.c.end_offset,
            k.c.content_hash,
        )
        .select_from(hits)
        .join(k, (k.c.collection_id == _literal("collection_id")) & (k.c.chunk_id == hits.c.chunk_id))
        .join(r, (r.c.collection_id == _literal("collection_id")) & (r.c.record_id == k.c.record_id))
        .join(place, sa.true())
        .subquery("identified")
    )


def _no_hits() -> sa.Subquery:
    return (
        sa.select(
            sa.literal("vector").label("channel"),
            sa.cast(sa.null(), sa.BigInteger).label("chunk_id"),
            sa.cast(sa.null(), sa.Double).label("value"),
        )
        .where(sa.false())
        .subquery("hits")
    )
