"""The text channel: BM25 as the inner product of a chunk's weights with the question's idf, over GIN candidates.

The rarest words choose candidates until a budget of postings is spent; the others only add to their scores. What
they could add at most is returned beside the hits and tells whether the answer is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from cayu_pg import bm25
from cayu_pg.sql.lexemes import DIMENSION
from cayu_pg.sql.shapes import Shape, Where, best, group_columns, literal, with_chunks
from cayu_pg.sql.tables import Tables, quoted

_TERMS = """
SELECT w.lexeme, i.idf, coalesce(CASE WHEN v.has_newer THEN NULL ELSE s.max_weight END, v.k1 + 1) AS top,
       sum(f.df) OVER (ORDER BY f.df, w.lexeme) <= :budget
           OR row_number() OVER (ORDER BY f.df, w.lexeme) = 1 AS chosen
FROM state v
CROSS JOIN unnest(to_tsvector(CAST(:config AS regconfig), :analyzed)) w
LEFT JOIN {schema}.lexeme_statistics s
       ON s.collection_id = :collection_id AND s.version = v.active_statistics AND s.lexeme = w.lexeme
CROSS JOIN LATERAL (SELECT coalesce(s.document_frequency, 0) AS df) f
CROSS JOIN LATERAL (SELECT ln(1 + (greatest(v.chunks, f.df) - f.df + 0.5) / (f.df + 0.5)) AS idf) i
ORDER BY f.df, w.lexeme LIMIT {max_terms}"""

# A word goes into the tsquery as a quoted lexeme, never as the user's syntax.
_QUESTION = """
SELECT (SELECT string_agg('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''', ' | ')
        FROM terms WHERE chosen)::tsquery AS words,
       (SELECT ('{{' || string_agg(d.dimension || ':' || d.idf, ',' ORDER BY d.dimension) || '}}/{dimensions}')
               ::{extension}.sparsevec
        FROM (SELECT {dimension} AS dimension, sum(idf)::real AS idf FROM terms GROUP BY 1) d) AS idf,
       (SELECT coalesce(sum(idf * top), 0) FROM terms WHERE NOT chosen) AS rest,
       (SELECT count(*) FROM terms) AS terms"""


class TextPart(NamedTuple):
    """The hits, and the CTEs that SQL text refers to by name, in the order in which they must be written."""

    hits: sa.Select[Any]
    terms: sa.CTE
    question: sa.CTE


def text_part(t: Tables, shape: Shape, where: Where, state: sa.CTE) -> TextPart:
    """(chunk_id, value) of the best chunks; value is the score times -1, so that it ascends from the best."""
    terms, question = _terms(t), _question(t)
    lexemes = t.chunk_lexemes
    idf = sa.select(question.c.idf).scalar_subquery()
    score = lexemes.c.weights.op(t.operator("<#>"))(idf)
    query = sa.select(lexemes.c.chunk_id, score.label("value"), *group_columns(t, shape)).where(
        lexemes.c.collection_id == literal("collection_id"),
        lexemes.c.weights_version == sa.select(state.c.weights_version).scalar_subquery(),
        lexemes.c.current,
        lexemes.c.tsv.op("@@")(sa.select(question.c.words).scalar_subquery()),
    )
    found = best(with_chunks(query, t, lexemes, shape, where), shape).cte("text_hits")
    hits = sa.select(sa.literal("text").label("channel"), found.c.chunk_id, found.c.value)
    return TextPart(hits, terms, question)


def _terms(t: Tables) -> sa.CTE:
    statement = _sql(_TERMS.format(schema=quoted(t.schema), max_terms=bm25.MAX_TERMS))
    return (
        statement.bindparams(literal("collection_id"), sa.bindparam("config"), sa.bindparam("analyzed"))
        .columns(sa.column("lexeme"), sa.column("idf"), sa.column("top"), sa.column("chosen"))
        .cte("terms")
        .prefix_with("MATERIALIZED")
    )


def _question(t: Tables) -> sa.CTE:
    statement = _QUESTION.format(
        dimensions=bm25.DIMENSIONS,
        extension=quoted(t.extension_schema),
        dimension=DIMENSION.format(lexeme="lexeme"),
    )
    return (
        _sql(statement)
        .columns(sa.column("words"), sa.column("idf"), sa.column("rest"), sa.column("terms"))
        .cte("question")
        .prefix_with("MATERIALIZED")
    )


def _sql(statement: str) -> sa.TextClause:
    return sa.text(statement.replace("::", r"\:\:"))
