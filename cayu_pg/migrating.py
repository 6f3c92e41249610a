"""Migrations from code: `migrate(url)`, what migrations/env.py runs, and whether a schema fits this version."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from cayu_pg.errors import InvalidInput, MissingExtension, NotMigrated, SchemaTooNew
from cayu_pg.sql.engine import (
    Extension,
    find_extension,
    open_engine,
    require_extension,
    require_own_session,
    require_server,
)
from cayu_pg.sql.errors import translated
from cayu_pg.sql.identifiers import ExtensionType, quoted
from cayu_pg.sql.tables import DEFAULT_SCHEMA, build_metadata
from cayu_pg.texts import storable

VERSION_TABLE = "alembic_version"
LOCK_SECONDS = 120.0
CREATED_BY_US = "vector, created by the cayu_pg migrations"
# Indexes on request carry these prefixes; they are not part of the schema's description.
ON_REQUEST = ("hnsw_", "gin_")
# What env.py imports as `alembic.context` exists once in a process.
_alembic_lock = threading.Lock()


def migrate(url: str | sa.URL, *, schema: str = DEFAULT_SCHEMA, revision: str = "head") -> None:
    """Bring `schema` in the database at `url` up to `revision` (one of ours or `head`), or down to `base`.

    Raises MissingExtension when pgvector is absent and this role may not create it, SchemaTooNew when a newer
    cayu_pg was here, Unreachable when no server answers. InvalidInput when the URL leads through a
    pooler such as PgBouncer.
    """
    if revision not in ("head", "base", *known_revisions()):
        raise InvalidInput("revision", f"head, base or one of {', '.join(known_revisions())}", repr(revision))
    config = alembic_config(check_schema_name(schema))
    engine = open_engine(url)
    try:
        with _alembic_lock, translated(), engine.connect() as connection:
            _refuse_newer(found_revisions(connection, schema), schema)
            connection.rollback()
            config.attributes["connection"] = connection
            (command.downgrade if revision == "base" else command.upgrade)(config, revision)
    finally:
        engine.dispose()


def check_schema_name(schema: str) -> str:
    """The schema name itself; InvalidInput when Postgres could not keep it."""
    try:
        size = len(storable(schema).encode()) if isinstance(schema, str) else 0
    except ValueError:
        size = 0
    if not 1 <= size <= 63:
        raise InvalidInput("schema", "a name of 1 to 63 bytes", f"{type(schema).__name__} {schema!r:.80}")
    return schema


def migrations_path() -> Path:
    """The folder of the migrations: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "migrations"
    return inside if inside.is_dir() else inside.parent.parent / "migrations"


def alembic_config(schema: str = DEFAULT_SCHEMA) -> Config:
    """An alembic configuration for the packaged migrations."""
    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["schema"] = schema
    return config


@lru_cache(maxsize=1)
def known_revisions() -> tuple[str, ...]:
    """Every revision of this version's chain, newest first."""
    script = ScriptDirectory.from_config(alembic_config())
    return tuple(revision.revision for revision in script.walk_revisions())


def check_schema(conn: sa.Connection, schema: str) -> Extension:
    """The `vector` extension of a schema that is migrated as far as this version needs; SchemaError elsewhere."""
    require_server(conn)
    check_revision(conn, schema)
    return require_extension(find_extension(conn))


def check_revision(conn: sa.Connection, schema: str) -> str | None:
    """The revision of a schema that is migrated as far as this version needs.

    Raises NotMigrated when the schema is absent or behind, SchemaTooNew when it is ahead. A schema whose migrations
    run in an application's own chain has no version table of its own; then the tables themselves are looked for, and
    the revision is None.
    """
    found = found_revisions(conn, schema)
    if found is None and _relation_exists(conn, schema, "batches"):
        return None
    _refuse_newer(found, schema)
    head = known_revisions()[0]
    if not found or found[0] != head:
        raise NotMigrated(
            f"schema {schema!r} is at revision {found[0] if found else 'none'}, expected {head};"
            f" run: cayu-pg migrate --schema {schema}"
        )
    return head


def found_revisions(conn: sa.Connection, schema: str) -> tuple[str, ...] | None:
    """What the schema's own version table says; None without such a table."""
    if not _relation_exists(conn, schema, VERSION_TABLE):
        return None
    versions = sa.table(VERSION_TABLE, sa.column("version_num", sa.Text), schema=schema)
    return tuple(conn.scalars(sa.select(versions.c.version_num)))


def _relation_exists(conn: sa.Connection, schema: str, name: str) -> bool:
    table = f"{quoted(schema)}.{quoted(name)}"
    return conn.scalar(sa.text("SELECT to_regclass(:table)"), {"table": table}) is not None


def _refuse_newer(found: tuple[str, ...] | None, schema: str) -> None:
    unknown = set(found or ()) - set(known_revisions())
    if unknown:
        raise SchemaTooNew(
            f"schema {schema!r} is at revision {', '.join(sorted(unknown))}, expected {known_revisions()[0]}:"
            " a newer cayu_pg migrated it; upgrade the package"
        )


# --- what migrations/env.py and the migrations themselves call


@dataclass(frozen=True)
class Target:
    """Where a migration works: names ready for SQL, and the connection unless SQL is only printed."""

    schema: str
    schema_literal: str
    extension: str
    connection: sa.Connection | None

    def drop_own_extension(self) -> None:
        """Drop `vector` if a migration created it; a database that uses it elsewhere keeps it."""
        if self.connection is None:
            return
        comment = sa.text(
            "SELECT obj_description(oid, 'pg_extension') FROM pg_extension WHERE extname = 'vector'"
        )
        if self.connection.scalar(comment) != CREATED_BY_US:
            return
        try:
            with self.connection.begin_nested():
                self.connection.execute(sa.text("DROP EXTENSION vector"))
        except sa.exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != "2BP01":  # dependent objects still exist
                raise


def prepare(context: MigrationContext) -> None:
    """Create the schema and the `vector` extension where they are absent, also in an application's own chain.

    Raises MissingExtension when this role may not create the extension.
    """
    schema = _schema_of(context)
    if context.as_sql:
        context.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
        extension = quoted(_extension_schema_in_print(context))
        context.execute(f"CREATE EXTENSION IF NOT EXISTS vector SCHEMA {escaped(extension)}")
        return
    assert context.connection is not None  # only printed SQL has none
    require_server(context.connection)
    _ensure_schema(context.connection, schema)
    _ensure_extension(context.connection)


def migration_target(context: MigrationContext) -> Target:
    """What a migration needs to know; in an application's own chain the schema is the default one,
    unless its env.py says `context.configure(..., cayu_schema=...)`."""
    schema = _schema_of(context)
    connection = None if context.as_sql else context.connection
    if connection is None:
        extension = _extension_schema_in_print(context)
    else:
        extension = require_extension(find_extension(connection)).schema
    literal = "'" + schema.replace("'", "''") + "'"
    return Target(quoted(schema), literal, quoted(extension), connection)


def escaped(statement: str) -> str:
    """A statement for alembic's `execute`, in which a colon is a colon and no parameter begins."""
    return statement.replace(":", r"\:")


def _schema_of(context: MigrationContext) -> str:
    return str(context.opts.get("cayu_schema", DEFAULT_SCHEMA))


def _extension_schema_in_print(context: MigrationContext) -> str:
    return str(context.opts.get("cayu_extension_schema", "public"))


def run_migrations(context: ModuleType) -> None:
    """The whole of env.py; `context` is alembic's."""
    config: Config = context.config
    arguments = context.get_x_argument(as_dictionary=True)
    schema = check_schema_name(
        config.attributes.get("schema")
        or arguments.get("schema")
        or os.environ.get("CAYU_PG_SCHEMA")
        or DEFAULT_SCHEMA
    )
    if context.is_offline_mode():
        _run_offline(context, schema, arguments.get("vector_schema", "public"))
        return
    given = config.attributes.get("connection")
    if given is not None:
        _run_online(context, given, schema)
        return
    engine = open_engine(_migration_url(arguments))
    try:
        with translated(), engine.connect() as connection:
            _run_online(context, connection, schema)
    finally:
        engine.dispose()


def _migration_url(arguments: dict[str, str]) -> str:
    url = arguments.get("url") or os.environ.get("CAYU_PG_URL", "")
    if not url:
        raise InvalidInput("url", "CAYU_PG_URL in the environment, or alembic -x url=...", "neither")
    return url


def _run_offline(context: Any, schema: str, extension_schema: str) -> None:
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},  # else each % is printed twice
        literal_binds=True,
        version_table=VERSION_TABLE,
        version_table_schema=schema,
        cayu_schema=schema,
        cayu_extension_schema=extension_schema,
    )
    with context.begin_transaction():
        # Before the first migration, because the version table lives in it.
        context.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
        context.run_migrations()


def _run_online(context: Any, connection: sa.Connection, schema: str) -> None:
    require_server(connection)
    require_own_session(connection, "migrations")
    with _migration_lock(connection, schema):
        _ensure_schema(connection, schema)
        extension = find_extension(connection)
        extension_schema = extension.schema if extension else "public"
        _recognise_extension_types(connection.dialect, extension_schema)
        connection.commit()
        context.configure(
            connection=connection,
            target_metadata=build_metadata(schema, extension_schema),
            version_table=VERSION_TABLE,
            version_table_schema=schema,
            include_schemas=True,
            include_name=lambda name, kind, _: kind != "schema" or name == schema,
            include_object=_is_described,
            compare_type=_compare_type,
            cayu_schema=schema,
        )
        with context.begin_transaction():
            # A distributed engine must run the DDL of one transaction in order; others ignore the setting.
            connection.execute(sa.text("SET LOCAL citus.multi_shard_modify_mode = 'sequential'"))
            context.run_migrations()
        if not context.get_context().get_current_heads():
            connection.execute(sa.text(escaped(f"DROP TABLE IF EXISTS {quoted(schema)}.{VERSION_TABLE}")))
        connection.commit()


def _is_described(_: object, name: str | None, kind: str, reflected: bool, __: object) -> bool:
    if kind == "table":
        return name != VERSION_TABLE
    return not (kind == "index" and reflected and (name or "").startswith(ON_REQUEST))


def _recognise_extension_types(dialect: Any, schema: str) -> None:
    """Let reflection name the extension's types, wherever they live, on this engine alone.

    It looks types up as `format_type` writes them, in lower case.
    """
    named = {
        f"{prefix}{name}".lower(): partial(ExtensionType, name, schema)
        for name in ("vector", "sparsevec")
        for prefix in ("", f"{schema}.", f"{quoted(schema)}.")
    }
    dialect.ischema_names = {**dialect.ischema_names, **named}


def _compare_type(
    _: MigrationContext, __: Any, ___: Any, inspected_type: Any, metadata_type: Any
) -> Literal[False] | None:
    """False (no difference) for equal types of the extension; None leaves the rest to alembic."""
    same = isinstance(inspected_type, ExtensionType) and isinstance(metadata_type, ExtensionType)
    return False if same and inspected_type.name == metadata_type.name else None


def _ensure_schema(connection: sa.Connection, schema: str) -> None:
    # CREATE SCHEMA IF NOT EXISTS asks for the privilege even when the schema is there.
    known = connection.scalar(sa.text("SELECT 1 FROM pg_namespace WHERE nspname = :name"), {"name": schema})
    if known is None:
        connection.execute(sa.schema.CreateSchema(schema))


def _ensure_extension(connection: sa.Connection) -> None:
    if find_extension(connection) is not None:
        return
    try:
        with connection.begin_nested():
            connection.execute(sa.text("CREATE EXTENSION vector"))
            connection.execute(sa.text(f"COMMENT ON EXTENSION vector IS '{CREATED_BY_US}'"))
    except sa.exc.DBAPIError as error:
        if find_extension(connection) is not None:  # the migration of another schema was first
            return
        raise MissingExtension(
            "the extension `vector` is not installed in this database and could not be created"
            f" ({str(error.orig).strip().splitlines()[0]}); a superuser has to run once: CREATE EXTENSION vector;"
        ) from error


@contextmanager
def _migration_lock(connection: sa.Connection, schema: str) -> Iterator[None]:
    """One migration of a schema at a time; polled, because a waiting statement would block index builds."""
    key = {"key": zlib.crc32(f"cayu_pg:{schema}".encode())}
    deadline = time.monotonic() + LOCK_SECONDS
    while not connection.scalar(sa.text("SELECT pg_try_advisory_lock(:key)"), key):
        connection.rollback()
        if time.monotonic() > deadline:
            raise NotMigrated(f"another migration of schema {schema!r} has run for {LOCK_SECONDS:.0f} s")
        time.sleep(0.2)
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), key)
        connection.commit()
