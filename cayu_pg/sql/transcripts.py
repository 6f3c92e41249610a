"""Transcripts as rows: pages of messages, and what deletes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from cayu_pg.sql.tables import Tables, one_of


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A stored message as the database returns it, the content as JSON; SQL users may have changed it."""

    position: int
    role: str
    content: str
    created_at: datetime
    idempotency_key: str | None


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
    query = sa.select(*message_columns(t)).where(
        m.c.transcript_key == sa.bindparam("transcript_key", type_=m.c.transcript_key.type)
    )
    if begun:
        query = query.where(position < after if reverse else position > after)
    return query.order_by(position.desc() if reverse else position).limit(
        sa.bindparam("limit", type_=sa.Integer)
    )


def message_columns(t: Tables) -> list[sa.ColumnElement[Any]]:
    """The columns of a MessageRow, in its order."""
    m = t.transcript_messages
    # As text: the message is validated from JSON, which is faster than by way of Python's json.
    content = sa.cast(m.c.content, sa.Text).label("content")
    return [m.c.position, m.c.role, content, m.c.created_at, m.c.idempotency_key]


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


def _unnested(places: list[tuple[UUID, int]]) -> sa.TableValuedAlias:
    keys = sa.cast([key for key, _ in places], sa.ARRAY(sa.Uuid))
    positions = sa.cast([position for _, position in places], sa.ARRAY(sa.BigInteger))
    return (
        sa.func.unnest(keys, positions)
        .table_valued("transcript_key", "position", name="named")
        .render_derived()
    )
