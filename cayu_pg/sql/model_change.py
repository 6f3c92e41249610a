"""Filling a second embedding space beside the active one, and going over to it.

Ingests write the vectors of new chunks into both spaces where they have both models; the filling writes all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from cayu_pg.errors import Conflict, InvalidInput, NotFound
from cayu_pg.sql.collections import CollectionRow, add_space, lock_collection, lock_spaces
from cayu_pg.sql.embeddings import Vectors, chunks_without_vector, embedded_hashes, put_vectors
from cayu_pg.sql.locks import lock_key, lock_weights
from cayu_pg.sql.spaces import Maker, Space, spaces_of
from cayu_pg.sql.tables import Tables, one_of, sql_text

SpaceState = Literal["building", "active", "retired"]


@dataclass(frozen=True)
class EmbeddingSpace:
    """A model of a collection's vectors; chunks of earlier revisions count too, for searches of the past need them."""

    model: str
    dimensions: int
    state: SpaceState
    chunks: int
    embedded: int

    @property
    def pending(self) -> int:
        """Chunks that have no vector of this model yet."""
        return self.chunks - self.embedded


@dataclass(frozen=True)
class PendingChunks:
    """Chunks without a vector in a space: pairs of id and hash, and the texts that no chunk's vector there is of."""

    chunks: list[tuple[int, bytes]]
    texts: dict[bytes, str]


def list_spaces(conn: sa.Connection, t: Tables, collection: CollectionRow) -> list[EmbeddingSpace]:
    """The collection's spaces, oldest first."""
    statement = sql_text(
        t,
        "SELECT model, dimensions, state, chunks, embedded FROM {schema}.embedding_progress"
        " WHERE tenant = :tenant AND collection = :name ORDER BY space_id",
    )
    rows = conn.execute(statement, {"tenant": collection.tenant, "name": collection.name})
    return [EmbeddingSpace(*row) for row in rows]


def start_space(conn: sa.Connection, t: Tables, collection: CollectionRow, maker: Maker) -> Space | None:
    """The space to fill for `maker`, one that exists or a new one; None when searches use it already.

    Raises Conflict while the space of another model is being filled.
    """
    active, building = lock_spaces(conn, t, collection)
    if active is not None and active.maker == maker:
        return None
    if building is not None and building.maker != maker:
        raise Conflict(
            f"{collection.name!r} is changing to {building.maker}; finish that, or drop_space({building.model!r})"
        )
    return (
        building
        or _take_up(conn, t, collection, maker)
        or add_space(conn, t, collection, maker, state="building")
    )


def _take_up(conn: sa.Connection, t: Tables, collection: CollectionRow, maker: Maker) -> Space | None:
    """A retired space of that model, whose vectors need not be made again."""
    s = t.embedding_spaces
    row = conn.execute(
        sa.update(s)
        .where(
            s.c.collection_id == collection.collection_id,
            s.c.model == maker.model,
            s.c.dimensions == maker.dimensions,
            s.c.distance == collection.distance,
            s.c.quantization == collection.quantization,
            s.c.state == "retired",
        )
        .values(state="building")
        .returning(s.c.space_id, s.c.model, s.c.dimensions, s.c.distance, s.c.quantization)
    ).one_or_none()
    return None if row is None else Space(*row)


def pending_chunks(
    conn: sa.Connection, t: Tables, collection_id: int, space: Space, *, after: int, limit: int
) -> PendingChunks:
    """The next chunks behind the id `after` that have no vector in the space."""
    k = t.chunks
    rows = conn.execute(
        sa.select(k.c.chunk_id, k.c.content_hash, k.c.text)
        .where(k.c.collection_id == collection_id, k.c.chunk_id > after, _lacks(t, collection_id, space))
        .order_by(k.c.chunk_id)
        .limit(limit)
    ).all()
    texts = {bytes(row.content_hash): row.text for row in rows}
    for hashed in embedded_hashes(conn, t, collection_id, space.space_id, list(texts)):
        del texts[hashed]
    return PendingChunks([(row.chunk_id, bytes(row.content_hash)) for row in rows], texts)


def fill_space(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    space: Space,
    wanting: Sequence[tuple[int, bytes]],
    vectors: Vectors,
) -> int:
    """Write the vectors of chunks that still lack them; how many. Chunks that somebody is changing are passed over.

    Raises Conflict when the space is no longer being filled.
    """
    lock_collection(conn, t, collection)
    conn.execute(sa.select(sa.func.pg_advisory_xact_lock(lock_key("filling", collection.collection_id))))
    spaces = spaces_of(conn, t, collection.collection_id)
    if spaces.active == space:
        return 0  # somebody else has finished the change
    if spaces.building != space:
        raise Conflict(f"{collection.name!r} is no longer changing to {space.maker}")
    free = _lock_chunks(conn, t, collection.collection_id, [chunk_id for chunk_id, _ in wanting])
    # A statement of its own: what was waited for must be seen.
    lacking = chunks_without_vector(conn, t, collection.collection_id, space, list(free))
    retired = frozenset(chunk_id for chunk_id, current in free.items() if not current)
    rest = [pair for pair in wanting if pair[0] in lacking]
    return len(put_vectors(conn, t, collection, space, rest, vectors, retired=retired))


def _lock_chunks(
    conn: sa.Connection, t: Tables, collection_id: int, chunk_ids: Sequence[int]
) -> dict[int, bool]:
    """The chunks that nobody else is changing or deleting, with their current flag, which stays as it is.

    Nothing is waited for, so there is no order of locks to keep.
    """
    k = t.chunks
    rows = conn.execute(
        sa.select(k.c.chunk_id, k.c.current)
        .where(k.c.collection_id == collection_id, one_of(k.c.chunk_id, chunk_ids))
        .with_for_update(read=True, skip_locked=True)
    )
    return {row.chunk_id: row.current for row in rows}


def _lacks(t: Tables, collection_id: int, space: Space) -> sa.ColumnElement[bool]:
    k, e = t.chunks, t.chunk_embeddings
    there = sa.exists().where(
        e.c.collection_id == collection_id, e.c.chunk_id == k.c.chunk_id, e.c.space_id == space.space_id
    )
    return ~there


def filled_until(conn: sa.Connection, t: Tables, collection_id: int, space: Space) -> int | None:
    """The sequence of the last write, if after it every chunk had its vector in the space; looks at all of them.

    Also puts right what a caller's REPEATABLE READ transaction brought back or retired without seeing a vector's row.
    """
    k, b = t.chunks, t.batches
    # First, so that what is written meanwhile has a later sequence.
    last = sa.select(sa.func.coalesce(sa.func.max(b.c.sequence), 0)).where(b.c.collection_id == collection_id)
    sequence: int = conn.execute(last).scalar_one()
    chunks = sa.select(k.c.chunk_id).where(k.c.collection_id == collection_id)
    return sequence if _completed(conn, t, collection_id, space, chunks) else None


def switch_space(
    conn: sa.Connection, t: Tables, collection: CollectionRow, space: Space, *, filled_until: int
) -> bool:
    """Make a space the active one unless chunks without a vector came after that sequence; whether it is.

    Writers wait meanwhile, so only what was written since is looked at. Raises WritersAtWork when they leave no moment
    for it, Conflict when the space is not being filled.
    """
    number = collection.collection_id
    lock_weights(conn, number)
    spaces = lock_spaces(conn, t, collection)
    if spaces.active == space:
        return True
    if spaces.building != space:
        raise Conflict(f"{collection.name!r} is no longer changing to {space.maker}")
    if not _completed(conn, t, number, space, _chunks_written_after(t, number, filled_until)):
        return False
    if spaces.active is not None:
        _set_state(conn, t, number, spaces.active.space_id, "retired")
    _set_state(conn, t, number, space.space_id, "active")
    c = t.collections
    conn.execute(sa.update(c).where(c.c.id == number).values(active_space_id=space.space_id))
    return True


def _chunks_written_after(t: Tables, collection_id: int, sequence: int) -> sa.Select[tuple[int]]:
    """The chunks, earlier ones too, of records that have changed after that sequence, which is in order of commits."""
    b, v, p = t.batches, t.revisions, t.revision_chunks
    batches = sa.select(b.c.batch_id).where(b.c.collection_id == collection_id, b.c.sequence > sequence)
    records = sa.select(v.c.record_id).where(v.c.collection_id == collection_id, v.c.batch_id.in_(batches))
    return sa.select(p.c.chunk_id).where(p.c.collection_id == collection_id, p.c.record_id.in_(records))


def _completed(
    conn: sa.Connection, t: Tables, collection_id: int, space: Space, chunk_ids: sa.Select[tuple[int]]
) -> bool:
    """Whether each of these chunks has its vector in the space; the vectors that are there get their chunk's flag."""
    k, e = t.chunks, t.chunk_embeddings
    conn.execute(
        sa.update(e)
        .where(
            e.c.collection_id == collection_id,
            e.c.space_id == space.space_id,
            e.c.chunk_id.in_(chunk_ids),
            k.c.collection_id == collection_id,
            k.c.chunk_id == e.c.chunk_id,
            k.c.current != e.c.current,
        )
        .values(current=k.c.current)
    )
    here = sa.select(k.c.chunk_id).where(k.c.collection_id == collection_id, k.c.chunk_id.in_(chunk_ids))
    return conn.scalar(here.where(_lacks(t, collection_id, space)).limit(1)) is None


def retire_space(conn: sa.Connection, t: Tables, collection: CollectionRow, model: str) -> list[int]:
    """The ids of the spaces of that model, from now on written by nobody; InvalidInput for the active one."""
    active = lock_spaces(conn, t, collection).active
    if active is not None and active.model == model:
        raise InvalidInput("model", "one that searches do not use", f"{model!r}, the active one")
    s = t.embedding_spaces
    found = list(
        conn.scalars(
            sa.select(s.c.space_id).where(s.c.collection_id == collection.collection_id, s.c.model == model)
        )
    )
    if not found:
        raise NotFound("embedding space", model)
    for space_id in found:
        _set_state(conn, t, collection.collection_id, space_id, "retired")
    return found


def _set_state(conn: sa.Connection, t: Tables, collection_id: int, space_id: int, state: SpaceState) -> None:
    s = t.embedding_spaces
    conn.execute(
        sa.update(s).where(s.c.collection_id == collection_id, s.c.space_id == space_id).values(state=state)
    )


def delete_vectors(conn: sa.Connection, t: Tables, collection_id: int, space_id: int, *, limit: int) -> int:
    """Delete up to `limit` vectors of a retired space; how many. With the last of them goes the space."""
    e, s = t.chunk_embeddings, t.embedding_spaces
    of_space = (e.c.collection_id == collection_id, e.c.space_id == space_id)
    some = sa.select(e.c.chunk_id).where(*of_space).limit(limit)
    deleted = conn.execute(sa.delete(e).where(*of_space, e.c.chunk_id.in_(some))).rowcount
    if deleted < limit:
        conn.execute(
            sa.delete(s).where(
                s.c.collection_id == collection_id, s.c.space_id == space_id, s.c.state == "retired"
            )
        )
    return deleted
