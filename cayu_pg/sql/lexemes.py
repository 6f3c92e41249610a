"""The words of chunks as rows: tsvector for matching, sparsevec for BM25 in one inner product."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cayu_pg import bm25
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.tables import Tables, sql_text

PAGE = 5_000  # chunks that are weighted again in one statement

# The SQL twin of bm25.dimension.
DIMENSION = (
    f"(('x' || left(encode(sha256(convert_to({{lexeme}}, 'UTF8')), 'hex'), 8))::bit(32)::bigint"
    f" % {bm25.DIMENSIONS} + 1)"
)

# Each different word is hashed once, and rows come and go as sets: twice as fast as a subquery for each chunk.
# Of a chunk with more words than a sparsevec holds, those that weigh most stay: at one length, the most frequent.
_INSERT = """
WITH v AS MATERIALIZED ({rows}),
w AS MATERIALIZED (
    SELECT v.chunk_id, v.length, w.lexeme, cardinality(w.positions)::float8 AS tf
    FROM v, unnest(v.tsv) w WHERE length(v.tsv) <= {entries}
    UNION ALL
    SELECT v.chunk_id, v.length, w.lexeme, w.tf
    FROM v, LATERAL (SELECT lexeme, cardinality(positions)::float8 AS tf
                     FROM unnest(v.tsv) ORDER BY 2 DESC, 1 LIMIT {entries}) w
    WHERE length(v.tsv) > {entries}),
d AS MATERIALIZED (SELECT lexeme, {dimension} AS dimension FROM (SELECT DISTINCT lexeme FROM w) each),
weighed AS (
    SELECT w.chunk_id, d.dimension,
           sum(w.tf * (:k1 + 1) / (w.tf + :k1 * (1 - :b + :b * w.length / :average)))::real AS weight
    FROM w JOIN d ON d.lexeme = w.lexeme GROUP BY 1, 2),
written AS (SELECT chunk_id, string_agg(dimension || ':' || weight, ',') AS entries FROM weighed GROUP BY 1)
INSERT INTO {schema}.chunk_lexemes
       (collection_id, chunk_id, weights_version, tenant, current, length, tsv, weights)
SELECT :collection_id, v.chunk_id, :version, :tenant, v.current, v.length, v.tsv,
       ('{{' || coalesce(written.entries, '') || '}}/{dimensions}')::{extension}.sparsevec
FROM v LEFT JOIN written ON written.chunk_id = v.chunk_id
RETURNING chunk_id"""

# OFFSET 0: the words are taken from the text once, not once for each use of the column.
_NEW_ROWS = """
    SELECT s.chunk_id, true AS current, v.tsv,
           (SELECT coalesce(sum(cardinality(w.positions)), 0) FROM unnest(v.tsv) w) AS length
    FROM unnest(CAST(:chunk_ids AS bigint[]), CAST(:texts AS text[])) s (chunk_id, analyzed),
         LATERAL (SELECT to_tsvector(CAST(:config AS regconfig), s.analyzed) AS tsv OFFSET 0) v"""

_STORED_ROWS = """
    SELECT o.chunk_id, o.current, o.tsv, o.length
    FROM {schema}.chunk_lexemes o
    WHERE o.collection_id = :collection_id AND o.weights_version = :old_version AND o.chunk_id > :after{unless}
    ORDER BY o.chunk_id LIMIT :page"""

# OFFSET 0 keeps it a look-up by key: as a join it was quadratic on tables that nobody had analyzed yet.
_UNLESS_THERE = """
      AND NOT EXISTS (SELECT FROM {schema}.chunk_lexemes n WHERE n.collection_id = :collection_id
                      AND n.chunk_id = o.chunk_id AND n.weights_version = :version OFFSET 0)"""

_AVERAGE = """
SELECT avg(n.length)
FROM unnest(CAST(:texts AS text[])) s (analyzed),
     LATERAL (SELECT coalesce(sum(cardinality(w.positions)), 0) AS length
              FROM unnest(to_tsvector(CAST(:config AS regconfig), s.analyzed)) w) n"""


def average_length(conn: sa.Connection, collection: CollectionRow, texts: Sequence[str]) -> float:
    """Mean number of words of analyzed texts, at least 1."""
    binds = {"texts": list(texts), "config": collection.text_config}
    return max(1.0, float(conn.scalar(sa.text(_AVERAGE), binds) or 0))


def insert_lexemes(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    *,
    version: int,
    average: float,
    chunk_ids: Sequence[int],
    texts: Sequence[str],
) -> None:
    """Write the words of new chunks, weighted by the average length of statistics version `version`."""
    binds = _binds(collection, version, average)
    given = {"config": collection.text_config, "chunk_ids": list(chunk_ids), "texts": list(texts)}
    conn.execute(_statement(t, _NEW_ROWS), {**binds, **given})


def reweight(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    *,
    old_version: int,
    version: int,
    average: float,
    only_missing: bool,
) -> int:
    """Write rows of `version` beside those of `old_version`, all or those that lack them; how many."""
    statement = _statement(t, _STORED_ROWS.replace("{unless}", _UNLESS_THERE if only_missing else ""))
    binds = {**_binds(collection, version, average), "old_version": old_version, "page": PAGE}
    count = after = 0
    while page := conn.scalars(statement, {**binds, "after": after}).all():
        count, after = count + len(page), max(page)
    return count


def _binds(collection: CollectionRow, version: int, average: float) -> dict[str, object]:
    bm25_of = {"k1": collection.k1, "b": collection.b, "average": average}
    return {**collection.key, **bm25_of, "version": version}


def _statement(t: Tables, rows: str) -> sa.TextClause:
    return sql_text(
        t,
        _INSERT.replace("{rows}", rows),
        dimension=DIMENSION.format(lexeme="lexeme"),
        dimensions=bm25.DIMENSIONS,
        entries=bm25.MAX_ENTRIES,
    )
