"""Chunks as rows: which a record has, and how they leave search and come back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.tables import Tables, one_of, sql_text

_REFRESH_METADATA = """
UPDATE {schema}.chunks k SET metadata = n.metadata
FROM unnest(CAST(:record_ids AS text[]), CAST(:metadata AS jsonb[])) n (record_id, metadata)
WHERE k.collection_id = :collection_id AND k.chunk_id = ANY(CAST(:chunk_ids AS bigint[]))
  AND k.record_id = n.record_id AND k.metadata <> n.metadata"""

_RETIRE = """
UPDATE {schema}.chunks k SET current = false
WHERE k.collection_id = :collection_id AND k.current AND k.record_id = ANY(CAST(:record_ids AS text[]))
  AND k.chunk_id = ANY(ARRAY(
      SELECT p.chunk_id
      FROM {schema}.revision_chunks p
      JOIN unnest(CAST(:record_ids AS text[]), CAST(:revisions AS integer[])) n (record_id, revision)
        ON p.record_id = n.record_id AND p.revision = n.revision
      WHERE p.collection_id = :collection_id))
  AND NOT k.chunk_id = ANY(CAST(:kept AS bigint[]))
RETURNING k.chunk_id"""


def stored_chunks(
    conn: sa.Connection, t: Tables, collection_id: int, keys: Sequence[tuple[str, bytes]]
) -> dict[tuple[str, bytes], tuple[int, bool]]:
    """The chunks, current or not, that records have already: (record id, hash) to (chunk id, current)."""
    k = t.chunks
    rows = conn.execute(
        sa.select(k.c.record_id, k.c.content_hash, k.c.chunk_id, k.c.current).where(
            k.c.collection_id == collection_id,
            one_of(k.c.content_hash, {key[1] for key in keys}),
            one_of(k.c.record_id, {key[0] for key in keys}),
        )
    )
    wanted = set(keys)
    found = {(row.record_id, bytes(row.content_hash)): (row.chunk_id, row.current) for row in rows}
    return {key: value for key, value in found.items() if key in wanted}


def new_chunk_ids(conn: sa.Connection, t: Tables, count: int) -> list[int]:
    """Keys for `count` new chunks."""
    if count == 0:
        return []
    return list(
        conn.scalars(sa.select(t.next_of("chunk_id_seq")).select_from(sa.func.generate_series(1, count)))
    )


def retire_chunks(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    revisions: Mapping[str, int],
    *,
    kept: Sequence[int] = (),
) -> int:
    """Take the chunks of these revisions, by record id, out of search except `kept`; how many."""
    if not revisions:
        return 0
    binds = {
        **collection.key,
        "record_ids": list(revisions),
        "revisions": list(revisions.values()),
        "kept": list(kept),
    }
    retired = list(conn.scalars(sql_text(t, _RETIRE), binds))
    _set_current(conn, t, collection.collection_id, retired, current=False)
    return len(retired)


def revive_chunks(
    conn: sa.Connection, t: Tables, collection: CollectionRow, chunk_ids: Sequence[int]
) -> None:
    """Bring chunks that an earlier revision held back into search."""
    k = t.chunks
    conn.execute(
        sa.update(k)
        .where(k.c.collection_id == collection.collection_id, one_of(k.c.chunk_id, chunk_ids))
        .values(current=True)
    )
    _set_current(conn, t, collection.collection_id, chunk_ids, current=True)


def refresh_metadata(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    metadata: Mapping[str, dict[str, Any]],
    chunk_ids: Sequence[int],
) -> None:
    """Give these chunks the metadata, by record id, of their new revision; rows that have it stay as they are."""
    if not chunk_ids:
        return
    binds = {
        **collection.key,
        "chunk_ids": list(chunk_ids),
        "record_ids": list(metadata),
        "metadata": [json.dumps(each, ensure_ascii=False) for each in metadata.values()],
    }
    conn.execute(sql_text(t, _REFRESH_METADATA), binds)


def _set_current(
    conn: sa.Connection, t: Tables, collection_id: int, chunk_ids: Sequence[int], *, current: bool
) -> None:
    if not chunk_ids:
        return
    for table in (t.chunk_embeddings, t.chunk_lexemes):
        conn.execute(
            sa.update(table)
            .where(
                table.c.collection_id == collection_id,
                one_of(table.c.chunk_id, chunk_ids),
                table.c.current != current,
            )
            .values(current=current)
        )
