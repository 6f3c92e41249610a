"""What the doctor asks of the server and of a schema as a whole; only catalogs and counters are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from cayu_pg.sql.engine import Extension, find_extension, is_own_session

SETTINGS = (
    "autovacuum",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "io_method",
    "shared_buffers",
    "statement_timeout",
    "track_counts",
    "transaction_timeout",
)
MOST_SESSIONS = 5

# The values that a new session has; this one may carry the limits of the call.
_SERVER = """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
       current_user AS role, pg_is_in_recovery() AS is_replica,
       (SELECT datcollversion <> coalesce(pg_database_collation_actual_version(oid), '') FROM pg_database
        WHERE datname = current_database()) AS has_other_collation,
       (SELECT default_version FROM pg_available_extensions WHERE name = 'vector') AS available,
       (SELECT jsonb_object_agg(name, reset_val) FROM pg_settings WHERE name = ANY(:names)) AS settings"""

_LIMITS = """
SELECT 'the server' AS what, (SELECT sum(numbackends) FROM pg_stat_database)::bigint AS used,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - coalesce(current_setting('reserved_connections', true)::int, 0) AS allowed
UNION ALL
SELECT 'the database', s.numbackends, d.datconnlimit
FROM pg_database d JOIN pg_stat_database s ON s.datid = d.oid
WHERE d.datname = current_database() AND d.datconnlimit >= 0
UNION ALL
SELECT 'the role', (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid), r.rolconnlimit
FROM pg_roles r WHERE r.rolname = current_user AND r.rolconnlimit >= 0"""

_SESSIONS = """
SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND xact_start < clock_timestamp() - make_interval(secs => :seconds)
ORDER BY xact_start LIMIT :most"""

_RELATIONS = """
SELECT c.relname AS name, c.relkind::text AS kind, pg_get_userbyid(c.relowner) AS owner,
       pg_has_role(c.relowner, 'USAGE') AS is_owned,
       CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE')
            ELSE has_table_privilege(c.oid, 'SELECT') END AS may_read,
       c.relkind <> 'r' OR has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
       AND has_table_privilege(c.oid, 'DELETE') AS may_write,
       coalesce(pg_relation_size(c.oid), 0) AS bytes, coalesce(pg_total_relation_size(c.oid), 0) AS total_bytes,
       c.reltuples::float8 AS estimated_rows, coalesce(s.n_live_tup, 0) AS live, coalesce(s.n_dead_tup, 0) AS dead
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE n.nspname = :schema AND c.relkind IN ('r', 'S', 'v')
ORDER BY c.relname"""

# NULL where nothing is to be replayed: the time of the last transaction then says nothing.
_REPLICA = """
SELECT pg_is_in_recovery() AS is_replica, pg_is_in_recovery() AND pg_is_wal_replay_paused() AS is_paused,
       CASE WHEN pg_is_in_recovery() THEN (pg_last_wal_replay_lsn() - '0/0')::bigint END AS position,
       extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 AS seconds"""


class Limit(NamedTuple):
    """How many connections there are, and how many there may be."""

    what: str
    used: int
    allowed: int


class Session(NamedTuple):
    """A session whose transaction has been open for so many seconds."""

    pid: int
    application: str
    state: str | None
    seconds: float


@dataclass(frozen=True)
class ServerFacts:
    """A server as one role sees it; `settings` are those that a new session has."""

    version: str
    number: int  # of the version: 160003 is 16.3
    role: str
    is_replica: bool
    is_pooled: bool
    has_other_collation: bool
    extension: Extension | None
    available: str | None  # the version of pgvector that the server could install
    settings: dict[str, str]
    limits: list[Limit]
    sessions: list[Session]


class Relation(NamedTuple):
    """A table, sequence or view of the schema; `estimated_rows` is below 0 before the first ANALYZE."""

    name: str
    kind: str
    owner: str
    is_owned: bool
    may_read: bool
    may_write: bool
    bytes: int
    total_bytes: int
    estimated_rows: float
    live: int
    dead: int


class ReplicaFacts(NamedTuple):
    """A replica: up to where it has replayed the log, and how old the last transaction was that it replayed."""

    is_replica: bool
    is_paused: bool
    position: int | None
    seconds: float | None


def server_facts(conn: sa.Connection, *, long_seconds: float) -> ServerFacts:
    """What the server is like, whatever is in the database; the sessions with a transaction open for that long."""
    row = conn.execute(sa.text(_SERVER), {"names": list(SETTINGS)}).one()
    sessions = conn.execute(sa.text(_SESSIONS), {"seconds": long_seconds, "most": MOST_SESSIONS})
    return ServerFacts(
        version=row.version,
        number=row.number,
        role=row.role,
        is_replica=row.is_replica,
        is_pooled=not is_own_session(conn),
        has_other_collation=bool(row.has_other_collation),
        extension=find_extension(conn),
        available=row.available,
        settings=row.settings,
        limits=[Limit(*each) for each in conn.execute(sa.text(_LIMITS))],
        sessions=[Session(*each) for each in sessions],
    )


def relations(conn: sa.Connection, schema: str) -> list[Relation]:
    """The tables, sequences and views of a schema, with what this role may do to them."""
    return [Relation(*row) for row in conn.execute(sa.text(_RELATIONS), {"schema": schema})]


def replica_facts(conn: sa.Connection) -> ReplicaFacts:
    """How far a replica is."""
    return ReplicaFacts(*conn.execute(sa.text(_REPLICA)).one())
