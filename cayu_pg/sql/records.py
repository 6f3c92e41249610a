"""Records and revisions: what is known of them, how they are read, locked and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from cayu_pg.records import Record, Revision
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.locks import lock_key
from cayu_pg.sql.tables import Tables, one_of, sql_text

_ADD_MISSING = """
INSERT INTO {schema}.records (collection_id, record_id, tenant, record_type, current_revision)
SELECT :collection_id, n.record_id, :tenant, n.record_type, 0
FROM unnest(CAST(:record_ids AS text[]), CAST(:record_types AS text[])) n (record_id, record_type)
ORDER BY n.record_id COLLATE "C"
ON CONFLICT DO NOTHING"""

_MOVE_POINTERS = """
UPDATE {schema}.records r
SET current_revision = n.revision, record_type = n.record_type, deleted_at = NULL
FROM unnest(CAST(:record_ids AS text[]), CAST(:revisions AS integer[]), CAST(:record_types AS text[]))
     n (record_id, revision, record_type)
WHERE r.collection_id = :collection_id AND r.record_id = n.record_id"""

_ADD_TOMBSTONES = """
INSERT INTO {schema}.revisions (collection_id, record_id, revision, tenant, batch_id, record_type, metadata)
SELECT r.collection_id, r.record_id, r.current_revision + 1, r.tenant, :batch_id, r.record_type, '{{}}'
FROM {schema}.records r
WHERE r.collection_id = :collection_id AND r.record_id = ANY(CAST(:record_ids AS text[]))"""

_MARK_DELETED = """
UPDATE {schema}.records r
SET current_revision = r.current_revision + 1, deleted_at = clock_timestamp()
WHERE r.collection_id = :collection_id AND r.record_id = ANY(CAST(:record_ids AS text[]))"""

_FINISH_BATCH = """
INSERT INTO {schema}.batches
       (collection_id, batch_id, tenant, sequence, recorded_at, chunks_added, chunks_removed)
SELECT :collection_id, :batch_id, :tenant, coalesce(max(b.sequence), 0) + 1,
       greatest(clock_timestamp(), max(b.recorded_at) + interval '1 microsecond'), :added, :removed
FROM {schema}.batches b WHERE b.collection_id = :collection_id"""


@dataclass(frozen=True, slots=True)
class KnownRecord:
    """Where a record stands: its revision, and the digest of what it says (None while deleted)."""

    revision: int
    digest: bytes | None


def known_records(
    conn: sa.Connection, t: Tables, collection_id: int, record_ids: Sequence[str], *, lock: bool = False
) -> dict[str, KnownRecord]:
    """What is stored of these records. With `lock` their rows are locked in the order of their ids."""
    r, v = t.records, t.revisions
    if lock:
        conn.execute(
            sa.select(r.c.record_id)
            .where(r.c.collection_id == collection_id, one_of(r.c.record_id, record_ids))
            .order_by(r.c.record_id)
            .with_for_update()
        )
    rows = conn.execute(
        sa.select(r.c.record_id, r.c.current_revision, v.c.digest)
        .select_from(
            r.outerjoin(
                v,
                (v.c.collection_id == r.c.collection_id)
                & (v.c.record_id == r.c.record_id)
                & (v.c.revision == r.c.current_revision),
            )
        )
        .where(r.c.collection_id == collection_id, one_of(r.c.record_id, record_ids))
    )
    return {record_id: KnownRecord(revision, digest) for record_id, revision, digest in rows}


def lock_records(
    conn: sa.Connection, t: Tables, collection: CollectionRow, types: dict[str, str]
) -> dict[str, KnownRecord]:
    """Make sure that the records exist, lock them in the order of their ids, and say where they stand."""
    ids = sorted(types)
    binds = {**collection.key, "record_ids": ids, "record_types": [types[name] for name in ids]}
    conn.execute(sql_text(t, _ADD_MISSING), binds)
    return known_records(conn, t, collection.collection_id, ids, lock=True)


def sequence_at(
    conn: sa.Connection, t: Tables, collection_id: int, as_of: int | datetime
) -> tuple[int, int] | None:
    """The last write at a time or up to a sequence, 0 if there was none, and the horizon of the history.

    None when the collection is gone.
    """
    b, c = t.batches, t.collections
    until = b.c.sequence <= as_of if isinstance(as_of, int) else b.c.recorded_at <= as_of
    last = sa.select(sa.func.max(b.c.sequence)).where(b.c.collection_id == collection_id, until)
    row = conn.execute(
        sa.select(sa.func.coalesce(last.scalar_subquery(), 0), c.c.horizon).where(c.c.id == collection_id)
    ).one_or_none()
    return None if row is None else (int(row[0]), int(row[1]))


def next_batch(conn: sa.Connection, t: Tables) -> int:
    """A key for the write that begins."""
    return int(conn.scalar(sa.select(t.next_of("batch_id_seq"))) or 0)


def finish_batch(
    conn: sa.Connection, t: Tables, collection: CollectionRow, batch_id: int, *, added: int, removed: int
) -> None:
    """Give the write its place in the order of commits.

    The lock makes later numbers become visible later; it is taken last, so that writers hold it for moments.
    """
    key = lock_key("sequence", collection.collection_id)
    conn.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    binds = {**collection.key, "batch_id": batch_id, "added": added, "removed": removed}
    conn.execute(sql_text(t, _FINISH_BATCH), binds)


def move_pointers(
    conn: sa.Connection, t: Tables, collection: CollectionRow, rows: Sequence[tuple[str, int, str]]
) -> None:
    """Point each record, given as (id, revision, type), at its new revision."""
    binds = {
        **collection.key,
        "record_ids": [row[0] for row in rows],
        "revisions": [row[1] for row in rows],
        "record_types": [row[2] for row in rows],
    }
    conn.execute(sql_text(t, _MOVE_POINTERS), binds)


def write_tombstones(
    conn: sa.Connection, t: Tables, collection: CollectionRow, record_ids: Sequence[str], batch_id: int
) -> None:
    """Give each of these records, which are locked, a revision that says it was deleted."""
    binds = {**collection.key, "record_ids": list(record_ids), "batch_id": batch_id}
    conn.execute(sql_text(t, _ADD_TOMBSTONES), binds)
    conn.execute(sql_text(t, _MARK_DELETED), binds)


def read_record(
    conn: sa.Connection, t: Tables, collection_id: int, record_id: str, revision: int | None
) -> Record | None:
    """The record at a revision, or now; None when it does not exist or is deleted."""
    query = _current(t, collection_id) if revision is None else _any_revision(t, collection_id)
    query = query.where(t.revisions.c.record_id == record_id, t.revisions.c.content.is_not(None))
    if revision is not None:
        query = query.where(t.revisions.c.revision == revision)
    row = conn.execute(query).one_or_none()
    return None if row is None else _record(row)


def read_records(
    conn: sa.Connection, t: Tables, collection_id: int, after: str | None, limit: int
) -> list[Record]:
    """Current records in the order of their ids (by bytes), from behind `after`."""
    query = _current(t, collection_id).order_by(t.records.c.record_id).limit(limit)
    if after is not None:
        query = query.where(t.records.c.record_id > after)
    return [_record(row) for row in conn.execute(query)]


def read_texts(conn: sa.Connection, t: Tables, collection_id: int) -> list[str]:
    """The texts of all current records in the order of their ids."""
    query = (
        _current(t, collection_id).with_only_columns(t.revisions.c.content).order_by(t.records.c.record_id)
    )
    return list(conn.scalars(query))


def record_ids_in(
    conn: sa.Connection,
    t: Tables,
    collection_id: int,
    condition: sa.ColumnElement[bool] | None,
    after: str | None,
    limit: int,
) -> list[str]:
    """A page of the ids of current records whose revision meets a condition, in their order."""
    query = _current(t, collection_id).with_only_columns(t.records.c.record_id)
    query = query.order_by(t.records.c.record_id).limit(limit)
    if condition is not None:
        query = query.where(condition)
    if after is not None:
        query = query.where(t.records.c.record_id > after)
    return list(conn.scalars(query))


def read_history(conn: sa.Connection, t: Tables, collection_id: int, record_id: str) -> list[Revision]:
    """Every revision of the record, oldest first; empty when it never existed."""
    v, b = t.revisions, t.batches
    rows = conn.execute(
        _any_revision(t, collection_id)
        .add_columns(b.c.sequence)
        .where(v.c.record_id == record_id)
        .order_by(v.c.revision)
    )
    return [Revision(**_fields(row), deleted=row.content is None, sequence=row.sequence) for row in rows]


def count_records(conn: sa.Connection, t: Tables, collection_id: int) -> int:
    """How many records there are now."""
    r = t.records
    return (
        conn.scalar(
            sa.select(sa.func.count()).where(
                r.c.collection_id == collection_id, r.c.deleted_at.is_(None), r.c.current_revision > 0
            )
        )
        or 0
    )


def _any_revision(t: Tables, collection_id: int) -> sa.Select[Any]:
    v, b = t.revisions, t.batches
    return (
        sa.select(
            v.c.record_id,
            v.c.record_type,
            v.c.revision,
            v.c.title,
            v.c.content,
            v.c.metadata,
            v.c.source,
            v.c.content_hash,
            b.c.recorded_at,
        )
        .join(b, (b.c.collection_id == v.c.collection_id) & (b.c.batch_id == v.c.batch_id))
        .where(v.c.collection_id == collection_id, b.c.collection_id == collection_id)
    )


def _current(t: Tables, collection_id: int) -> sa.Select[Any]:
    r, v = t.records, t.revisions
    return (
        _any_revision(t, collection_id)
        .join(r, (r.c.collection_id == v.c.collection_id) & (r.c.record_id == v.c.record_id))
        .where(
            r.c.collection_id == collection_id,
            r.c.deleted_at.is_(None),
            v.c.revision == r.c.current_revision,
        )
    )


def _record(row: sa.Row[Any]) -> Record:
    return Record(**_fields(row))


def _fields(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "record_id": row.record_id,
        "record_type": row.record_type,
        "revision": row.revision,
        "title": row.title,
        "text": row.content,
        "metadata": row.metadata,
        "source": row.source,
        "content_hash": None if row.content_hash is None else bytes(row.content_hash).hex(),
        "recorded_at": row.recorded_at,
    }
