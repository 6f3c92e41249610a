"""Indexes on request: a partial HNSW and a partial GIN index for each collection large enough to want them.

An index shared by many collections makes a query of one read the entries of all; hundreds of partial ones slow down
planning. So small collections are scanned by key, exactly, and large ones get indexes of their own.
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from cayu_pg.sql.collections import CollectionRow, IndexHealth, IndexKind
from cayu_pg.sql.engine import is_own_session, require_own_session
from cayu_pg.sql.identifiers import quoted
from cayu_pg.sql.settings import LOCK_TIMEOUT_MS, set_for_build
from cayu_pg.sql.spaces import Space
from cayu_pg.sql.tables import Tables

log = logging.getLogger(__name__)

MIN_CHUNKS = 5_000  # below it the exact scan by key is as fast
BUILD_MEMORY_MB = 512
BUILD_WORKERS = 2
TURN_SECONDS = 0.2
PASSING_MS = 100
_MOST_DIMENSIONS = {"none": 4_000, "binary": 64_000}  # that HNSW takes of halfvec and of bit
_OPERATOR_CLASSES = {
    "cosine": "halfvec_cosine_ops",
    "inner_product": "halfvec_ip_ops",
    "l2": "halfvec_l2_ops",
}
_NO_SPACE = "53100"
_LOCK_TIMEOUT = "55P03"
_KINDS: dict[str, IndexKind] = {"hnsw": "vectors", "gin_words": "words", "gin_metadata": "metadata"}
_OURS = re.compile(r"(hnsw|gin_words|gin_metadata)_(\d+)(?:_\d+)?")


@dataclass(frozen=True)
class IndexPlan:
    """What to do about one index: drop what stands under its name, build it, or both."""

    name: str
    drop: bool
    create: str | None


@dataclass(frozen=True)
class IndexProgress:
    """How far a build is: the index, what PostgreSQL is doing, and the share of that which is done, if it counts."""

    name: str
    phase: str
    share: float | None


def reindex(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    *,
    min_chunks: int,
    timeout_ms: int | None,
    building: Callable[[str], object] | None = None,
) -> list[str]:
    """Do all that `plan_indexes` finds, without blocking writers; the names of the indexes that were built.

    `building` is called with a name before each build. For a connection of our own outside transactions. Callers take
    turns: builds on one table exclude each other.
    """
    require_own_session(conn, "building indexes")
    set_for_build(conn, memory_mb=BUILD_MEMORY_MB, workers=BUILD_WORKERS, timeout_ms=timeout_ms)
    _wait_for_turn(conn, t)
    plans = plan_indexes(conn, t, collection, min_chunks)
    for plan in plans:
        if plan.drop:
            _drop(conn, t, plan.name)
        if plan.create is not None:
            if building is not None:
                building(plan.name)
            began = time.perf_counter()
            _build(conn, t, plan.name, plan.create)
            log.info(
                "built index %s of %s in %.1f s", plan.name, collection.name, time.perf_counter() - began
            )
    return [plan.name for plan in plans if plan.create is not None]


def plan_indexes(
    conn: sa.Connection, t: Tables, collection: CollectionRow, min_chunks: int
) -> list[IndexPlan]:
    """What the collection's indexes lack: those that its size wants, anew where a build broke off or fits no more.

    What is valid stays, though the collection be small; what serves nothing goes, also of collections that are gone.
    """
    collection_id = collection.collection_id
    found = _found(conn, t, collection_id)
    wanted = {each.name: each for each in _wanted(t, collection_id, collection.space)}
    known = wanted.keys() | _names_of_spaces(conn, t, collection_id)
    lacking = {
        name: each.create for name, each in wanted.items() if not (name in found and found[name].serves(each))
    }
    if not _has_at_least(conn, t, collection_id, min_chunks):
        lacking = {}
    useless = {name for name, each in found.items() if name not in known or not each.valid}
    left = [IndexPlan(name, drop=True, create=None) for name in left_behind(conn, t)]
    names = [*sorted(useless - lacking.keys()), *lacking]
    return left + [IndexPlan(name, drop=name in found, create=lacking.get(name)) for name in names]


def why_no_vector_index(space: Space | None) -> str | None:
    """Why vectors of this space are always searched exactly; None where an index takes them."""
    if space is None or space.dimensions <= _MOST_DIMENSIONS[space.quantization]:
        return None
    most = f"{_MOST_DIMENSIONS['none']} dimensions ({_MOST_DIMENSIONS['binary']} with quantization='binary')"
    return (
        f"an index of vectors takes at most {most}, these have {space.dimensions}; they are searched exactly"
    )


def index_health(
    conn: sa.Connection, t: Tables, tenant: str, chunks: Mapping[str, int]
) -> dict[str, tuple[IndexHealth, ...]]:
    """For each collection of the tenant: the indexes that it has, and those that its size (`chunks`) wants."""
    c, s = t.collections, t.embedding_spaces
    active = (s.c.collection_id == c.c.id) & (s.c.space_id == c.c.active_space_id)
    rows = conn.execute(
        sa.select(c.c.id, c.c.name, s.c.space_id, s.c.model, s.c.dimensions, s.c.distance, s.c.quantization)
        .select_from(c.outerjoin(s, active))
        .where(c.c.tenant == tenant)
    )
    found = _found(conn, t)
    health = {}
    for collection_id, name, *facts in rows:
        space = None if facts[0] is None else Space(*facts)
        wanted = {each.name: each for each in _wanted(t, collection_id, space)}
        large = chunks.get(name, 0) >= MIN_CHUNKS
        names = {index for index in found if _owner(index) == collection_id} | (
            wanted.keys() if large else set()
        )
        known = [_health(index, found.get(index), wanted.get(index)) for index in sorted(names)]
        health[name] = (*known, *(_impossible(collection_id, space) if large else ()))
    return health


def build_progress(conn: sa.Connection, t: Tables, collection_id: int) -> IndexProgress | None:
    """The build that is under way for the collection, if any."""
    rows = conn.execute(
        sa.text(
            "SELECT x.relname, p.phase, p.blocks_done, p.blocks_total, p.tuples_done, p.tuples_total"
            " FROM pg_stat_progress_create_index p JOIN pg_class x ON x.oid = p.index_relid"
            " JOIN pg_namespace n ON n.oid = x.relnamespace"
            " WHERE p.datname = current_database() AND n.nspname = :schema ORDER BY x.relname"
        ),
        {"schema": t.schema},
    )
    for name, phase, *counts in rows:
        if _owner(name) == collection_id:
            pairs = ((counts[0], counts[1]), (counts[2], counts[3]))
            return IndexProgress(name, phase, next((done / total for done, total in pairs if total), None))
    return None


def drop_indexes(conn: sa.Connection, t: Tables, collection_id: int) -> None:
    """Drop the indexes on request of a collection that is deleted; their tables are locked until the commit."""
    for name in sorted(_found(conn, t, collection_id)):
        _execute(conn, f"DROP INDEX {quoted(t.schema)}.{quoted(name)}")


def drop_indexes_aside(conn: sa.Connection, t: Tables, collection_id: int) -> None:
    """The same while others search and write, for a connection of our own outside transactions.

    A plain DROP INDEX that waits for one open write keeps the searches of all collections waiting behind it.
    """
    _drop_aside(conn, t, sorted(_found(conn, t, collection_id)))


def drop_vector_index_aside(conn: sa.Connection, t: Tables, collection_id: int, space_id: int) -> None:
    """Drop the index of one embedding space while others search and write, outside transactions."""
    name = f"hnsw_{collection_id:d}_{space_id:d}"
    if name in _found(conn, t, collection_id):
        _drop_aside(conn, t, [name])


def drop_for_load(conn: sa.Connection, t: Tables, collection_id: int) -> None:
    """`drop_indexes_aside` for a collection that stays, and that `reindex` gives them again after a load.

    Gives up behind a transaction that stays open for long, as a build does.
    """
    set_for_build(conn, memory_mb=BUILD_MEMORY_MB, workers=BUILD_WORKERS, timeout_ms=None)
    drop_indexes_aside(conn, t, collection_id)


def analyze_tables(conn: sa.Connection, t: Tables) -> None:
    """Tell the planner what the tables hold now, as autovacuum would in a minute or so.

    A table that somebody else works on is passed over, and so are tables of another owner.
    """
    for table in (t.records, t.revisions, t.revision_chunks, t.chunks, t.chunk_embeddings, t.chunk_lexemes):
        _execute(conn, f"ANALYZE (SKIP_LOCKED) {quoted(t.schema)}.{quoted(table.name)}")


def _build(conn: sa.Connection, t: Tables, name: str, create: str) -> None:
    try:
        _execute(conn, create)
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _NO_SPACE:
            raise
        # Parallel workers share that memory through /dev/shm, of which a container has 64 MB if nobody gave it more.
        _drop(conn, t, name)
        _execute(conn, "SET max_parallel_maintenance_workers = 0")
        _execute(conn, create)


def _drop(conn: sa.Connection, t: Tables, name: str) -> None:
    _execute(conn, f"DROP INDEX CONCURRENTLY IF EXISTS {quoted(t.schema)}.{quoted(name)}")


def _drop_aside(conn: sa.Connection, t: Tables, names: list[str]) -> None:
    if not names:
        return
    if is_own_session(conn):
        _wait_for_turn(conn, t)
        for name in names:
            _drop(conn, t, name)
    else:
        for name in names:
            _drop_in_passing(conn, t, name)


def _drop_in_passing(conn: sa.Connection, t: Tables, name: str) -> None:
    """Drop an index through a pooler, where no lock lasts: in a moment in which nobody uses the table.

    Each try keeps others waiting for PASSING_MS at most.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_MS / 1000
    drop = f"DROP INDEX IF EXISTS {quoted(t.schema)}.{quoted(name)}"
    while True:
        try:
            return _execute(conn, f"SET LOCAL lock_timeout = {PASSING_MS:d}; {drop}")  # one transaction
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_TIMEOUT or time.monotonic() > deadline:
                raise
        conn.execute(sa.select(sa.func.pg_sleep(TURN_SECONDS)))


def _execute(conn: sa.Connection, statement: str) -> None:
    conn.exec_driver_sql(statement.replace("%", "%%"))  # to the driver a percent sign begins a parameter


class _Wanted(NamedTuple):
    """An index as it should be; what is not HNSW has no dimensions."""

    name: str
    operators: str
    dimensions: int | None
    create: str


class _Found(NamedTuple):
    """An index as it is."""

    name: str
    valid: bool
    operators: str
    dimensions: int | None
    bytes: int
    building: bool

    def serves(self, wanted: _Wanted) -> bool:
        """Whether a search that counts on the wanted index will be answered by it."""
        return self.valid and (self.operators, self.dimensions) == (wanted.operators, wanted.dimensions)


def _wanted(t: Tables, collection_id: int, space: Space | None) -> list[_Wanted]:
    wanted = [_words(t, collection_id), _metadata(t, collection_id)]
    if space is not None and space.dimensions <= _MOST_DIMENSIONS[space.quantization]:
        wanted.append(_vectors(t, collection_id, space))
    return wanted


def _words(t: Tables, collection_id: int) -> _Wanted:
    name = f"gin_words_{collection_id:d}"
    indexed = f"{quoted(t.schema)}.chunk_lexemes USING gin (tsv)"
    return _Wanted(name, "tsvector_ops", None, _create(name, indexed, f"collection_id = {collection_id:d}"))


def _metadata(t: Tables, collection_id: int) -> _Wanted:
    name = f"gin_metadata_{collection_id:d}"
    indexed = f"{quoted(t.schema)}.chunks USING gin (metadata jsonb_path_ops)"
    return _Wanted(name, "jsonb_path_ops", None, _create(name, indexed, f"collection_id = {collection_id:d}"))


def _vectors(t: Tables, collection_id: int, space: Space) -> _Wanted:
    name, extension = _hnsw(collection_id, space), quoted(t.extension_schema)
    if space.quantization == "binary":
        operators = "bit_hamming_ops"
        vector = f"{extension}.binary_quantize(embedding)::bit({space.dimensions:d})"
    else:
        operators = _OPERATOR_CLASSES[space.distance]
        vector = f"embedding::{extension}.halfvec({space.dimensions:d})"
    indexed = f"{quoted(t.schema)}.chunk_embeddings USING hnsw (({vector}) {extension}.{operators})"
    of_space = f"collection_id = {collection_id:d} AND space_id = {space.space_id:d}"
    return _Wanted(name, operators, space.dimensions, _create(name, indexed, of_space))


def _hnsw(collection_id: int, space: Space) -> str:
    return f"hnsw_{collection_id:d}_{space.space_id:d}"


def _create(name: str, indexed: str, condition: str) -> str:
    return f"CREATE INDEX CONCURRENTLY {quoted(name)} ON {indexed} WHERE {condition} AND current"


_INDEXES = """
SELECT x.relname, i.indisvalid AND i.indisready, o.opcname, nullif(a.atttypmod, -1),
       coalesce(pg_relation_size(x.oid), 0), p.index_relid IS NOT NULL
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = x.relnamespace
JOIN pg_opclass o ON o.oid = i.indclass[0]
JOIN pg_attribute a ON a.attrelid = x.oid AND a.attnum = 1
LEFT JOIN pg_stat_progress_create_index p ON p.index_relid = x.oid AND p.datname = current_database()
WHERE n.nspname = :schema AND x.relname ~ '^(hnsw|gin_words|gin_metadata)_[0-9]'"""


def _found(conn: sa.Connection, t: Tables, collection_id: int | None = None) -> dict[str, _Found]:
    """The indexes on request, of one collection or of all, by name."""
    every = (_Found(*row) for row in conn.execute(sa.text(_INDEXES), {"schema": t.schema}))
    return {
        each.name: each
        for each in every
        if (owner := _owner(each.name)) is not None and collection_id in (None, owner)
    }


def left_behind(conn: sa.Connection, t: Tables) -> list[str]:
    """Indexes of collections that do not exist: whoever dropped one did not come to drop these."""
    table = f"{quoted(t.schema)}.{quoted(t.collections.name)}"
    # Under row-level security collections may be hidden, and are not gone.
    if conn.scalar(sa.select(sa.func.row_security_active(table))):
        return []
    found = _found(conn, t)  # first, for an index is younger than its collection
    there = set(conn.scalars(sa.select(t.collections.c.id)))
    return sorted(name for name in found if _owner(name) not in there)


def _owner(name: str) -> int | None:
    """The collection that an index name speaks of; None for a name that is not of this file."""
    match = _OURS.fullmatch(name)
    return None if match is None else int(match[2])


def _impossible(collection_id: int, space: Space | None) -> Iterator[IndexHealth]:
    if space is not None and why_no_vector_index(space) is not None:
        yield IndexHealth(_hnsw(collection_id, space), "vectors", "impossible", 0)


def _health(name: str, found: _Found | None, wanted: _Wanted | None) -> IndexHealth:
    kind = _KINDS[name.rstrip("0123456789_")]
    if found is None:
        return IndexHealth(name, kind, "missing", 0)
    if found.building:
        return IndexHealth(name, kind, "building", found.bytes)
    good = found.valid if wanted is None else found.serves(wanted)
    return IndexHealth(name, kind, "valid" if good else "invalid", found.bytes)


def _names_of_spaces(conn: sa.Connection, t: Tables, collection_id: int) -> set[str]:
    spaces = conn.scalars(
        sa.select(t.embedding_spaces.c.space_id).where(t.embedding_spaces.c.collection_id == collection_id)
    )
    return {f"hnsw_{collection_id}_{space_id}" for space_id in spaces}


def _wait_for_turn(conn: sa.Connection, t: Tables) -> None:
    """Take the lock of those who build, which the session keeps.

    Polled: a waiting statement has a snapshot, and the build that it waits for would wait for the end of that.
    """
    key = zlib.crc32(f"cayu_pg:indexes:{t.schema}".encode())
    while not conn.scalar(sa.select(sa.func.pg_try_advisory_lock(key))):
        conn.execute(sa.select(sa.func.pg_sleep(TURN_SECONDS)))


def _has_at_least(conn: sa.Connection, t: Tables, collection_id: int, count: int) -> bool:
    k = t.chunks
    some = (
        sa.select(k.c.chunk_id).where(k.c.collection_id == collection_id, k.c.current).limit(count).subquery()
    )
    return (conn.scalar(sa.select(sa.func.count()).select_from(some)) or 0) >= count
