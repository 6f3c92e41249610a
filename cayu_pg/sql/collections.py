"""Collections, their embedding spaces, and what a search or an ingest has to know of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from cayu_pg.errors import InvalidInput, NotFound
from cayu_pg.sql.spaces import Maker, Space, Spaces, spaces_of
from cayu_pg.sql.tables import Tables


@dataclass(frozen=True)
class CollectionRow:
    """A collection as stored, with its active embedding space and the indexes that exist.

    `features` are those declared, as stored. `building` is the space that is filled to take the place of the active
    one, as far as the reader looked for it.
    """

    collection_id: int
    tenant: str
    name: str
    text_config: str
    analyzer: str
    k1: float
    b: float
    distance: str
    quantization: str
    space: Space | None
    has_hnsw: bool
    has_gin: bool
    chunks: int
    features: dict[str, Any]
    building: Space | None = None

    @property
    def key(self) -> dict[str, object]:
        """The binds that every statement on the collection starts with."""
        return {"collection_id": self.collection_id, "tenant": self.tenant}


def find_collection(conn: sa.Connection, t: Tables, tenant: str, name: str) -> CollectionRow | None:
    """The collection of that name, or None."""
    c, s, v = t.collections, t.embedding_spaces, t.statistics_versions
    active_space = (s.c.collection_id == c.c.id) & (s.c.space_id == c.c.active_space_id)
    active_statistics = (v.c.collection_id == c.c.id) & (v.c.version == c.c.active_statistics)
    row = conn.execute(
        sa.select(
            c,
            s.c.space_id,
            s.c.model,
            s.c.dimensions,
            s.c.distance.label("space_distance"),
            s.c.quantization.label("space_quantization"),
            has_valid_index(t, hnsw_name(t)).label("has_hnsw"),
            has_valid_index(t, sa.func.concat("gin_words_", c.c.id)).label("has_gin"),
            sa.func.coalesce(v.c.chunks, 0).label("chunks"),
        )
        .select_from(c.outerjoin(s, active_space).outerjoin(v, active_statistics))
        .where(c.c.tenant == tenant, c.c.name == name)
    ).one_or_none()
    return None if row is None else _collection(row)


def _collection(row: sa.Row[Any]) -> CollectionRow:
    space = None
    if row.space_id is not None:
        space = Space(row.space_id, row.model, row.dimensions, row.space_distance, row.space_quantization)
    return CollectionRow(
        collection_id=row.id,
        tenant=row.tenant,
        name=row.name,
        text_config=row.text_config,
        analyzer=row.analyzer,
        k1=row.k1,
        b=row.b,
        distance=row.distance,
        quantization=row.quantization,
        space=space,
        has_hnsw=row.has_hnsw,
        has_gin=row.has_gin,
        chunks=row.chunks,
        features=row.features,
    )


def has_valid_index(t: Tables, name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the schema has a usable index of that name."""
    qualified = sa.func.to_regclass(sa.func.format("%I.%I", t.schema, name))
    valid: sa.Select[Any] = (
        sa.select(sa.literal_column("i.indisvalid"))
        .select_from(sa.text("pg_index i"))
        .where(sa.literal_column("i.indexrelid") == qualified)
    )
    return sa.func.coalesce(valid.scalar_subquery(), sa.false())


def hnsw_name(t: Tables) -> sa.ColumnElement[str]:
    """The name of the vector index of the collection row beside it and its active space."""
    c = t.collections
    return sa.func.concat("hnsw_", c.c.id, "_", c.c.active_space_id)


def create_collection(
    conn: sa.Connection,
    t: Tables,
    *,
    tenant: str,
    name: str,
    text_config: str,
    analyzer: str,
    k1: float,
    b: float,
    distance: str,
    quantization: str,
) -> None:
    """Create the collection unless it exists; InvalidInput for a text configuration the server has not."""
    # As `regconfig` writes and reads them: with the schema where the search path does not lead, and quotes.
    known = conn.scalars(sa.text("SELECT oid::regconfig::text AS name FROM pg_ts_config ORDER BY 1")).all()
    if text_config not in known:
        raise InvalidInput("text_config", f"one of {', '.join(known)}", repr(text_config)[:80])
    conn.execute(
        insert(t.collections)
        .values(
            tenant=tenant,
            name=name,
            text_config=text_config,
            analyzer=analyzer,
            k1=k1,
            b=b,
            distance=distance,
            quantization=quantization,
        )
        .on_conflict_do_nothing()
    )


def declare_features(
    conn: sa.Connection, t: Tables, collection: CollectionRow, features: dict[str, Any]
) -> None:
    """Let the collection have these features and no others; NotFound when it was dropped."""
    c = t.collections
    here = sa.update(c).where(c.c.id == collection.collection_id).values(features=features)
    if conn.execute(here.returning(c.c.id)).one_or_none() is None:
        raise NotFound("collection", collection.name)


def list_collections(conn: sa.Connection, t: Tables, tenant: str) -> list[CollectionSummary]:
    """Every collection of the tenant by name, with what it holds."""
    c, r, k, e = t.collections, t.records, t.chunks, t.embedding_spaces
    records = (
        sa.select(sa.func.count())
        .where(r.c.collection_id == c.c.id, r.c.deleted_at.is_(None), r.c.current_revision > 0)
        .scalar_subquery()
    )
    chunks = sa.select(sa.func.count()).where(k.c.collection_id == c.c.id, k.c.current).scalar_subquery()
    rows = conn.execute(
        sa.select(
            c.c.name, c.c.text_config, c.c.analyzer, e.c.model, e.c.dimensions, records, chunks, c.c.features
        )
        .select_from(c.outerjoin(e, (e.c.collection_id == c.c.id) & (e.c.space_id == c.c.active_space_id)))
        .where(c.c.tenant == tenant)
        .order_by(c.c.name)
    )
    return [CollectionSummary(*row) for row in rows]


IndexKind = Literal["vectors", "words", "metadata"]
IndexState = Literal["valid", "building", "invalid", "missing", "impossible"]


@dataclass(frozen=True)
class IndexHealth:
    """An index that a collection has, or that its size wants.

    An invalid one is left of a build that broke off; one is impossible where vectors have more dimensions than an index
    takes, and are searched exactly.
    """

    name: str
    kind: IndexKind
    state: IndexState
    bytes: int


@dataclass(frozen=True)
class CollectionSummary:
    """One line about a collection; `features` are those declared, as stored."""

    name: str
    text_config: str
    analyzer: str
    model: str | None
    dimensions: int | None
    records: int
    chunks: int
    features: dict[str, Any]
    indexes: tuple[IndexHealth, ...] = ()


def delete_collection(conn: sa.Connection, t: Tables, collection_id: int) -> None:
    """Delete a collection with everything in it, table by table, so that no cascade works row by row."""
    c = t.collections
    # First, for writers hold their rows in another order; they wait here, and find no collection.
    conn.execute(sa.select(c.c.id).where(c.c.id == collection_id).with_for_update())
    for table in (
        t.chunk_lexemes,
        t.chunk_embeddings,
        t.revision_chunks,
        t.chunks,
        t.revisions,
        t.records,
        t.batches,
        t.lexeme_statistics,
        t.statistics_versions,
        t.fusion_configs,
        t.embedding_spaces,
    ):
        conn.execute(sa.delete(table).where(table.c.collection_id == collection_id))
    conn.execute(sa.delete(c).where(c.c.id == collection_id))


def lock_collection(conn: sa.Connection, t: Tables, collection: CollectionRow) -> CollectionRow:
    """The collection with the spaces that are written now; nobody drops it until the transaction ends.

    What a caller remembers may have been rolled back or switched since. NotFound when it was dropped.
    """
    c = t.collections
    isolation = sa.func.current_setting("transaction_isolation").label("isolation")
    here = sa.select(isolation).where(c.c.id == collection.collection_id)
    # KEY SHARE: of all that others do to the row, only a drop waits.
    found = conn.scalar(here.with_for_update(read=True, key_share=True))
    if found is None:
        raise NotFound("collection", collection.name)
    if found != "read committed":
        # A snapshot of the caller's may hide that other statistics are active by now; SHARE is refused then.
        conn.execute(here.with_for_update(read=True))
    return with_spaces(conn, t, collection)


def with_spaces(conn: sa.Connection, t: Tables, collection: CollectionRow) -> CollectionRow:
    """The collection with the spaces that it has now, whatever was known of them."""
    spaces = spaces_of(conn, t, collection.collection_id)
    if spaces == (collection.space, collection.building):
        return collection
    return replace(collection, space=spaces.active, building=spaces.building)


def lock_spaces(conn: sa.Connection, t: Tables, collection: CollectionRow) -> Spaces:
    """The collection's spaces; nobody else adds one or makes another the active one until the transaction ends."""
    c = t.collections
    # NO KEY UPDATE: foreign key checks of other writers go on.
    conn.execute(sa.select(c.c.id).where(c.c.id == collection.collection_id).with_for_update(key_share=True))
    return spaces_of(conn, t, collection.collection_id)


def ensure_space(conn: sa.Connection, t: Tables, collection: CollectionRow, maker: Maker) -> Space:
    """The collection's active space; created for `maker` by whoever writes the first vector."""
    found = lock_spaces(conn, t, collection).active
    if found is not None:
        return found
    space = add_space(conn, t, collection, maker, state="active")
    c = t.collections
    conn.execute(
        sa.update(c).where(c.c.id == collection.collection_id).values(active_space_id=space.space_id)
    )
    return space


def add_space(
    conn: sa.Connection, t: Tables, collection: CollectionRow, maker: Maker, *, state: str
) -> Space:
    """A new space, whose vectors are compared as the collection says."""
    s = t.embedding_spaces
    facts = (*maker, collection.distance, collection.quantization)
    space_id = conn.execute(
        sa.insert(s)
        .values(
            collection_id=collection.collection_id,
            tenant=collection.tenant,
            model=maker.model,
            dimensions=maker.dimensions,
            distance=collection.distance,
            quantization=collection.quantization,
            fingerprint=hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest(),
            state=state,
        )
        .returning(s.c.space_id)
    ).scalar_one()
    return Space(space_id, *facts)
