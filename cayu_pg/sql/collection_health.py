"""What the doctor asks of all collections of a tenant, each in one statement however many there are."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from cayu_pg.sql.model_change import EmbeddingSpace
from cayu_pg.sql.spaces import Space
from cayu_pg.sql.tables import Tables, sql_text

LOOKED_AT = 200_000  # chunks in all
MOST_LOOKED_AT, LEAST_LOOKED_AT = 10_000, 100  # of one collection

# What the statistics counted, with what came and went since, is the number of chunks without counting them.
_COLLECTIONS = """
SELECT c.name, c.text_config, c.analyzer,
       EXISTS (SELECT FROM pg_ts_config f WHERE f.oid::regconfig::text = c.text_config) AS has_text_config,
       coalesce(v.chunks, 0) AS counted, b.added, b.removed,
       s.space_id, s.model, s.dimensions, s.distance, s.quantization
FROM {schema}.collections c
LEFT JOIN {schema}.embedding_spaces s ON s.collection_id = c.id AND s.space_id = c.active_space_id
LEFT JOIN {schema}.statistics_versions v ON v.collection_id = c.id AND v.version = c.active_statistics
CROSS JOIN LATERAL (
    SELECT coalesce(sum(chunks_added), 0)::bigint AS added, coalesce(sum(chunks_removed), 0)::bigint AS removed
    FROM {schema}.batches w WHERE w.collection_id = c.id AND w.sequence > coalesce(v.sequence, 0)) b
WHERE c.tenant = :tenant ORDER BY c.name"""

_SPACES = """
SELECT collection, model, dimensions, state, chunks, embedded FROM {schema}.embedding_progress
WHERE tenant = :tenant AND state = 'building'
UNION ALL
SELECT c.name, s.model, s.dimensions, s.state, 0, 0
FROM {schema}.embedding_spaces s JOIN {schema}.collections c ON c.id = s.collection_id
WHERE c.tenant = :tenant AND s.state = 'retired'
ORDER BY 1, 2"""

_LOST = """
SELECT c.name, count(*) AS looked_at, count(*) FILTER (WHERE NOT k.has_vector) AS without_vector,
       count(*) FILTER (WHERE NOT k.has_words) AS without_words,
       min(k.record_id) FILTER (WHERE NOT (k.has_vector AND k.has_words)) AS example
FROM {schema}.collections c
LEFT JOIN {schema}.statistics_versions v ON v.collection_id = c.id AND v.version = c.active_statistics
CROSS JOIN LATERAL (
    SELECT k.record_id,
           EXISTS (SELECT FROM {schema}.chunk_embeddings e WHERE e.collection_id = k.collection_id
               AND e.chunk_id = k.chunk_id AND e.space_id = c.active_space_id AND e.current) AS has_vector,
           EXISTS (SELECT FROM {schema}.chunk_lexemes l WHERE l.collection_id = k.collection_id
               AND l.chunk_id = k.chunk_id AND l.weights_version = v.weights_version AND l.current) AS has_words
    FROM {schema}.chunks k WHERE k.collection_id = c.id AND k.current
    ORDER BY k.chunk_id DESC LIMIT :most) k
WHERE c.tenant = :tenant GROUP BY c.name ORDER BY c.name"""


class CollectionFacts(NamedTuple):
    """A collection with its active space, and the chunks that its statistics counted, and that came and went since."""

    name: str
    text_config: str
    analyzer: str
    has_text_config: bool
    counted: int
    added: int
    removed: int
    space: Space | None

    @property
    def chunks(self) -> int:
        """How many chunks it has."""
        return self.counted + self.added - self.removed


class LostChunks(NamedTuple):
    """How many of a collection's newest chunks lack what finds them, and a record with such a chunk."""

    looked_at: int
    without_vector: int
    without_words: int
    example: str | None


def collection_facts(conn: sa.Connection, t: Tables, tenant: str) -> list[CollectionFacts]:
    """The tenant's collections by name."""
    rows = conn.execute(sql_text(t, _COLLECTIONS), {"tenant": tenant})
    return [
        CollectionFacts._make([*row[:7], None if row.space_id is None else Space(*row[7:])]) for row in rows
    ]


def idle_spaces(conn: sa.Connection, t: Tables, tenant: str) -> list[tuple[str, EmbeddingSpace]]:
    """The spaces that searches do not use, with their collections; of a retired one nothing is counted."""
    rows = conn.execute(sql_text(t, _SPACES), {"tenant": tenant})
    return [(name, EmbeddingSpace(*space)) for name, *space in rows]


def lost_chunks(conn: sa.Connection, t: Tables, tenant: str, collections: int) -> dict[str, LostChunks]:
    """For each of so many collections, how many of its newest chunks lack vector or words."""
    most = min(MOST_LOOKED_AT, max(LEAST_LOOKED_AT, LOOKED_AT // max(collections, 1)))
    rows = conn.execute(sql_text(t, _LOST), {"tenant": tenant, "most": most})
    return {name: LostChunks(*counts) for name, *counts in rows}
