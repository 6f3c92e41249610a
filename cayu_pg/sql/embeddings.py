"""The vectors of chunks: which exist, how new ones are written, and how equal text reuses one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg.sql.collections import CollectionRow, ensure_space
from cayu_pg.sql.copy import copy_embeddings
from cayu_pg.sql.spaces import Maker, Space
from cayu_pg.sql.tables import Tables, one_of, sql_text

Vectors = Mapping[bytes, NDArray[np.float32]]  # by the hash of the text

# One look-up for each hash, whatever the number of records that hold the same text.
_OF_EQUAL_TEXT = """
     LATERAL (SELECT e.embedding
              FROM {schema}.chunks k
              JOIN {schema}.chunk_embeddings e ON e.collection_id = :collection_id AND e.chunk_id = k.chunk_id
                   AND e.space_id = :space_id
              WHERE k.collection_id = :collection_id AND k.content_hash = n.content_hash
              ORDER BY k.record_id LIMIT 1) e"""

_EMBEDDED = (
    """
SELECT n.content_hash FROM unnest(CAST(:hashes AS bytea[])) n (content_hash),"""
    + _OF_EQUAL_TEXT
)

_REUSE_EMBEDDINGS = (
    """
INSERT INTO {schema}.chunk_embeddings (collection_id, chunk_id, space_id, tenant, current, embedding)
SELECT :collection_id, n.chunk_id, :space_id, :tenant, c.current, e.embedding
FROM unnest(CAST(:chunk_ids AS bigint[]), CAST(:hashes AS bytea[])) n (chunk_id, content_hash)
JOIN {schema}.chunks c ON c.collection_id = :collection_id AND c.chunk_id = n.chunk_id,"""
    + _OF_EQUAL_TEXT
    + """
RETURNING chunk_id"""
)


class MissingVectors(Exception):
    """Some texts have no vector after all: whoever had it was erased, or the model changed. Look and embed again."""

    def __init__(self, hashes: frozenset[bytes]) -> None:
        super().__init__(f"{len(hashes)} texts have no vector")
        self.hashes = hashes


def embedded_hashes(
    conn: sa.Connection, t: Tables, collection_id: int, space_id: int, hashes: Sequence[bytes]
) -> set[bytes]:
    """Which of the texts, given by hash, have a vector in the space already."""
    binds = {"collection_id": collection_id, "space_id": space_id, "hashes": list(hashes)}
    return {bytes(value) for value in conn.scalars(sql_text(t, _EMBEDDED), binds)}


def chunks_without_vector(
    conn: sa.Connection, t: Tables, collection_id: int, space: Space | None, chunk_ids: Sequence[int]
) -> set[int]:
    """Which of these chunks lack a vector in the space."""
    e = t.chunk_embeddings
    have = conn.scalars(
        sa.select(e.c.chunk_id).where(
            e.c.collection_id == collection_id,
            one_of(e.c.chunk_id, chunk_ids),
            e.c.space_id == (None if space is None else space.space_id),
        )
    )
    return set(chunk_ids).difference(have)


def write_vectors(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    wanting: Sequence[tuple[int, bytes]],
    vectors: Mapping[Maker, Vectors],
) -> int:
    """Give each chunk, as (chunk id, hash), its vector in the active space: a given one, or a copy of an equal text's.

    How many different texts were given. Raises MissingVectors when no equal text has one.
    """
    if not wanting:
        return 0
    space = collection.space or _first_space(conn, t, collection, wanting, vectors)
    given = vectors.get(space.maker, {})
    written = put_vectors(conn, t, collection, space, wanting, given)
    missing = frozenset(hashed for chunk_id, hashed in wanting if chunk_id not in written)
    if missing:
        raise MissingVectors(missing)
    return len({hashed for _, hashed in wanting if hashed in given})


def put_vectors(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    space: Space,
    wanting: Sequence[tuple[int, bytes]],
    given: Vectors,
    *,
    retired: frozenset[int] = frozenset(),
) -> set[int]:
    """Write the vectors that `given` or equal texts of the space have; the chunks that got theirs.

    Those of `given` are current but for the chunks `retired`.
    """
    embedded = [pair for pair in wanting if pair[1] in given]
    if embedded:
        copy_embeddings(
            conn,
            t.chunk_embeddings,
            collection_id=collection.collection_id,
            space_id=space.space_id,
            tenant=collection.tenant,
            chunk_ids=[chunk_id for chunk_id, _ in embedded],
            current=[chunk_id not in retired for chunk_id, _ in embedded],
            vectors=np.stack([given[hashed] for _, hashed in embedded]),
        )
    written = {chunk_id for chunk_id, _ in embedded}
    return written | _reuse_vectors(conn, t, collection, space, [p for p in wanting if p[1] not in given])


def _first_space(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    wanting: Sequence[tuple[int, bytes]],
    vectors: Mapping[Maker, Vectors],
) -> Space:
    maker = next((maker for maker, given in vectors.items() if given), None)
    if maker is None:
        raise MissingVectors(frozenset(hashed for _, hashed in wanting))
    return ensure_space(conn, t, collection, maker)


def _reuse_vectors(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    space: Space,
    pairs: Sequence[tuple[int, bytes]],
) -> set[int]:
    if not pairs:
        return set()
    binds = {
        **collection.key,
        "space_id": space.space_id,
        "chunk_ids": [chunk_id for chunk_id, _ in pairs],
        "hashes": [hashed for _, hashed in pairs],
    }
    return set(conn.scalars(sql_text(t, _REUSE_EMBEDDINGS), binds))
