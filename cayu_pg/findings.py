"""What a doctor's report says: each rule is a pure function from facts to findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

from cayu_pg.analysis import ANALYZERS
from cayu_pg.errors import MissingExtension
from cayu_pg.sql.collection_health import CollectionFacts, LostChunks
from cayu_pg.sql.collections import IndexHealth
from cayu_pg.sql.engine import MINIMUM_SERVER, require_extension, vulnerability
from cayu_pg.sql.health import Relation, ReplicaFacts, ServerFacts
from cayu_pg.sql.identifiers import quoted
from cayu_pg.sql.indexes import why_no_vector_index
from cayu_pg.sql.model_change import EmbeddingSpace
from cayu_pg.sql.spaces import Maker
from cayu_pg.sql.statistics import REFRESH_SHARE

LARGE = 1 << 30  # bytes of a schema, from which settings made for small databases cost
DEFAULT_BUFFERS = 128 << 20
SHORT_TIMEOUT = 5_000  # milliseconds, which a batch of an ingest may well take
LONG_SECONDS = 300  # of an open transaction
FULL = 0.9  # of the connections
DEAD_SHARE, DEAD_ROWS = 0.3, 10_000
UNKNOWN_BYTES = 1 << 20  # of a table that was never analyzed
LATE_BYTES = 64 << 20

Level = Literal["error", "warning", "note", "ok"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note", "ok")


class Finding(BaseModel):
    """One thing that was looked at, what was found, and what to do about it (None where nothing is to be done).

    An error makes calls fail or results wrong; a warning makes them slow, or will grow into an error; a note is good to
    know.
    """

    model_config = ConfigDict(frozen=True)

    level: Level
    subject: str
    found: str
    advice: str | None = None

    def __str__(self) -> str:
        then = f"\n         {self.advice}" if self.advice else ""
        return f"{self.level:<8} {self.subject}: {self.found}{then}"


class DoctorReport(BaseModel):
    """What `doctor` found, the worst first."""

    model_config = ConfigDict(frozen=True)

    findings: tuple[Finding, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def level(self) -> Level:
        """The worst level of all."""
        return min((each.level for each in self.findings), key=LEVELS.index, default="ok")

    def of_level(self, level: Level) -> tuple[Finding, ...]:
        """The findings of one level."""
        return tuple(each for each in self.findings if each.level == level)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def report_of(findings: Iterable[Finding]) -> DoctorReport:
    """The report with the worst findings first, each level in the order of finding."""
    return DoctorReport(findings=tuple(sorted(findings, key=lambda each: LEVELS.index(each.level))))


def _good(subject: str, found: str) -> Finding:
    return Finding(level="ok", subject=subject, found=found)


def _note(subject: str, found: str, advice: str) -> Finding:
    return Finding(level="note", subject=subject, found=found, advice=advice)


def _warning(subject: str, found: str, advice: str) -> Finding:
    return Finding(level="warning", subject=subject, found=found, advice=advice)


def _error(subject: str, found: str, advice: str | None = None) -> Finding:
    return Finding(level="error", subject=subject, found=found, advice=advice)


# --- the server


def on_server(facts: ServerFacts, unopened: int) -> Iterator[Finding]:
    """Versions, settings, connections and sessions; `unopened` are those that the store's pool may yet open."""
    yield _version(facts)
    yield from _extension(facts)
    yield from _settings(facts.settings)
    if facts.is_replica or facts.settings["default_transaction_read_only"] == "on":
        found = "is a replica" if facts.is_replica else "has default_transaction_read_only = on"
        advice = "Give the URL of the primary as url, and that of a replica as read_url."
        yield _error("server", f"it {found}, every write will fail", advice)
    if facts.has_other_collation:
        found = (
            "the operating system sorts text otherwise than when this database was made, ids may not be found"
        )
        advice = "Run: REINDEX DATABASE; and: ALTER DATABASE ... REFRESH COLLATION VERSION;"
        yield _warning("collation", found, advice)
    yield from _connections(facts, unopened)
    for each in facts.sessions:
        who = f"{each.application or 'a session without application_name'} (pid {each.pid})"
        found = f"{who} is {each.state}, its transaction has been open for {each.seconds:.0f} s"
        advice = "Commit or end it: VACUUM removes nothing that it may see, and index builds wait for it."
        yield _warning("sessions", found, advice)
    if facts.is_pooled:
        advice = "Run migrate, reindex and change_embedder with a URL of the server itself."
        yield _note("connection", "it leads through a pooler", advice)


def _version(facts: ServerFacts) -> Finding:
    if facts.number < MINIMUM_SERVER * 10_000:
        found = f"expected {MINIMUM_SERVER} or newer, found {facts.version}"
        return _error("PostgreSQL", found, "Upgrade the server.")
    return _good("PostgreSQL", f"{facts.version}, as role {facts.role}")


def _extension(facts: ServerFacts) -> Iterator[Finding]:
    try:
        version = require_extension(facts.extension).version
    except MissingExtension as error:
        yield _error("pgvector", str(error))
        return
    vulnerable = vulnerability(version)
    if vulnerable is not None:
        yield Finding(level="warning", subject="pgvector", found=vulnerable)
    else:
        yield _good("pgvector", version)
    if facts.available not in (None, version):
        found = f"this database uses {version}, the server has {facts.available}"
        yield _note("pgvector", found, "Run: ALTER EXTENSION vector UPDATE;")


def _settings(settings: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("fsync", "full_page_writes"):
        if settings[name] == "off":
            advice = f"Set {name} = on unless all of this can be made again."
            yield _warning(
                "settings", f"{name} = off, a crash of the machine may destroy the database", advice
            )
    for name in ("autovacuum", "track_counts"):
        if settings[name] == "off":
            found = f"{name} = off, dead rows stay and the planner knows nothing of new ones"
            yield _warning("settings", found, f"Set {name} = on.")
    for name in ("statement_timeout", "transaction_timeout"):
        limit = int(settings.get(name, 0))  # PostgreSQL 16 has one of them
        if 0 < limit < SHORT_TIMEOUT:
            found = f"{name} = {limit} ms for this role, ingests and refreshes of statistics may be stopped"
            yield _warning("settings", found, "Give the role more, and searches less: search(timeout=...).")


def _connections(facts: ServerFacts, unopened: int) -> Iterator[Finding]:
    for what, used, allowed in facts.limits:
        free = allowed - used
        found = f"{used} of the {allowed} that {what} allows are open"
        if free < unopened or used > allowed * FULL:
            advice = f"Allow more, or give engines smaller pools; this one may open {unopened} more."
            yield _warning("connections", found, advice)
        else:
            yield _good("connections", found)


def on_replica(facts: ReplicaFacts, written: int) -> Finding:
    """How far the replica of `read_url` is behind a primary that had written so many bytes of log."""
    if not facts.is_replica or facts.position is None:
        found = "read_url leads to a server that is no replica"
        return _warning("replica", found, "Give the URL of a streaming replica.")
    if facts.is_paused:
        return _warning("replica", "its replay is paused", "Run there: SELECT pg_wal_replay_resume();")
    late = max(0, written - facts.position)
    age = "" if facts.seconds is None or not late else f", its last transaction is {facts.seconds:.0f} s old"
    found = f"{_size(late)} of log behind the primary{age}"
    if late > LATE_BYTES:
        return _warning("replica", found, "Until it has caught up, the primary answers whoever wrote.")
    return _good("replica", found)


# --- the schema


def on_schema(
    schema: str, revision: str, found: Sequence[Relation], settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Privileges, the state of the tables, and what their size asks of the settings."""
    where = f"schema {schema}"
    total = sum(each.total_bytes for each in found)
    yield _good(where, f"{_size(total)}, revision {revision}")
    tables = [each for each in found if each.kind == "r" and each.name != "alembic_version"]
    yield from _privileges(where, found, tables)
    for each in tables:
        yield from _table(schema, each)
    if total < LARGE:
        return
    if int(settings["shared_buffers"]) * 8192 <= DEFAULT_BUFFERS:
        advice = "Give it a quarter of the memory: what a search reads should stay there."
        yield _warning("settings", f"shared_buffers = 128 MB for {_size(total)}", advice)
    if settings.get("io_method") == "worker":
        found_ = f"io_method = worker for {_size(total)}"
        yield _note(
            "settings", found_, "Try io_method = sync: searches of cached rows do not hand over to workers."
        )


def _privileges(where: str, found: Sequence[Relation], tables: Sequence[Relation]) -> Iterator[Finding]:
    unread = [each.name for each in found if not each.may_read]
    if unread:
        yield _error(
            where, f"this role may not use {', '.join(unread)}", "GRANT it SELECT, and USAGE on sequences."
        )
    unwritten = [each.name for each in tables if not each.may_write]
    if unwritten:
        advice = "GRANT it INSERT, UPDATE and DELETE unless it only searches."
        yield _warning(where, f"this role may not write to {', '.join(unwritten)}", advice)
    foreign = {each.owner for each in tables if not each.is_owned}
    if foreign:
        advice = "Run migrate, reindex and change_embedder as the owner."
        yield _note(where, f"it belongs to {', '.join(sorted(foreign))}, who alone may build indexes", advice)


def _table(schema: str, table: Relation) -> Iterator[Finding]:
    where = f"schema {schema}, table {table.name}"
    name = f"{quoted(schema)}.{quoted(table.name)}"
    advice = f"Run: VACUUM (ANALYZE) {name}; and see why autovacuum did not."
    if table.dead >= DEAD_ROWS and table.dead > DEAD_SHARE * (table.live + table.dead):
        yield _warning(where, f"{table.dead} dead rows beside {table.live} living ones", advice)
    if table.estimated_rows < 0 and table.bytes >= UNKNOWN_BYTES:
        found = f"{_size(table.bytes)} were never analyzed, the planner guesses"
        yield _warning(where, found, advice)


# --- collections


def on_collection(facts: CollectionFacts, makers: Sequence[Maker]) -> Iterator[Finding]:
    """What a collection was made with and may not fit any more; `makers` are the embedders of the store, if any."""
    where = _where(facts.name)
    made_by = None if facts.space is None else facts.space.maker
    yield _good(where, f"{facts.chunks} chunks, vectors of {made_by or 'no model yet'}")
    if not facts.has_text_config:
        advice = "Create it on this server as on the old one; searches and ingests fail without."
        yield _error(where, f"its text search configuration {facts.text_config!r} does not exist", advice)
    if facts.analyzer not in ANALYZERS:
        advice = "Upgrade the package."
        yield _error(where, f"its analyzer {facts.analyzer!r} is unknown to this version", advice)
    if makers and made_by is not None and made_by not in makers:
        given = " and ".join(map(str, makers))
        advice = "Open the collection with its own embedder, or change it: cayu-pg model NEW_MODEL."
        yield _warning(where, f"its vectors are of {made_by}, the store's embedder is {given}", advice)
    if facts.counted and facts.added + facts.removed > facts.counted * REFRESH_SHARE:
        found = f"its word statistics counted {facts.counted} chunks, {facts.added + facts.removed} came or went since"
        yield _warning(
            where, found, "Call collection.refresh_statistics(); ingests in transactions of yours do not."
        )


def on_misfit(collection: str, warning: str | None) -> list[Finding]:
    """A channel that a calibration saw not to fit."""
    return [] if warning is None else [Finding(level="warning", subject=_where(collection), found=warning)]


def on_space(collection: str, space: EmbeddingSpace) -> Finding:
    """A space that searches do not use."""
    if space.state == "building":
        found = f"its change to {space.model} has come to {space.embedded} of {space.chunks} chunks"
        advice = (
            f"Unless it is under way, go on with: cayu-pg model {quote(space.model)} -c {quote(collection)}"
        )
        return _warning(_where(collection), found, advice)
    found = f"it keeps the vectors of {space.model}, which searches do not use"
    advice = f"Once nobody needs to go back: collection.drop_space({space.model!r})"
    return _note(_where(collection), found, advice)


def on_indexes(facts: CollectionFacts, indexes: Iterable[IndexHealth]) -> Iterator[Finding]:
    """Indexes that a collection wants and lacks, and those left of a build that broke off."""
    where = _where(facts.name)
    by_state: dict[str, list[str]] = {}
    for each in indexes:
        by_state.setdefault(each.state, []).append(each.kind)
    build = f"Run: cayu-pg reindex -c {quote(facts.name)}"
    for state, found in (
        ("missing", "lacks its index of {}, of which searches read all"),
        ("invalid", "has an invalid index of {}, left of a build that broke off"),
    ):
        if state in by_state:
            yield _warning(where, found.format(" and ".join(by_state[state])), build)
    if "building" in by_state:
        yield _note(where, f"its index of {' and '.join(by_state['building'])} is being built", "Wait.")
    if "impossible" in by_state:
        advice = "A model with fewer dimensions, or quantization='binary', makes it faster."
        yield _note(where, why_no_vector_index(facts.space) or "", advice)


def on_indexes_left_behind(names: Sequence[str]) -> Iterator[Finding]:
    """Indexes of collections that were dropped."""
    if names:
        found = f"{', '.join(names)} belong to collections that were dropped"
        yield _warning("indexes", found, "The reindex of any collection drops them.")


def on_lost_chunks(facts: CollectionFacts, lost: LostChunks) -> Finding:
    """Chunks that one of the channels cannot find."""
    where = _where(facts.name)
    looked_at = "all chunks" if lost.looked_at >= facts.chunks else f"the newest {lost.looked_at} chunks"
    if not lost.without_vector and not lost.without_words:
        return _good(where, f"{looked_at} have vector and words")
    found = f"of {looked_at}, {lost.without_vector} lack their vector and {lost.without_words} their words"
    advice = (
        f"Something deleted them. Delete such records and ingest them again, for example {lost.example!r}."
    )
    return _error(where, found, advice)


def _where(collection: str) -> str:
    return f"collection {collection!r}"


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
