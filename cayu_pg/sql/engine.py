"""Engines as cayu_pg opens them, and what a server must have before anything else is asked of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cayu_pg.errors import InvalidInput, MissingExtension, SchemaError
from cayu_pg.sql.tables import Tables, build_tables

MINIMUM_SERVER = 16  # the oldest that the tests run on
MINIMUM_EXTENSION = (0, 8, 0)
PATCHED_EXTENSION = (0, 8, 2)  # below it: CVE-2026-3172
CONNECT_ARGS = {
    "prepare_threshold": None,  # PgBouncer in transaction mode keeps no prepared statements
    "fallback_application_name": "cayu_pg",  # unlike application_name, it leaves PGAPPNAME and the URL their say
    "connect_timeout": 10,
    # A network that swallows everything is noticed within a minute, not after the two hours of TCP.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Extension:
    """Where the `vector` extension lives and which version it is."""

    schema: str
    version: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers, for comparison."""
        return tuple(int(part) for part in self.version.split(".") if part.isdigit())


def parse_url(url: str | sa.URL) -> sa.URL:
    """A Postgres URL with the psycopg driver; InvalidInput for anything else."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise InvalidInput("url", "postgresql://user@host/database", "text that is no URL") from None
    backend = parsed.get_backend_name()
    if backend not in ("postgresql", "postgres"):
        raise InvalidInput("url", "a postgresql URL", f"a {backend} URL")
    return parsed.set(drivername="postgresql+psycopg")


def check_driver(field: str, dialect: sa.Dialect) -> None:
    """Refuse engines and connections of other drivers, which have no COPY that we speak."""
    if (dialect.name, dialect.driver) != ("postgresql", "psycopg"):
        raise InvalidInput(field, "one of postgresql+psycopg", f"one of {dialect.name}+{dialect.driver}")


def open_engine(url: str | sa.URL) -> sa.Engine:
    """An engine whose connections suit any Postgres, also behind a pooler."""
    return sa.create_engine(parse_url(url), connect_args=_connect_args(url), pool_pre_ping=False)


def open_async_engine(url: str | sa.URL) -> AsyncEngine:
    """The same for asyncio."""
    return create_async_engine(parse_url(url), connect_args=_connect_args(url))


def _connect_args(url: str | sa.URL) -> dict[str, object]:
    given = parse_url(url).query
    ours: dict[str, object] = {name: value for name, value in CONNECT_ARGS.items() if name not in given}
    if "application_name" in given.get("options", ()):  # the server would take ours for the later word
        del ours["fallback_application_name"]
    return ours


def require_server(conn: sa.Connection) -> None:
    """SchemaError on a server older than those that are tested; asks nothing, the driver knows the version."""
    found = conn.dialect.server_version_info
    if found is not None and int(found[0]) < MINIMUM_SERVER:
        version = ".".join(map(str, found))
        raise SchemaError(f"PostgreSQL: expected {MINIMUM_SERVER} or newer, found {version}")


def require_own_session(conn: sa.Connection, what: str) -> None:
    """InvalidInput when the connection goes through a pooler, where locks and settings of a session end up with others.

    A pooler in session mode cannot be told from one in transaction mode, so neither will do.
    """
    if not is_own_session(conn):
        raise InvalidInput("url", f"for {what}, that of the server itself", "one that leads through a pooler")


def is_own_session(conn: sa.Connection) -> bool:
    """Whether the server process is the one that the client was told of; a pooler invents a number."""
    driver = conn.connection.driver_connection
    told = driver.info.backend_pid if isinstance(driver, psycopg.BaseConnection) else None
    return bool(conn.scalar(sa.text("SELECT pg_backend_pid()")) == told)


def find_extension(conn: sa.Connection) -> Extension | None:
    """The installed `vector` extension, or None."""
    row = conn.execute(
        sa.text(
            "SELECT n.nspname, e.extversion FROM pg_extension e"
            " JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
        )
    ).one_or_none()
    return None if row is None else Extension(*row)


def require_extension(extension: Extension | None) -> Extension:
    """The extension itself when it is new enough; MissingExtension says what the DBA has to run."""
    if extension is None:
        raise MissingExtension(
            "the extension `vector` is not installed in this database;"
            " a superuser has to run once: CREATE EXTENSION vector;"
        )
    if extension.numbers < MINIMUM_EXTENSION:
        wanted = ".".join(map(str, MINIMUM_EXTENSION))
        raise MissingExtension(
            f"pgvector: expected {wanted} or newer, found {extension.version};"
            " install a newer package, then run: ALTER EXTENSION vector UPDATE;"
        )
    return extension


def vulnerability(version: str) -> str | None:
    """What is known to be wrong with a version of pgvector, and what to do about it; None when nothing is."""
    if Extension("", version).numbers >= PATCHED_EXTENSION:
        return None
    patched = ".".join(map(str, PATCHED_EXTENSION))
    return (
        f"pgvector {version} has a known vulnerability (CVE-2026-3172): install {patched} or newer,"
        " then run: ALTER EXTENSION vector UPDATE;"
    )


@lru_cache(maxsize=8)
def warn_of_vulnerability(version: str) -> None:
    """Log what is wrong with a version of pgvector, once in a process."""
    found = vulnerability(version)
    if found is not None:
        log.warning(found)


def find_tables(conn: sa.Connection, schema: str) -> Tables:
    """The tables of `schema`, spelled for where this database keeps its `vector` extension."""
    return build_tables(schema, require_extension(find_extension(conn)).schema)


def lends_one(pool: sa.Pool) -> bool:
    """Whether a pool lends one connection at a time, so that two users would wait for each other or share it."""
    if isinstance(pool, sa.QueuePool):
        return pool.size() == 1
    return isinstance(pool, sa.StaticPool | sa.AssertionPool | sa.SingletonThreadPool)


def unopened(pool: sa.Pool) -> int:
    """How many connections a pool keeps when it is busy, and has not opened so far."""
    return max(0, pool.size() - pool.checkedin() - pool.checkedout()) if isinstance(pool, sa.QueuePool) else 0
