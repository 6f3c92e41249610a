"""The vectors of chunks: which exist, how new ones are written, and how equal text reuses one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg.errors import DimensionMismatch
from cayu_pg.sql.collections import CollectionRow, Space, ensure_space
from cayu_pg.sql.copy import copy_embeddings
from cayu_pg.sql.tables import Tables, one_of, sql_text

_REUSE_EMBEDDINGS = """
INSERT INTO {schema}.chunk_embeddings (collection_id, chunk_id, space_id, tenant, current, embedding)
SELECT :collection_id, n.chunk_id, :space_id, :tenant, true, e.embedding
FROM unnest(CAST(:chunk_ids AS bigint[]), CAST(:hashes AS bytea[])) n (chunk_id, content_hash),
     LATERAL (SELECT e.embedding
              FROM {schema}.chunks k
              JOIN {schema}.chunk_embeddings e ON e.collection_id = k.collection_id AND e.chunk_id = k.chunk_id
              WHERE k.collection_id = :collection_id AND k.content_hash = n.content_hash
                AND e.collection_id = :collection_id AND e.space_id = :space_id
              ORDER BY e.chunk_id LIMIT 1) e
RETURNING chunk_id"""


class MissingVectors(Exception):
    """Some texts have no vector after all: whoever had it was erased meanwhile. Embed these and write again."""

    def __init__(self, hashes: frozenset[bytes]) -> None:
        super().__init__(f"{len(hashes)} texts have no vector")
        self.hashes = hashes


def embedded_hashes(
    conn: sa.Connection, t: Tables, collection_id: int, space_id: int, hashes: Sequence[bytes]
) -> set[bytes]:
    """Which of the texts, given by hash, have a vector in the space already."""
    k, e = t.chunks, t.chunk_embeddings
    rows = conn.scalars(
        sa.select(k.c.content_hash)
        .distinct()
        .join(e, (e.c.collection_id == k.c.collection_id) & (e.c.chunk_id == k.c.chunk_id))
        .where(
            k.c.collection_id == collection_id,
            one_of(k.c.content_hash, hashes),
            e.c.collection_id == collection_id,
            e.c.space_id == space_id,
        )
    )
    return {bytes(value) for value in rows}


def chunks_without_vector(
    conn: sa.Connection, t: Tables, collection: CollectionRow, chunk_ids: Sequence[int]
) -> set[int]:
    """Which of these chunks lack a vector in the active space."""
    e = t.chunk_embeddings
    space_id = None if collection.space is None else collection.space.space_id
    have = conn.scalars(
        sa.select(e.c.chunk_id).where(
            e.c.collection_id == collection.collection_id,
            one_of(e.c.chunk_id, chunk_ids),
            e.c.space_id == space_id,
        )
    )
    return set(chunk_ids).difference(have)


def write_vectors(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    wanting: Sequence[tuple[int, bytes]],
    vectors: Mapping[bytes, NDArray[np.float32]],
    model: str,
) -> int:
    """Give each chunk, as (chunk id, hash), its vector: from `vectors`, or a copy of that of equal text.

    How many different texts of `vectors` were used. Raises MissingVectors when no equal text has one.
    """
    if not wanting:
        return 0
    space = collection.space or _first_space(conn, t, collection, model, wanting, vectors)
    given = [pair for pair in wanting if pair[1] in vectors]
    if given:
        _check_model(space, collection, model, len(vectors[given[0][1]]))
        copy_embeddings(
            conn,
            t.chunk_embeddings,
            collection_id=collection.collection_id,
            space_id=space.space_id,
            tenant=collection.tenant,
            chunk_ids=[chunk_id for chunk_id, _ in given],
            vectors=np.stack([vectors[hashed] for _, hashed in given]),
        )
    _reuse_vectors(conn, t, collection, space, [pair for pair in wanting if pair[1] not in vectors])
    return len({hashed for _, hashed in given})


def _check_model(space: Space, collection: CollectionRow, model: str, dimensions: int) -> None:
    """Refuse vectors of another model: who embedded these may have seen a collection without a space."""
    if (space.model, space.dimensions) != (model, dimensions):
        raise DimensionMismatch(
            "embedder",
            f"{space.model} with {space.dimensions} dimensions, which made the vectors of {collection.name!r}",
            f"{model} with {dimensions} dimensions",
        )


def _first_space(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    model: str,
    wanting: Sequence[tuple[int, bytes]],
    vectors: Mapping[bytes, NDArray[np.float32]],
) -> Space:
    if not vectors:
        raise MissingVectors(frozenset(hashed for _, hashed in wanting))
    return ensure_space(conn, t, collection, model=model, dimensions=len(next(iter(vectors.values()))))


def _reuse_vectors(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    space: Space,
    pairs: Sequence[tuple[int, bytes]],
) -> None:
    if not pairs:
        return
    binds = {
        **collection.key,
        "space_id": space.space_id,
        "chunk_ids": [chunk_id for chunk_id, _ in pairs],
        "hashes": [hashed for _, hashed in pairs],
    }
    written = set(conn.scalars(sql_text(t, _REUSE_EMBEDDINGS), binds))
    missing = frozenset(hashed for chunk_id, hashed in pairs if chunk_id not in written)
    if missing:
        raise MissingVectors(missing)
