"""The vector channel: exact, or by HNSW with candidates scored again, and exact after all where HNSW came back short.

All of it is one part of one statement, so every path sees the same snapshot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BIT

from cayu_pg.sql.shapes import Shape, Where, best, group_columns, literal, number, same_chunk, with_chunks
from cayu_pg.sql.spaces import Space
from cayu_pg.sql.tables import Tables

OPERATORS = {"cosine": "<=>", "inner_product": "<#>", "l2": "<->"}


class VectorPart(NamedTuple):
    """The hits, and how they were found: the eligible chunks if counted, and how many HNSW returned if asked."""

    hits: sa.Select[Any]
    eligible: sa.ColumnElement[Any]
    returned: sa.ColumnElement[Any]


def vector_part(t: Tables, space: Space, shape: Shape, where: Where) -> VectorPart:
    """(chunk_id, value) of the nearest chunks, value ascending."""
    if not shape.approximate:
        return VectorPart(_named(_exact(t, space, shape, where).cte("vector_hits")), sa.null(), sa.null())
    eligible = None if where is None else _eligible_count(t, shape, where)
    many = [] if eligible is None else [eligible > number(shape.exact_below)]
    candidates = _approximate(t, space, shape, where, many).cte("approximate").prefix_with("MATERIALIZED")
    near = _rescored(t, space, shape, candidates).cte("rescored").prefix_with("MATERIALIZED")
    returned = sa.select(sa.func.count()).select_from(near).scalar_subquery()
    enough = returned >= number(shape.candidates)
    fallback = _exact(t, space, shape, where, sa.not_(enough)).cte("fallback")
    union = sa.union_all(
        sa.select(near.c.chunk_id, near.c.value).where(enough, *_cut(shape, near.c.value)),
        sa.select(fallback.c.chunk_id, fallback.c.value),
    ).subquery("vector_hits")
    return VectorPart(_named(union), sa.null() if eligible is None else eligible, returned)


def halfvec_expression(t: Tables, column: sa.ColumnElement[Any], dimensions: int) -> sa.ColumnElement[Any]:
    """What the HNSW index of an ordinary space holds."""
    return sa.cast(column, t.vector("halfvec", dimensions))


def binary_expression(t: Tables, column: sa.ColumnElement[Any], dimensions: int) -> sa.ColumnElement[Any]:
    """What the HNSW index of a binary space holds: the sign of each number."""
    quantize: sa.ColumnElement[Any] = sa.sql.functions.Function(
        "binary_quantize", column, packagenames=(t.extension_schema,)
    )
    return sa.cast(quantize, BIT(dimensions))


def _named(hits: sa.FromClause) -> sa.Select[Any]:
    return sa.select(sa.literal("vector").label("channel"), hits.c.chunk_id, hits.c.value)


def _asked(t: Tables) -> sa.ColumnElement[Any]:
    return sa.cast(sa.bindparam("vector", type_=sa.Text), t.vector())


def _distance(t: Tables, space: Space) -> sa.ColumnElement[Any]:
    return t.chunk_embeddings.c.embedding.op(t.operator(OPERATORS[space.distance]))(_asked(t))


def _of_space(t: Tables) -> list[sa.ColumnElement[bool]]:
    e = t.chunk_embeddings
    return [e.c.collection_id == literal("collection_id"), e.c.space_id == literal("space_id")]


def _cut(shape: Shape, distance: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
    return [distance <= sa.bindparam("max_distance", type_=sa.Double)] if shape.cut else []


def _exact(
    t: Tables, space: Space, shape: Shape, where: Where, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    e, distance = t.chunk_embeddings, _distance(t, space)
    query = sa.select(e.c.chunk_id, distance.label("value"), *group_columns(t, shape)).where(
        *_of_space(t), *conditions, *_cut(shape, distance)
    )
    return best(with_chunks(query, t, e, shape, where), shape)


def _eligible_count(t: Tables, shape: Shape, where: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
    """How many chunks pass the filter, counted no further than the decision needs."""
    k = t.chunks
    some = (
        sa.select(k.c.chunk_id)
        .where(k.c.collection_id == literal("collection_id"), k.c.current, where)
        .limit(number(shape.exact_below + 1))
        .subquery()
    )
    counted = sa.select(sa.func.count().label("chunks")).select_from(some)
    return sa.select(counted.cte("eligible").prefix_with("MATERIALIZED").c.chunks).scalar_subquery()


def _approximate(
    t: Tables, space: Space, shape: Shape, where: Where, conditions: list[sa.ColumnElement[bool]]
) -> sa.Select[Any]:
    """The nearest by HNSW: the very expression and predicate of its index, and nothing to break its order."""
    e = t.chunk_embeddings
    order = _index_distance(t, space)
    query = sa.select(e.c.chunk_id).where(*_of_space(t), e.c.current, *conditions)
    if where is not None:
        query = query.join(t.chunks, same_chunk(t.chunks, e)).where(where, t.chunks.c.current)
    return query.order_by(order).limit(number(shape.approximate_limit))


def _index_distance(t: Tables, space: Space) -> sa.ColumnElement[Any]:
    embedding = t.chunk_embeddings.c.embedding
    if space.quantization == "binary":
        hamming = t.operator("<~>")
        asked = binary_expression(t, _asked(t), space.dimensions)
        return binary_expression(t, embedding, space.dimensions).op(hamming)(asked)
    asked = sa.cast(sa.bindparam("vector", type_=sa.Text), t.vector("halfvec", space.dimensions))
    nearness = t.operator(OPERATORS[space.distance])
    return halfvec_expression(t, embedding, space.dimensions).op(nearness)(asked)


def _rescored(t: Tables, space: Space, shape: Shape, candidates: sa.CTE) -> sa.Select[Any]:
    """Candidates by the stored float32 vectors, so that exact and approximate paths order alike."""
    e = t.chunk_embeddings
    same = (
        (e.c.collection_id == literal("collection_id"))
        & (e.c.space_id == literal("space_id"))
        & (e.c.chunk_id == candidates.c.chunk_id)
    )
    query = sa.select(e.c.chunk_id, _distance(t, space).label("value"), *group_columns(t, shape))
    query = query.select_from(candidates.join(e, same))
    return best(with_chunks(query, t, e, shape, None), shape)
