"""The text channel: BM25 as the inner product of a chunk's weights with the question's idf, over GIN candidates.

The rarest words choose candidates until a budget of postings is spent; the others only add to their scores. What
they could add at most is returned beside the hits and tells whether the answer is exact; where it is not, the score
of the last hit is the threshold that says which further words have to choose candidates (MaxScore).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from cayu_pg import bm25
from cayu_pg.sql.lexemes import DIMENSION
from cayu_pg.sql.shapes import Shape, Where, best, group_columns, literal, with_chunks
from cayu_pg.sql.tables import Tables, sql_text

# `left_over` is the most that a word and all commoner ones can add up to: words from the rarest on are chosen while
# that could still lift a chunk above `threshold`, or while their postings are within the budget.
_TERMS = """
SELECT m.lexeme, m.idf, m.top, m.nth = 1 OR m.postings <= :budget
       OR (m.left_over >= :threshold AND m.postings <= :most_postings) AS chosen, m.unknown
FROM (
    SELECT w.lexeme, i.idf, g.top, s.lexeme IS NULL AS unknown, g.df,
           sum(g.df) OVER (ORDER BY g.df, w.lexeme) AS postings,
           sum(i.idf * g.top) OVER (ORDER BY g.df DESC, w.lexeme DESC) AS left_over,
           row_number() OVER (ORDER BY g.df, w.lexeme) AS nth
    FROM state v
    CROSS JOIN (SELECT lexeme FROM unnest(to_tsvector(CAST(:config AS regconfig), :analyzed))
                UNION SELECT unnest(CAST(:corrections AS text[]))) w
    LEFT JOIN {schema}.lexeme_statistics s
           ON s.collection_id = :collection_id AND s.version = v.active_statistics AND s.lexeme = w.lexeme
    CROSS JOIN LATERAL (SELECT coalesce(s.document_frequency, 0) AS df,
                               coalesce(CASE WHEN {uncounted} THEN NULL ELSE s.max_weight END, v.k1 + 1) AS top) g
    CROSS JOIN LATERAL (SELECT ln(1 + (greatest(v.chunks, g.df) - g.df + 0.5) / (g.df + 0.5)) AS idf) i
    ORDER BY g.df, w.lexeme LIMIT {max_terms}) m
ORDER BY m.nth"""

# A word goes into a tsquery as a quoted lexeme, never as the user's syntax.
_QUOTED = """('''' || replace(replace(w.lexeme, '\\', '\\\\'), '''', '''''') || '''')"""

_ANY = """
SELECT string_agg({quoted}, ' | ')::tsquery AS words FROM terms w WHERE w.chosen"""

# Each clause becomes the words of its text, all of them or one after the other with their distances; a clause of stop
# words alone falls away, and so does a group that only excludes, for it would match nearly everything.
_CLAUSES = """
SELECT string_agg('(' || g.words || ')', ' | ')::tsquery AS words
FROM (
    SELECT string_agg(CASE WHEN c.excluded THEN '!(' ELSE '(' END || l.words || ')', ' & ' ORDER BY c.nth) AS words
    FROM unnest(CAST(:groups AS integer[]), CAST(:clauses AS text[]), CAST(:phrases AS boolean[]),
                CAST(:exclusions AS boolean[])) WITH ORDINALITY c (grouped, analyzed, phrase, excluded, nth),
         LATERAL (
            SELECT CASE WHEN c.phrase
                        THEN string_agg(coalesce(' <' || (p.place - p.before) || '> ', '') || p.words, ''
                                        ORDER BY p.place)
                        ELSE string_agg(p.words, ' & ' ORDER BY p.place) END AS words
            FROM (SELECT u.place, lag(u.place) OVER (ORDER BY u.place) AS before,
                         '(' || string_agg({quoted}, ' | ') || ')' AS words
                  FROM unnest(to_tsvector(CAST(:config AS regconfig), c.analyzed)) w, unnest(w.positions) u (place)
                  GROUP BY u.place ORDER BY u.place LIMIT {max_terms}) p) l
    WHERE l.words IS NOT NULL
    GROUP BY c.grouped
    HAVING bool_or(NOT c.excluded)
) g"""

_QUESTION = """
SELECT (SELECT words FROM required) AS words,
       (SELECT ('{{' || string_agg(d.dimension || ':' || d.idf, ',' ORDER BY d.dimension) || '}}/{dimensions}')
               ::{extension}.sparsevec
        FROM (SELECT {dimension} AS dimension, sum(w.idf)::real AS idf FROM terms w GROUP BY 1) d) AS idf,
       {rest} AS rest,
       (SELECT count(*) FROM terms) AS terms,
       (SELECT array_agg(w.lexeme ORDER BY w.lexeme) FROM terms w WHERE w.unknown) AS unknown"""
_REST = "(SELECT coalesce(sum(w.idf * w.top), 0) FROM terms w WHERE NOT w.chosen)"


class TextPart(NamedTuple):
    """The hits, the CTEs that SQL text refers to by name in the order of their writing, and the last of these."""

    hits: sa.Select[Any]
    named: tuple[sa.CTE, ...]
    question: sa.CTE


def text_part(t: Tables, shape: Shape, where: Where, state: sa.CTE) -> TextPart:
    """(chunk_id, value) of the best chunks; value is the score times -1, so that it ascends from the best."""
    question = _question(t, shape)
    lexemes = t.chunk_lexemes
    idf = sa.select(question.c.idf).scalar_subquery()
    score = lexemes.c.weights.op(t.operator("<#>"))(idf)
    query = sa.select(lexemes.c.chunk_id, score.label("value"), *group_columns(t, shape)).where(
        lexemes.c.collection_id == literal("collection_id"),
        lexemes.c.weights_version == sa.select(state.c.weights_version).scalar_subquery(),
        lexemes.c.tsv.op("@@")(sa.select(question.c.words).scalar_subquery()),
    )
    found = best(with_chunks(query, t, lexemes, shape, where), shape).cte("text_hits")
    hits = sa.select(sa.literal("text").label("channel"), found.c.chunk_id, found.c.value)
    return TextPart(hits, (_terms(t, shape), _required(t, shape), question), question)


def _terms(t: Tables, shape: Shape) -> sa.CTE:
    # Largest weights were taken over the chunks that were current when they were counted.
    uncounted = "true" if shape.as_of else "v.has_newer"
    statement = sql_text(t, _TERMS, max_terms=bm25.MAX_TERMS, uncounted=uncounted)
    columns: list[sa.ColumnClause[Any]] = [
        sa.column(name) for name in ("lexeme", "idf", "top", "chosen", "unknown")
    ]
    return (
        statement.bindparams(literal("collection_id"), sa.bindparam("config"), sa.bindparam("analyzed"))
        .columns(*columns)
        .cte("terms")
        .prefix_with("MATERIALIZED")
    )


def _required(t: Tables, shape: Shape) -> sa.CTE:
    template = _CLAUSES if shape.clauses else _ANY
    statement = sql_text(t, template, quoted=_QUOTED, max_terms=bm25.MAX_TERMS)
    return statement.columns(sa.column("words")).cte("required").prefix_with("MATERIALIZED")


def _question(t: Tables, shape: Shape) -> sa.CTE:
    statement = sql_text(
        t,
        _QUESTION,
        dimensions=bm25.DIMENSIONS,
        dimension=DIMENSION.format(lexeme="w.lexeme"),
        # Where clauses choose the candidates, every word of the question adds to every candidate's score.
        rest="0" if shape.clauses else _REST,
    )
    columns: list[sa.ColumnClause[Any]] = [
        sa.column(name) for name in ("words", "idf", "rest", "terms", "unknown")
    ]
    return statement.columns(*columns).cte("question").prefix_with("MATERIALIZED")
