"""Transcripts as rows: pages of messages, search in their words, and what deletes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TSQUERY

from cayu_pg.sql.appends import TEXT_CONFIG
from cayu_pg.sql.tables import Tables, one_of

MAX_TERMS = 64
RANK_NORMALISATION = 1  # divides by 1 + log(length), so that long messages do not win by length alone

# A word goes into the tsquery as a quoted lexeme, never as the user's syntax.
_QUESTION = f"""
SELECT string_agg('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''', ' | ')
FROM (SELECT lexeme FROM unnest(to_tsvector('{TEXT_CONFIG}', :analyzed))
      ORDER BY positions[1], lexeme LIMIT {MAX_TERMS}) terms"""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A stored message as the database returns it, the content as JSON; SQL users may have changed it."""

    position: int
    role: str
    content: str
    created_at: datetime
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class HitRow:
    """A message found by its words."""

    transcript_id: str
    score: float
    message: MessageRow


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages a search may return; None leaves a side open. `until` itself is excluded."""

    roles: Sequence[str] | None = None
    since: datetime | None = None
    until: datetime | None = None


def read_messages(
    conn: sa.Connection, t: Tables, key: UUID, *, after: int | None, limit: int, reverse: bool
) -> list[MessageRow]:
    """A page in reading order from behind the position `after`, or from the end where reading starts."""
    query = _page_query(t, reverse=reverse, begun=after is not None)
    binds = {"transcript_key": key, "after": after, "limit": limit}
    return [MessageRow(*row) for row in conn.execute(query, binds).all()]


@lru_cache(maxsize=64)  # to build it anew took a third of the time of a short page
def _page_query(t: Tables, *, reverse: bool, begun: bool) -> sa.Select[Any]:
    m = t.transcript_messages
    position, after = m.c.position, sa.bindparam("after", type_=sa.BigInteger)
    query = _messages(t).where(
        m.c.transcript_key == sa.bindparam("transcript_key", type_=m.c.transcript_key.type)
    )
    if begun:
        query = query.where(position < after if reverse else position > after)
    return query.order_by(position.desc() if reverse else position).limit(
        sa.bindparam("limit", type_=sa.Integer)
    )


def count_messages(conn: sa.Connection, t: Tables, key: UUID) -> int:
    """How many messages the transcript holds."""
    m = t.transcript_messages
    return conn.execute(
        sa.select(sa.func.count()).select_from(m).where(m.c.transcript_key == key)
    ).scalar_one()


def next_position(conn: sa.Connection, t: Tables, key: UUID) -> int | None:
    """The position of the next message; None when there is no such transcript."""
    query = sa.select(t.transcripts.c.next_position).where(t.transcripts.c.transcript_key == key)
    return conn.execute(query).scalar_one_or_none()


def question(conn: sa.Connection, analyzed: str) -> str | None:
    """A tsquery that any of the words satisfies; None when there is no word in the text."""
    words: str | None = conn.execute(sa.text(_QUESTION), {"analyzed": analyzed}).scalar_one()
    return words


def in_transcript(t: Tables, key: UUID) -> sa.ColumnElement[bool]:
    """Search in one transcript."""
    return t.message_lexemes.c.transcript_key == key


def of_tenant(t: Tables, tenant: str) -> sa.ColumnElement[bool]:
    """Search in all transcripts of a tenant."""
    return t.message_lexemes.c.tenant == tenant


def search_messages(
    conn: sa.Connection,
    t: Tables,
    scope: sa.ColumnElement[bool],
    words: str,
    which: Wanted,
    limit: int,
) -> list[HitRow]:
    """The best messages in a scope for a `question`."""
    rows = conn.execute(search_query(t, scope, words, which, limit)).all()
    return [HitRow(row.transcript_id, row.score, MessageRow(*row[:5])) for row in rows]


def search_query(
    t: Tables, scope: sa.ColumnElement[bool], words: str, which: Wanted, limit: int
) -> sa.Select[Any]:
    """The statement of a search; the words are bound, so that the planner knows how rare they are."""
    m, c = t.transcript_messages, t.transcripts
    ranked = _ranked(t, scope, words, which, limit).subquery("ranked")
    here = (m.c.transcript_key == ranked.c.transcript_key) & (m.c.position == ranked.c.position)
    # No join: through it the planner once read whole transcripts for one message of each.
    transcript_id = (
        sa.select(c.c.transcript_id)
        .where(c.c.transcript_key == ranked.c.transcript_key)
        .scalar_subquery()
        .label("transcript_id")
    )
    return (
        _messages(t)
        .add_columns(transcript_id, ranked.c.score)
        .select_from(ranked.join(m, here))
        .order_by(ranked.c.score.desc(), transcript_id, m.c.position.desc())
    )


def delete_before(conn: sa.Connection, t: Tables, key: UUID, position: int) -> int:
    """Delete the messages in front of a position, their words too; how many there were."""
    m = t.transcript_messages
    return conn.execute(sa.delete(m).where(m.c.transcript_key == key, m.c.position < position)).rowcount


def delete_transcript(conn: sa.Connection, t: Tables, key: UUID) -> bool:
    """Delete a transcript with its messages and idempotency keys; whether there was one."""
    return conn.execute(sa.delete(t.transcripts).where(t.transcripts.c.transcript_key == key)).rowcount > 0


def count_older(conn: sa.Connection, t: Tables, tenant: str, cutoff: datetime) -> int:
    """How many messages of the tenant were written before `cutoff`."""
    m = t.transcript_messages
    query = sa.select(sa.func.count()).select_from(m).where(m.c.tenant == tenant, m.c.created_at < cutoff)
    return conn.execute(query).scalar_one()


def delete_older(conn: sa.Connection, t: Tables, tenant: str, cutoff: datetime, limit: int) -> int | None:
    """Delete at most `limit` messages written before `cutoff`; how many, or None when there are none."""
    m = t.transcript_messages
    # Without an order, so that a batch ends as soon as it is full instead of sorting all that is old.
    old = conn.execute(
        sa.select(m.c.transcript_key, m.c.position)
        .where(m.c.tenant == tenant, m.c.created_at < cutoff)
        .limit(limit)
    ).all()
    if not old:
        return None
    places = sorted((row.transcript_key, row.position) for row in old)
    named = _unnested(places)
    statement = sa.delete(m).where(
        one_of(m.c.transcript_key, {key for key, _ in places}),
        m.c.transcript_key == named.c.transcript_key,
        m.c.position == named.c.position,
        m.c.created_at < cutoff,
    )
    return conn.execute(statement).rowcount


def _messages(t: Tables) -> sa.Select[Any]:
    m = t.transcript_messages
    # As text: the message is validated from JSON, which is faster than by way of Python's json.
    content = sa.cast(m.c.content, sa.Text).label("content")
    return sa.select(m.c.position, m.c.role, content, m.c.created_at, m.c.idempotency_key)


def _ranked(
    t: Tables, scope: sa.ColumnElement[bool], words: str, which: Wanted, limit: int
) -> sa.Select[Any]:
    lexemes, m = t.message_lexemes, t.transcript_messages
    asked = sa.cast(sa.literal(words, sa.Text), TSQUERY)
    score = sa.func.ts_rank(lexemes.c.tsv, asked, RANK_NORMALISATION).label("score")
    query = sa.select(lexemes.c.transcript_key, lexemes.c.position, score).where(
        scope, lexemes.c.tsv.op("@@")(asked)
    )
    conditions = _conditions(m, which)
    if conditions:
        here = (m.c.transcript_key == lexemes.c.transcript_key) & (m.c.position == lexemes.c.position)
        query = query.join(m, here).where(*conditions)
    return query.order_by(score.desc(), lexemes.c.transcript_key, lexemes.c.position.desc()).limit(limit)


def _conditions(m: sa.Table, which: Wanted) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if which.roles is not None:
        conditions.append(one_of(m.c.role, which.roles))
    if which.since is not None:
        conditions.append(m.c.created_at >= which.since)
    if which.until is not None:
        conditions.append(m.c.created_at < which.until)
    return conditions


def _unnested(places: list[tuple[UUID, int]]) -> sa.TableValuedAlias:
    keys = sa.cast([key for key, _ in places], sa.ARRAY(sa.Uuid))
    positions = sa.cast([position for _, position in places], sa.ARRAY(sa.BigInteger))
    return (
        sa.func.unnest(keys, positions)
        .table_valued("transcript_key", "position", name="named")
        .render_derived()
    )
