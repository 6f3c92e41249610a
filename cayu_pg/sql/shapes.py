"""The shape of a search statement, and the pieces that both channels are made of.

A statement is built once per shape and cached. Ids and limits are rendered as literals, because a partial index is
only considered for a predicate that the planner can prove.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import sqlalchemy as sa

from cayu_pg.sql.tables import Tables

PER_RECORD_OVERSAMPLING = 4  # chunks fetched from HNSW per record asked for, before the fallback to exact
QUANTIZED_OVERSAMPLING = 4  # chunks fetched by one-bit vectors per candidate, to be scored again
_SCAN_COST_RATIO = 10  # one step of HNSW costs about as much as ten distances of a scan

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
    """The query joined to `chunks` where a filter or the record is needed."""
    if shape.per_record or where is not None:
        query = query.join(t.chunks, same_chunk(t.chunks, other))
    # `current` is in the predicate of the index on metadata.
    return query if where is None else query.where(where, t.chunks.c.current)


def group_columns(t: Tables, shape: Shape) -> list[sa.ColumnElement[Any]]:
    """What hits are grouped by."""
    return [t.chunks.c.record_id] if shape.per_record else []


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
