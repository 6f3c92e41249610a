"""The shape of a search statement, and the pieces that both channels are made of.

A statement is built once per shape and cached. Ids and limits are rendered as literals, because a partial index is
only considered for a predicate that the planner can prove.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from cayu_pg.sql.tables import Tables, sql_text

PER_RECORD_OVERSAMPLING = 4  # chunks fetched from HNSW per record asked for, before the fallback to exact
QUANTIZED_OVERSAMPLING = 4  # chunks fetched by one-bit vectors per candidate, to be scored again
_SCAN_COST_RATIO = 30  # a step of HNSW with a filter costs about as much as so many rows of a scan, measured

Where = sa.ColumnElement[bool] | None


@dataclass(frozen=True)
class Shape:
    """What decides the text of a search statement, as opposed to its binds."""

    vector: bool
    text: bool
    approximate: bool
    quantized: bool
    per_record: bool
    cut: bool
    clauses: bool  # words are required, instead of any of them being enough
    as_of: bool  # what stood at an earlier time, instead of what is current
    signals: bool  # what features are made of is read with the hits
    candidates: int
    exact_below: int  # so few eligible chunks are scanned even where there is an index

    @property
    def approximate_limit(self) -> int:
        """How many chunks HNSW is asked for."""
        records = PER_RECORD_OVERSAMPLING if self.per_record else 1
        return self.candidates * max(records, QUANTIZED_OVERSAMPLING if self.quantized else 1)


def exact_below(chunks: int, candidates: int) -> int:
    """Up to how many eligible of `chunks` chunks a scan is as fast as HNSW, rounded so that statements are reused.

    HNSW with a filter that lets E of N pass visits about candidates * N / E chunks, a scan visits E.
    """
    even = sqrt(_SCAN_COST_RATIO * candidates * max(chunks, 1))
    return min(50_000, max(1_000, int(even) // 1_000 * 1_000))


def literal(name: str) -> sa.BindParameter[int]:
    """A bound integer that is rendered into the statement."""
    return sa.bindparam(name, type_=sa.BigInteger, literal_execute=True)


def number(value: int) -> sa.ColumnElement[Any]:
    """An integer of the shape, as part of the text."""
    return sa.literal_column(str(int(value)))


def same_chunk(k: sa.Table, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """Joins `chunks` to a table or subquery with a chunk id; the collection is named on both sides."""
    return (k.c.collection_id == literal("collection_id")) & (k.c.chunk_id == other.c.chunk_id)


def with_chunks(
    query: sa.Select[Any], t: Tables, other: sa.Table, shape: Shape, where: Where
) -> sa.Select[Any]:
    """The query restricted to what is eligible, and joined to what a filter or the record needs."""
    if shape.as_of:
        past = stood(t)
        query = query.join(past, past.c.chunk_id == other.c.chunk_id)
        return query if where is None else query.where(where)
    query = query.where(other.c.current)
    if shape.per_record or where is not None:
        query = query.join(t.chunks, same_chunk(t.chunks, other))
    # `current` is in the predicate of the index on metadata.
    return query if where is None else query.where(where, t.chunks.c.current)


def group_columns(t: Tables, shape: Shape) -> list[sa.ColumnElement[Any]]:
    """What hits are grouped by."""
    if not shape.per_record:
        return []
    return [(stood(t) if shape.as_of else t.chunks).c.record_id]


_STOOD = """
SELECT DISTINCT ON (p.chunk_id) p.chunk_id, s.record_id, s.record_type, s.revision AS current_revision, s.metadata
FROM (SELECT DISTINCT ON (v.record_id) v.record_id, v.record_type, v.revision, v.metadata
      FROM {schema}.revisions v
      JOIN {schema}.batches b ON b.collection_id = :collection_id AND b.batch_id = v.batch_id
      WHERE v.collection_id = :collection_id AND b.sequence <= :as_of
      ORDER BY v.record_id, v.revision DESC) s
JOIN {schema}.revision_chunks p
     ON p.collection_id = :collection_id AND p.record_id = s.record_id AND p.revision = s.revision
ORDER BY p.chunk_id"""


@lru_cache(maxsize=64)  # one object, so that a filter compiled on it belongs to the statement
def stood(t: Tables) -> sa.CTE:
    """The chunks that stood at the sequence `as_of`, with their record and its metadata of that time.

    A revision that says the record was deleted has no chunks.
    """
    columns: list[sa.ColumnClause[Any]] = [
        sa.column("chunk_id", sa.BigInteger),
        sa.column("record_id", sa.Text),
        sa.column("record_type", sa.Text),
        sa.column("current_revision", sa.Integer),
        sa.column("metadata", JSONB),
    ]
    statement = sql_text(t, _STOOD)
    binds = (literal("collection_id"), sa.bindparam("as_of", type_=sa.BigInteger))
    return statement.bindparams(*binds).columns(*columns).cte("stood").prefix_with("MATERIALIZED")


def best(query: sa.Select[Any], shape: Shape) -> sa.Select[Any]:
    """The first `candidates` by value, ties by chunk; per record only the best chunk of each counts."""
    limit = number(shape.candidates)
    if not shape.per_record:
        return query.order_by(sa.column("value"), sa.column("chunk_id")).limit(limit)
    found = query.subquery()
    place = sa.func.row_number().over(
        partition_by=found.c.record_id, order_by=(found.c.value, found.c.chunk_id)
    )
    ranked = sa.select(found, place.label("place")).subquery()
    firsts = sa.select(ranked.c.chunk_id, ranked.c.value).where(ranked.c.place == number(1))
    return firsts.order_by(ranked.c.value, ranked.c.chunk_id).limit(limit)
