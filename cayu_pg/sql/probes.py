"""Passages of a collection to ask about, the same ones each time."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from cayu_pg.sql.tables import Tables, sql_text

# By the hash, which is spread over the collection as if by lot, and in the order of an index.
_SAMPLE = """
SELECT k.content_hash, k.text, k.record_id, v.title
FROM (
    SELECT DISTINCT ON (content_hash) content_hash, record_id, text
    FROM {schema}.chunks
    WHERE collection_id = :collection_id AND current
    ORDER BY content_hash, record_id
    LIMIT :count) k
JOIN {schema}.records r ON r.collection_id = :collection_id AND r.record_id = k.record_id
JOIN {schema}.revisions v ON v.collection_id = :collection_id AND v.record_id = k.record_id
    AND v.revision = r.current_revision
ORDER BY k.content_hash"""


class SampledChunk(NamedTuple):
    """A current chunk with the title of its record."""

    content_hash: bytes
    text: str
    record_id: str
    title: str | None


def sample_chunks(conn: sa.Connection, t: Tables, collection_id: int, count: int) -> list[SampledChunk]:
    """Up to `count` different texts of current chunks, the same ones while the collection stays as it is."""
    rows = conn.execute(sql_text(t, _SAMPLE), {"collection_id": collection_id, "count": count})
    return [SampledChunk(bytes(row[0]), *row[1:]) for row in rows]
