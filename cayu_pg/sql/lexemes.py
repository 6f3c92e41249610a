"""The words of chunks as rows: tsvector for matching, sparsevec for BM25 in one inner product."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cayu_pg import bm25
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.tables import Tables, sql_text

# The SQL twin of bm25.dimension.
DIMENSION = (
    f"(('x' || left(encode(sha256(convert_to({{lexeme}}, 'UTF8')), 'hex'), 8))::bit(32)::bigint"
    f" % {bm25.DIMENSIONS} + 1)"
)

_WEIGHTS = """
SELECT ('{{' || coalesce(string_agg(d.dimension || ':' || d.weight, ',' ORDER BY d.dimension), '')
        || '}}/{dimensions}')::{extension}.sparsevec
FROM (
    SELECT {dimension} AS dimension,
           sum(f.tf * (:k1 + 1) / (f.tf + :k1 * (1 - :b + :b * {length} / :average)))::real AS weight
    FROM unnest({tsv}) w, LATERAL (SELECT cardinality(w.positions)::float8 AS tf) f
    GROUP BY 1 ORDER BY 2 DESC LIMIT {entries}
) d"""

_INSERT_NEW = """
INSERT INTO {schema}.chunk_lexemes
       (collection_id, chunk_id, weights_version, tenant, current, length, tsv, weights)
SELECT :collection_id, s.chunk_id, :version, :tenant, true, n.length, v.tsv, ({weights})
FROM unnest(CAST(:chunk_ids AS bigint[]), CAST(:texts AS text[])) s (chunk_id, analyzed),
     LATERAL (SELECT to_tsvector(CAST(:config AS regconfig), s.analyzed) AS tsv) v,
     LATERAL (SELECT coalesce(sum(cardinality(w.positions)), 0) AS length FROM unnest(v.tsv) w) n"""

_INSERT_REWEIGHTED = """
INSERT INTO {schema}.chunk_lexemes
       (collection_id, chunk_id, weights_version, tenant, current, length, tsv, weights)
SELECT o.collection_id, o.chunk_id, :version, o.tenant, o.current, o.length, o.tsv, ({weights})
FROM {schema}.chunk_lexemes o
WHERE o.collection_id = :collection_id AND o.weights_version = :old_version"""

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
    conn.execute(
        _weighing(t, _INSERT_NEW, tsv="v.tsv", length="n.length"),
        {**binds, "config": collection.text_config, "chunk_ids": list(chunk_ids), "texts": list(texts)},
    )


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
    template = _INSERT_REWEIGHTED + (_UNLESS_THERE if only_missing else "")
    statement = _weighing(t, template, tsv="o.tsv", length="o.length")
    binds = _binds(collection, version, average)
    return conn.execute(statement, {**binds, "old_version": old_version}).rowcount


def _binds(collection: CollectionRow, version: int, average: float) -> dict[str, object]:
    bm25_of = {"k1": collection.k1, "b": collection.b, "average": average}
    return {**collection.key, **bm25_of, "version": version}


def _weighing(t: Tables, template: str, *, tsv: str, length: str) -> sa.TextClause:
    return sql_text(
        t,
        template.replace("{weights}", _WEIGHTS),
        dimension=DIMENSION.format(lexeme="w.lexeme"),
        dimensions=bm25.DIMENSIONS,
        entries=bm25.MAX_ENTRIES,
        tsv=tsv,
        length=length,
    )
