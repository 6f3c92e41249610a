"""Indexes on request: a partial HNSW and a partial GIN index for each collection large enough to want them.

An index shared by many collections makes a query of one read the entries of all; hundreds of partial ones slow down
planning. So small collections are scanned by key, exactly, and large ones get indexes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.tables import Tables, quoted

MIN_CHUNKS = 5_000  # below it the exact scan by key is as fast
_MOST_DIMENSIONS = {"none": 4_000, "binary": 64_000}  # that HNSW takes of halfvec and of bit
_OPERATOR_CLASSES = {
    "cosine": "halfvec_cosine_ops",
    "inner_product": "halfvec_ip_ops",
    "l2": "halfvec_l2_ops",
}


@dataclass(frozen=True)
class IndexPlan:
    """An index that the collection should have: its name, the DDL, and its state in the database."""

    name: str
    create: str
    exists: bool
    valid: bool


def plan_indexes(
    conn: sa.Connection, t: Tables, collection: CollectionRow, min_chunks: int
) -> list[IndexPlan]:
    """The indexes that a collection of this size wants; none where an exact scan is as fast."""
    if not _has_at_least(conn, t, collection.collection_id, min_chunks):
        return []
    number = collection.collection_id
    wanted = [(f"gin_words_{number}", _gin(t, number)), (f"gin_metadata_{number}", _gin_metadata(t, number))]
    space = collection.space
    if space is not None and space.dimensions <= _MOST_DIMENSIONS[space.quantization]:
        wanted.append((f"hnsw_{collection.collection_id}_{space.space_id}", _hnsw(t, collection)))
    states = _states(conn, t.schema)
    return [
        IndexPlan(
            name, f"CREATE INDEX CONCURRENTLY {quoted(name)} {rest}", name in states, states.get(name, False)
        )
        for name, rest in wanted
    ]


def build_index(conn: sa.Connection, t: Tables, plan: IndexPlan) -> None:
    """Build one index without blocking writers; one that an interrupted build left behind goes first."""
    if plan.exists:
        conn.exec_driver_sql(f"DROP INDEX CONCURRENTLY {quoted(t.schema)}.{quoted(plan.name)}")
    conn.exec_driver_sql(plan.create)


def drop_indexes(conn: sa.Connection, t: Tables, collection_id: int) -> None:
    """Drop the indexes on request of a collection that is deleted."""
    for name in _states(conn, t.schema):
        ours = (f"gin_words_{collection_id}", f"gin_metadata_{collection_id}")
        if name in ours or name.startswith(f"hnsw_{collection_id}_"):
            conn.exec_driver_sql(f"DROP INDEX {quoted(t.schema)}.{quoted(name)}")


def _has_at_least(conn: sa.Connection, t: Tables, collection_id: int, count: int) -> bool:
    k = t.chunks
    some = (
        sa.select(k.c.chunk_id).where(k.c.collection_id == collection_id, k.c.current).limit(count).subquery()
    )
    return (conn.scalar(sa.select(sa.func.count()).select_from(some)) or 0) >= count


def _gin(t: Tables, collection_id: int) -> str:
    return f"ON {quoted(t.schema)}.chunk_lexemes USING gin (tsv) WHERE collection_id = {collection_id:d} AND current"


def _gin_metadata(t: Tables, collection_id: int) -> str:
    return (
        f"ON {quoted(t.schema)}.chunks USING gin (metadata jsonb_path_ops)"
        f" WHERE collection_id = {collection_id:d} AND current"
    )


def _hnsw(t: Tables, collection: CollectionRow) -> str:
    space = collection.space
    assert space is not None
    extension = quoted(t.extension_schema)
    if space.quantization == "binary":
        indexed = f"({extension}.binary_quantize(embedding)::bit({space.dimensions:d}))"
        operators = "bit_hamming_ops"
    else:
        indexed = f"(embedding::{extension}.halfvec({space.dimensions:d}))"
        operators = _OPERATOR_CLASSES[space.distance]
    return (
        f"ON {quoted(t.schema)}.chunk_embeddings USING hnsw ({indexed} {extension}.{operators})"
        f" WHERE collection_id = {collection.collection_id:d} AND space_id = {space.space_id:d} AND current"
    )


def _states(conn: sa.Connection, schema: str) -> dict[str, bool]:
    """Name and validity of every index of the schema."""
    rows = conn.execute(
        sa.text(
            "SELECT x.relname, i.indisvalid FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid"
            " JOIN pg_namespace n ON n.oid = x.relnamespace WHERE n.nspname = :schema"
        ),
        {"schema": schema},
    )
    return {row.relname: row.indisvalid for row in rows}


def analyze_tables(conn: sa.Connection, t: Tables) -> None:
    """Tell the planner what the tables hold now, as autovacuum would in a minute or so.

    A table that somebody else works on is passed over, and so are tables of another owner.
    """
    for table in (t.records, t.revisions, t.revision_chunks, t.chunks, t.chunk_embeddings, t.chunk_lexemes):
        conn.exec_driver_sql(f"ANALYZE (SKIP_LOCKED) {quoted(t.schema)}.{quoted(table.name)}")
