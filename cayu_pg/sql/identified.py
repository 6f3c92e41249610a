"""The hits of all channels with what names them, and with what their features are made of."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from cayu_pg.sql.shapes import Shape, literal, number, stood
from cayu_pg.sql.tables import Tables


def identified(t: Tables, parts: list[sa.Select[Any]], shape: Shape) -> sa.Subquery:
    """Each hit with its record, revision and first place in it; with signals, when it changed and some metadata."""
    k, p = t.chunks, t.revision_chunks
    r: sa.FromClause = stood(t) if shape.as_of else t.records
    owner = (
        r.c.chunk_id == k.c.chunk_id
        if shape.as_of
        else (r.c.collection_id == literal("collection_id")) & (r.c.record_id == k.c.record_id)
    )
    hits = sa.union_all(*parts).subquery("hits") if parts else _no_hits()
    place = (
        sa.select(p.c.ordinal, p.c.start_offset, p.c.end_offset)
        .where(
            p.c.collection_id == literal("collection_id"),
            p.c.chunk_id == hits.c.chunk_id,
            p.c.revision == r.c.current_revision,
        )
        .order_by(p.c.ordinal)
        .limit(number(1))
        .lateral("place")
    )
    found = (
        sa.select(
            hits.c.channel,
            hits.c.chunk_id,
            hits.c.value,
            k.c.record_id,
            r.c.record_type,
            r.c.current_revision,
            place.c.ordinal,
            place.c.start_offset,
            place.c.end_offset,
            k.c.content_hash,
        )
        .select_from(hits)
        .join(k, (k.c.collection_id == literal("collection_id")) & (k.c.chunk_id == hits.c.chunk_id))
        .join(r, owner)
        .join(place, sa.true())
    )
    return (_with_signals(t, found, k, r) if shape.signals else found).subquery("identified")


def now(t: Tables, shape: Shape) -> sa.ColumnElement[Any]:
    """The time that features are measured at: that of the statement, or of the last write that is looked at."""
    if not shape.signals:
        return sa.null()
    if not shape.as_of:
        return sa.func.statement_timestamp()
    b = t.batches
    last = (b.c.collection_id == literal("collection_id")) & (
        b.c.sequence == sa.bindparam("as_of", type_=sa.BigInteger)
    )
    return sa.select(b.c.recorded_at).where(last).scalar_subquery()


def _with_signals(t: Tables, found: sa.Select[Any], k: sa.Table, r: sa.FromClause) -> sa.Select[Any]:
    """The hits with the time of their revision, and of its metadata the keys in `signals`, as JSON text."""
    v, b = t.revisions, t.batches
    keys = sa.func.unnest(sa.bindparam("signals", type_=ARRAY(sa.Text))).column_valued("signal")
    wanted = sa.select(sa.func.jsonb_object_agg(keys, v.c.metadata.op("->")(keys))).scalar_subquery()
    metadata = sa.func.coalesce(sa.cast(wanted, sa.Text), sa.literal_column("'{}'"))
    revision = (
        (v.c.collection_id == literal("collection_id"))
        & (v.c.record_id == k.c.record_id)
        & (v.c.revision == r.c.current_revision)
    )
    write = (b.c.collection_id == literal("collection_id")) & (b.c.batch_id == v.c.batch_id)
    return found.add_columns(b.c.recorded_at, metadata.label("signals")).join(v, revision).outerjoin(b, write)


def _no_hits() -> sa.Subquery:
    return (
        sa.select(
            sa.literal("vector").label("channel"),
            sa.cast(sa.null(), sa.BigInteger).label("chunk_id"),
            sa.cast(sa.null(), sa.Double).label("value"),
        )
        .where(sa.false())
        .subquery("hits")
    )
