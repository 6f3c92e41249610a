"""Word statistics: which versions a collection has, when the next is due, and how it is computed.

A version pins the number of chunks, the average length and every document frequency, so that equal versions give
equal rankings. Rows of `chunk_lexemes` carry the version whose average length weighted them; a version whose average
is close to that of the last keeps its rows, one whose average drifted writes them anew beside the old ones and flips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.lexemes import average_length, reweight
from cayu_pg.sql.locks import lock_key, lock_weights
from cayu_pg.sql.tables import Tables, sql_text

REFRESH_SHARE = 0.2  # of the counted chunks that may be new before a refresh
DRIFT_SHARE = 0.1  # of the average length
SAMPLE_ABOVE = 3_000_000  # chunks; counting a million takes some 20 s
SAMPLE_SIZE = 1_000_000

_COUNT_LEXEMES = """
INSERT INTO {schema}.lexeme_statistics
       (collection_id, version, lexeme, tenant, document_frequency, max_weight)
SELECT :collection_id, :version, w.lexeme, :tenant, count(*) * :every,
       CASE WHEN :every > 1 THEN :k1 + 1
            ELSE max(f.tf * (:k1 + 1) / (f.tf + :k1 * (1 - :b + :b * l.length / :average))) END
FROM {schema}.chunk_lexemes l, unnest(l.tsv) w,
     LATERAL (SELECT cardinality(w.positions)::float8 AS tf) f
WHERE l.collection_id = :collection_id AND l.weights_version = :weights_version AND l.current
  AND l.chunk_id % :every = 0
GROUP BY w.lexeme"""


@dataclass(frozen=True)
class StatisticsVersion:
    """One version of a collection's word statistics."""

    version: int
    weights_version: int
    chunks: int
    average_length: float
    sequence: int


def active_version(conn: sa.Connection, t: Tables, collection_id: int) -> StatisticsVersion | None:
    """The version that searches use, or None before the first ingest."""
    c, v = t.collections, t.statistics_versions
    row = conn.execute(
        sa.select(
            v.c.version,
            v.c.weights_version,
            v.c.chunks,
            v.c.average_length,
            v.c.sequence,
        )
        .join(c, (c.c.id == v.c.collection_id) & (c.c.active_statistics == v.c.version))
        .where(v.c.collection_id == collection_id)
    ).one_or_none()
    return None if row is None else StatisticsVersion(*row)


def version_to_write(
    conn: sa.Connection, t: Tables, collection: CollectionRow, texts: Sequence[str]
) -> StatisticsVersion:
    """The version whose average weights new chunks; the caller holds the shared lock that keeps it.

    The first ingest starts version 1 from the lengths of its own texts.
    """
    active = active_version(conn, t, collection.collection_id)
    if active is not None:
        return active
    first = StatisticsVersion(1, 1, 0, average_length(conn, collection, texts), 0)
    conn.execute(insert(t.statistics_versions).values(_row(collection, first)).on_conflict_do_nothing())
    conn.execute(
        sa.update(t.collections)
        .where(t.collections.c.id == collection.collection_id, t.collections.c.active_statistics.is_(None))
        .values(active_statistics=1)
    )
    return active_version(conn, t, collection.collection_id) or first


def refresh_is_due(conn: sa.Connection, t: Tables, collection_id: int) -> bool:
    """Whether enough chunks came or went since the active version, as the writes themselves have counted."""
    active = active_version(conn, t, collection_id)
    if active is None:
        return False
    b = t.batches
    changed = sa.select(sa.func.coalesce(sa.func.sum(b.c.chunks_added + b.c.chunks_removed), 0)).where(
        b.c.collection_id == collection_id, b.c.sequence > active.sequence
    )
    return (conn.scalar(changed) or 0) > active.chunks * REFRESH_SHARE


def refresh(conn: sa.Connection, t: Tables, collection: CollectionRow) -> StatisticsVersion | None:
    """Compute the next version and make it the active one; None when somebody else is at it.

    Writers go on meanwhile; they wait only while rows that they wrote during a re-weighting are caught up.
    Raises Conflict when no moment without writers comes for that; then nothing has changed.
    """
    key = lock_key("statistics", collection.collection_id)
    if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(key))):
        return None
    active = active_version(conn, t, collection.collection_id)
    if active is None:
        return None
    following = _measured(conn, t, collection.collection_id, active)
    conn.execute(sa.insert(t.statistics_versions).values(_row(collection, following)))
    if following.weights_version != active.weights_version:
        _rewrite(conn, t, collection, active, following)
    _count_lexemes(conn, t, collection, following)
    _flip(conn, t, collection.collection_id, following)
    return following


def _measured(
    conn: sa.Connection, t: Tables, collection_id: int, active: StatisticsVersion
) -> StatisticsVersion:
    lexemes, b = t.chunk_lexemes, t.batches
    # First, so that a write which commits meanwhile passes for one that was not counted.
    sequence = (
        conn.scalar(sa.select(sa.func.max(b.c.sequence)).where(b.c.collection_id == collection_id)) or 0
    )
    count, average = conn.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.cast(sa.func.avg(lexemes.c.length), sa.Double), 1.0),
        ).where(
            lexemes.c.collection_id == collection_id,
            lexemes.c.weights_version == active.weights_version,
            lexemes.c.current,
        )
    ).one()
    version, average = active.version + 1, max(1.0, average)
    if abs(average / active.average_length - 1) > DRIFT_SHARE:
        return StatisticsVersion(version, version, count, average, sequence)
    kept = (active.weights_version, count, active.average_length, sequence)
    return StatisticsVersion(version, *kept)


def _rewrite(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    active: StatisticsVersion,
    following: StatisticsVersion,
) -> None:
    def write(only_missing: bool) -> int:
        return reweight(
            conn,
            t,
            collection,
            old_version=active.weights_version,
            version=following.version,
            average=following.average_length,
            only_missing=only_missing,
        )

    write(only_missing=False)
    lock_weights(conn, collection.collection_id)
    write(only_missing=True)
    # A chunk retired between the two passes must not stay current in the new rows.
    lexemes, k = t.chunk_lexemes, t.chunks
    conn.execute(
        sa.update(lexemes)
        .where(
            lexemes.c.collection_id == collection.collection_id,
            lexemes.c.weights_version == following.version,
            k.c.collection_id == collection.collection_id,
            k.c.chunk_id == lexemes.c.chunk_id,
            k.c.current != lexemes.c.current,
        )
        .values(current=k.c.current)
    )


def _count_lexemes(
    conn: sa.Connection, t: Tables, collection: CollectionRow, version: StatisticsVersion
) -> None:
    conn.execute(
        sql_text(t, _COUNT_LEXEMES),
        {
            **collection.key,
            "k1": collection.k1,
            "b": collection.b,
            "version": version.version,
            "weights_version": version.weights_version,
            "average": version.average_length,
            "every": _sample_every(version.chunks),
        },
    )


def _sample_every(chunks: int) -> int:
    """Which share of the chunks is counted: all, or every n-th of a very large collection.

    A sample cannot bound the largest weight of a word, so then the bound is that of the formula, k1 + 1.
    """
    return 1 if chunks <= SAMPLE_ABOVE else -(-chunks // SAMPLE_SIZE)


def _flip(conn: sa.Connection, t: Tables, collection_id: int, version: StatisticsVersion) -> None:
    c = t.collections
    conn.execute(sa.update(c).where(c.c.id == collection_id).values(active_statistics=version.version))
    for table in (t.lexeme_statistics, t.statistics_versions):
        conn.execute(
            sa.delete(table).where(table.c.collection_id == collection_id, table.c.version != version.version)
        )
    lexemes = t.chunk_lexemes
    conn.execute(
        sa.delete(lexemes).where(
            lexemes.c.collection_id == collection_id,
            lexemes.c.weights_version != version.weights_version,
        )
    )


def _row(collection: CollectionRow, version: StatisticsVersion) -> dict[str, object]:
    return {
        **collection.key,
        "version": version.version,
        "weights_version": version.weights_version,
        "chunks": version.chunks,
        "average_length": version.average_length,
        "sequence": version.sequence,
    }
