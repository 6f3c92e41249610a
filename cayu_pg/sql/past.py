"""What changes the past: pruning old revisions, and erasing records for good."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from cayu_pg.records import Piece, PreparedDocument
from cayu_pg.sql.collections import CollectionRow, lock_collection
from cayu_pg.sql.identifiers import quoted
from cayu_pg.sql.locks import lock_weights_shared
from cayu_pg.sql.records import finish_batch, known_records, next_batch
from cayu_pg.sql.tables import Tables, one_of, sql_text

# A revision ends where the next one of its record begins; the current one never ends.
_ENDED = """
SELECT v.record_id, v.revision, n.sequence AS ended
FROM {schema}.revisions v
JOIN {schema}.records r ON r.collection_id = :collection_id AND r.record_id = v.record_id
JOIN {schema}.revisions w ON w.collection_id = :collection_id AND w.record_id = v.record_id
     AND w.revision = v.revision + 1
JOIN {schema}.batches n ON n.collection_id = :collection_id AND n.batch_id = w.batch_id
WHERE v.collection_id = :collection_id AND v.revision < r.current_revision
  AND (CAST(:keep_last AS integer) IS NULL OR v.revision <= r.current_revision - CAST(:keep_last AS integer))
  AND (CAST(:older_than AS timestamptz) IS NULL OR n.recorded_at < CAST(:older_than AS timestamptz))"""

_PRUNE = (
    "WITH ended AS MATERIALIZED ("
    + _ENDED
    + """), gone AS (
    DELETE FROM {schema}.revisions v USING ended e
    WHERE v.collection_id = :collection_id AND v.record_id = e.record_id AND v.revision = e.revision)
SELECT count(*), max(ended) FROM ended"""
)

_DROP_UNPLACED = """
DELETE FROM {schema}.chunks k
WHERE k.collection_id = :collection_id AND NOT k.current
  AND NOT EXISTS (SELECT FROM {schema}.revision_chunks p
                  WHERE p.collection_id = :collection_id AND p.chunk_id = k.chunk_id)"""

_PIECES = """
SELECT p.start_offset, p.end_offset, k.text, k.content_hash
FROM {schema}.revision_chunks p
JOIN {schema}.chunks k ON k.collection_id = :collection_id AND k.chunk_id = p.chunk_id
WHERE p.collection_id = :collection_id AND p.record_id = :record_id AND p.revision = :revision
ORDER BY p.ordinal"""


def prune(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    *,
    keep_last: int | None,
    older_than: datetime | None,
) -> int:
    """Delete revisions that ended, except the last `keep_last` of each record, and chunks that only they held.

    The horizon moves to where the newest of them ended: before it the past is no longer whole. How many went.
    """
    lock_weights_shared(conn, collection.collection_id)
    lock_collection(conn, t, collection)
    binds = {**collection.key, "keep_last": keep_last, "older_than": older_than}
    pruned, horizon = conn.execute(sql_text(t, _PRUNE), binds).one()
    if not pruned:
        return 0
    conn.execute(sql_text(t, _DROP_UNPLACED), collection.key)
    c = t.collections
    conn.execute(
        sa.update(c).where(c.c.id == collection.collection_id, c.c.horizon < horizon).values(horizon=horizon)
    )
    return int(pruned)


def erase(conn: sa.Connection, t: Tables, collection: CollectionRow, record_ids: Sequence[str]) -> int:
    """Delete records with every revision, chunk, vector and word of theirs; how many there were."""
    lock_weights_shared(conn, collection.collection_id)
    lock_collection(conn, t, collection)
    known = known_records(conn, t, collection.collection_id, record_ids, lock=True)
    if not known:
        return 0
    r, k = t.records, t.chunks
    removed = conn.scalar(
        sa.select(sa.func.count()).where(
            k.c.collection_id == collection.collection_id, one_of(k.c.record_id, list(known)), k.c.current
        )
    )
    batch_id = next_batch(conn, t)
    conn.execute(
        sa.delete(r).where(r.c.collection_id == collection.collection_id, one_of(r.c.record_id, list(known)))
    )
    finish_batch(conn, t, collection, batch_id, added=0, removed=removed or 0)
    return len(known)


def vacuum(conn: sa.Connection, t: Tables) -> None:
    """Take deleted rows out of tables and indexes, so that their bytes are no longer there to be found."""
    tables = (
        t.records,
        t.revisions,
        t.revision_chunks,
        t.chunks,
        t.chunk_embeddings,
        t.chunk_lexemes,
        t.lexeme_statistics,
    )
    for table in tables:
        name = f"{quoted(t.schema)}.{quoted(table.name)}"
        conn.exec_driver_sql(f"VACUUM {name}".replace("%", "%%"))  # to the driver it begins a parameter


def read_prepared(
    conn: sa.Connection, t: Tables, collection: CollectionRow, record_id: str, revision: int
) -> PreparedDocument | None:
    """An earlier revision, cut as it was, ready to be written again; None when it is not there or has no text."""
    v = t.revisions
    row = conn.execute(
        sa.select(v).where(
            v.c.collection_id == collection.collection_id,
            v.c.record_id == record_id,
            v.c.revision == revision,
            v.c.content.is_not(None),
        )
    ).one_or_none()
    if row is None:
        return None
    binds = {**collection.key, "record_id": record_id, "revision": revision}
    pieces = conn.execute(sql_text(t, _PIECES), binds)
    return PreparedDocument(
        record_id=record_id,
        record_type=row.record_type,
        title=row.title,
        text=row.content,
        metadata=row.metadata,
        source=row.source,
        content_hash=bytes(row.content_hash),
        digest=bytes(row.digest),
        pieces=tuple(Piece(each[0], each[1], each[2], bytes(each[3])) for each in pieces),
    )
