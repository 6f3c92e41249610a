"""BM25 over messages, with figures taken while the question waits: nothing is stored that could grow old.

A sample of the messages in scope tells how common each word is, and those that seem rare are counted in the index of
words. Common ones are not: the bitmap of a word in a million messages takes 65 ms before the first can be read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TSQUERY

from cayu_pg import bm25
from cayu_pg.message_terms import K1, B, Choice, extrapolated
from cayu_pg.sql.appends import TEXT_CONFIG
from cayu_pg.sql.tables import Tables, one_of, sql_text
from cayu_pg.sql.transcripts import MessageRow, message_columns

SAMPLED = 1_000  # messages, the newest of each transcript that is looked at
SAMPLED_TRANSCRIPTS = 100
SAMPLED_WORDS = 100_000  # long messages count as many
MAX_TRANSCRIPTS = 10_000
COUNTED = 8_000  # messages visited to count words, shared by the words of a question
MOST_COUNTED = 2_000  # of one word
MOST_POSTINGS = bm25.POSTING_BUDGET * 3 // 2  # where a word was thought to be rarer than it is
NEWEST = 500  # to rank 5,000 newest ones takes 40 ms

# A word goes into a tsquery as a quoted lexeme, never as the user's syntax.
_QUOTED = r"('''' || replace(replace(w.lexeme, '\', '\\'), '''', '''''') || '''')"

# `stands_for` is how many messages of its transcript a message in the sample represents. `setweight` and `ts_filter`
# reduce a tsvector to the words asked for in half the time that it takes to unnest all of it.
_STATISTICS = """
WITH words AS MATERIALIZED (
    SELECT w.lexeme, {quoted}::tsquery AS query
    FROM unnest(to_tsvector('{config}', :analyzed)) w ORDER BY w.positions[1], w.lexeme LIMIT {max_terms}
), talks AS MATERIALIZED (
    SELECT t.transcript_key, t.next_position FROM {schema}.transcripts t
    WHERE t.{scope} = :scope ORDER BY t.transcript_key LIMIT :max_transcripts
), held AS MATERIALIZED (
    SELECT t.transcript_key, t.next_position, t.next_position - coalesce(f.first, t.next_position) AS messages
    FROM (SELECT * FROM talks ORDER BY transcript_key LIMIT :sampled_transcripts) t
    CROSS JOIN LATERAL (SELECT min(l.position) AS first FROM {schema}.message_lexemes l
                        WHERE l.transcript_key = t.transcript_key) f
), newest AS (
    SELECT l.tsv, l.length, h.messages::float8 / count(*) OVER (PARTITION BY h.transcript_key) AS stands_for,
           sum(l.length) OVER (ORDER BY l.nth, h.transcript_key) AS words
    FROM held h
    CROSS JOIN LATERAL (SELECT l.tsv, l.length, row_number() OVER (ORDER BY l.position DESC) AS nth
                        FROM {schema}.message_lexemes l WHERE l.transcript_key = h.transcript_key
                        ORDER BY l.position DESC LIMIT :sampled / (SELECT count(*) FROM held)) l
), sample AS MATERIALIZED (
    SELECT n.tsv, n.length, n.stands_for FROM newest n WHERE n.words - n.length <= :sampled_words
), found AS MATERIALIZED (
    SELECT u.lexeme, sum(s.stands_for) AS messages
    FROM sample s,
         unnest(ts_filter(setweight(s.tsv, 'A', (SELECT array_agg(w.lexeme) FROM words w)), '{{a}}')) u
    GROUP BY u.lexeme
), scope AS MATERIALIZED (
    SELECT sum(s.stands_for) AS sampled, sum(s.stands_for * s.length) / sum(s.stands_for) AS average_length,
           count(*) >= h.messages AND h.transcripts = t.transcripts AS whole,
           t.positions * (h.messages / nullif(h.positions, 0)) AS messages, t.transcripts
    FROM (SELECT sum(messages)::float8 AS messages, sum(next_position)::float8 AS positions,
                 count(*) AS transcripts FROM held) h,
         (SELECT sum(next_position)::float8 AS positions, count(*) AS transcripts FROM talks) t,
         sample s
    GROUP BY h.messages, h.positions, h.transcripts, t.positions, t.transcripts
)
SELECT w.lexeme, e.share, c.visited, c.matches, n.most, v.average_length, v.whole, v.messages, v.transcripts,
       (SELECT ('x' || left(t.transcript_key::text, 8))::bit(32)::bigint FROM talks t
        ORDER BY t.transcript_key DESC LIMIT 1) AS last_key
FROM words w
CROSS JOIN scope v
LEFT JOIN found f ON f.lexeme = w.lexeme
CROSS JOIN LATERAL (SELECT coalesce(f.messages, 0) / v.sampled AS share) e
CROSS JOIN LATERAL (SELECT least(:most_counted, :counted / (SELECT count(*) FROM words)) AS most) n
CROSS JOIN LATERAL (
    SELECT count(*) AS visited, count(*) FILTER (WHERE l.{scope} = :scope) AS matches
    FROM (SELECT l.{scope} FROM {schema}.message_lexemes l
          WHERE NOT v.whole AND e.share * v.messages <= :too_common AND l.tsv @@ w.query LIMIT n.most + 1) l) c
ORDER BY w.lexeme"""

# "A" marks the words of the question; those of messages all have the mark "D".
_SCORE = """
SELECT sum(w.idf * f.tf * (:k1 + 1) / (f.tf + :k1 * (1 - :b + :b * chosen.length / :average_length)))
FROM unnest(ts_filter(setweight(chosen.tsv, 'A', CAST(:lexemes AS text[])), '{{a}}')) u,
     LATERAL (SELECT cardinality(u.positions)::float8 AS tf) f,
     LATERAL (SELECT (CAST(:idf AS float8[]))[array_position(CAST(:lexemes AS text[]), u.lexeme)] AS idf) w"""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to search: the column of transcripts, messages and words that has this value."""

    column: Literal["transcript_key", "tenant"]
    value: UUID | str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages a search may return; None leaves a side open. `until` itself is excluded."""

    roles: Sequence[str] | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """In how many of the messages in scope each word of the question is, and how many words a message has."""

    frequencies: dict[str, float]
    messages: float
    average_length: float


@dataclass(frozen=True, slots=True)
class HitRow:
    """A message found by its words."""

    transcript_id: str
    score: float
    message: MessageRow


@dataclass(frozen=True, slots=True)
class Ranked:
    """The best of the messages that were scored; `complete` and `within_reach` say which were left out.

    Not `complete`: older ones with a word of `newest_of`. Not `within_reach`: some with a word of `all_of`, which
    turned out to be in more messages than were to be read.
    """

    hits: list[HitRow]
    complete: bool
    within_reach: bool


def take_statistics(conn: sa.Connection, t: Tables, scope: Scope, analyzed: str) -> Statistics | None:
    """Figures for the words of a text; None when it has none, or the scope no messages."""
    binds = {
        "analyzed": analyzed,
        "scope": scope.value,
        "sampled": SAMPLED,
        "sampled_transcripts": SAMPLED_TRANSCRIPTS,
        "sampled_words": SAMPLED_WORDS,
        "max_transcripts": MAX_TRANSCRIPTS,
        "counted": COUNTED,
        "most_counted": MOST_COUNTED,
        "too_common": bm25.POSTING_BUDGET,
    }
    rows = conn.execute(_statistics_query(t, scope.column), binds).all()
    if not rows:
        return None
    messages = rows[0].messages
    if rows[0].transcripts == MAX_TRANSCRIPTS:
        messages = extrapolated(messages, rows[0].last_key)
    frequencies = {row.lexeme: _frequency(row, messages) for row in rows}
    return Statistics(frequencies, messages, rows[0].average_length or 1.0)


def rank_messages(
    conn: sa.Connection,
    t: Tables,
    scope: Scope,
    choice: Choice,
    average_length: float,
    which: Wanted,
    limit: int,
) -> Ranked:
    """The best of the messages that the words choose."""
    rows = conn.execute(ranking_query(t, scope, choice, average_length, which, limit)).all()
    hits = [HitRow(row.transcript_id, row.score, MessageRow(*row[:5])) for row in rows]
    if not rows:
        return Ranked(hits, complete=True, within_reach=True)
    return Ranked(hits, complete=rows[0].newest < NEWEST, within_reach=rows[0].whole <= MOST_POSTINGS)


def ranking_query(
    t: Tables, scope: Scope, choice: Choice, average_length: float, which: Wanted, limit: int
) -> sa.Select[Any]:
    """The statement of a ranking; words are bound into it, so that the planner knows how rare they are."""
    m, c = t.transcript_messages, t.transcripts
    parts = _chosen(t, scope, choice, which)
    chosen = sa.union_all(*(sa.select(part) for part in parts.values())).subquery("chosen")
    score = _score(t, choice, average_length).label("score")
    ranked = (
        sa.select(chosen.c.transcript_key, chosen.c.position, score)
        .order_by(score.desc(), chosen.c.transcript_key, chosen.c.position.desc())
        .limit(limit)
        .subquery("ranked")
    )
    here = (m.c.transcript_key == ranked.c.transcript_key) & (m.c.position == ranked.c.position)
    # No join: through it the planner once read whole transcripts for one message of each.
    transcript_id = (
        sa.select(c.c.transcript_id)
        .where(c.c.transcript_key == ranked.c.transcript_key)
        .scalar_subquery()
        .label("transcript_id")
    )
    return (
        sa.select(*message_columns(t))
        .add_columns(transcript_id, ranked.c.score)
        .add_columns(*(_size(parts.get(name), name) for name in ("whole", "newest")))
        .select_from(ranked.join(m, here))
        .order_by(ranked.c.score.desc(), transcript_id, m.c.position.desc())
    )


@lru_cache(maxsize=64)
def _statistics_query(t: Tables, column: str) -> sa.TextClause:
    return sql_text(
        t,
        _STATISTICS,
        scope=column,
        config=TEXT_CONFIG,
        quoted=_QUOTED,
        max_terms=bm25.MAX_TERMS,
    )


def _frequency(row: sa.Row[Any], messages: float) -> float:
    """As counted, where all messages with the word could be visited; else as the sample has it, or more."""
    if 0 < row.visited <= row.most:
        return float(row.matches)
    return max(float(row.share) * messages, float(row.matches))


def _chosen(t: Tables, scope: Scope, choice: Choice, which: Wanted) -> dict[str, sa.CTE]:
    lexemes = t.message_lexemes
    parts: dict[str, sa.CTE] = {}
    if choice.all_of:
        query = _matching(t, scope, which).where(_has(lexemes, choice.all_of))
        parts["whole"] = query.limit(MOST_POSTINGS + 1).cte("whole").prefix_with("MATERIALIZED")
    if choice.newest_of:
        parts["newest"] = _newest(t, scope, choice, which).cte("newest").prefix_with("MATERIALIZED")
    return parts


def _newest(t: Tables, scope: Scope, choice: Choice, which: Wanted) -> sa.Select[Any]:
    lexemes = t.message_lexemes
    query = _matching(t, scope, which).where(_has(lexemes, choice.newest_of))
    if choice.all_of:
        query = query.where(~_has(lexemes, choice.all_of))
    # In one transcript times ascend with positions, in the order of its key.
    by_time = [] if scope.column == "transcript_key" else [lexemes.c.created_at.desc()]
    return query.order_by(*by_time, lexemes.c.transcript_key, lexemes.c.position.desc()).limit(NEWEST)


def _matching(t: Tables, scope: Scope, which: Wanted) -> sa.Select[Any]:
    lexemes, m = t.message_lexemes, t.transcript_messages
    query = sa.select(lexemes.c.transcript_key, lexemes.c.position, lexemes.c.tsv, lexemes.c.length).where(
        lexemes.c[scope.column] == scope.value
    )
    conditions = _conditions(m, which)
    if not conditions:
        return query
    here = (m.c.transcript_key == lexemes.c.transcript_key) & (m.c.position == lexemes.c.position)
    return query.join(m, here).where(*conditions)


def _conditions(m: sa.Table, which: Wanted) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if which.roles is not None:
        conditions.append(one_of(m.c.role, which.roles))
    if which.since is not None:
        conditions.append(m.c.created_at >= which.since)
    if which.until is not None:
        conditions.append(m.c.created_at < which.until)
    return conditions


def _has(lexemes: sa.Table, words: Collection[str]) -> sa.ColumnElement[bool]:
    asked = " | ".join(_quoted(word) for word in words)
    return lexemes.c.tsv.bool_op("@@")(sa.cast(sa.literal(asked, sa.Text), TSQUERY))


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def _score(t: Tables, choice: Choice, average_length: float) -> sa.ScalarSelect[Any]:
    binds = {
        "lexemes": list(choice.idf),
        "idf": list(choice.idf.values()),
        "average_length": average_length,
        "k1": K1,
        "b": B,
    }
    return sql_text(t, _SCORE).bindparams(**binds).columns(score=sa.Double).scalar_subquery()


def _size(part: sa.CTE | None, name: str) -> sa.ColumnElement[int]:
    if part is None:
        return sa.literal(0).label(name)
    return sa.select(sa.func.count()).select_from(part).scalar_subquery().label(name)
