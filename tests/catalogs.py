"""What a database and a schema hold, as lines to compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from alembic import command
from alembic.config import Config

from cayu_pg.migrating import alembic_config, check_schema
from cayu_pg.sql.engine import open_engine
from cayu_pg.sql.identifiers import quoted

# A schema name that has to be quoted everywhere.
AWKWARD = """odd "name" of :a %s 'schema' {}"""

# Everything a database holds that is not PostgreSQL's own.
CATALOG = """
SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast|temp_)'
UNION ALL SELECT 'extension ' || extname || coalesce(': ' || obj_description(oid, 'pg_extension'), '')
FROM pg_extension
UNION ALL SELECT 'relation ' || oid::regclass FROM pg_class WHERE oid >= 16384 AND relname !~ '^pg_toast'
UNION ALL SELECT 'type ' || oid::regtype FROM pg_type WHERE oid >= 16384
UNION ALL SELECT 'function ' || oid::regprocedure FROM pg_proc WHERE oid >= 16384
ORDER BY 1"""

# What a schema consists of, one line for each thing, names of the schema left to be replaced.
SHAPE = """
SELECT 'column ' || concat_ws(' ', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attnotnull THEN 'not null' END, pg_get_expr(d.adbin, d.adrelid), o.collname,
       col_description(c.oid, a.attnum))
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_collation o ON o.oid = a.attcollation AND o.collname <> 'default'
WHERE c.relkind = 'r' AND c.relnamespace = %(schema)s::regnamespace AND c.relname <> 'alembic_version'
UNION ALL SELECT 'table ' || relname || ' ' || obj_description(oid, 'pg_class')
FROM pg_class WHERE relkind = 'r' AND relnamespace = %(schema)s::regnamespace AND relname <> 'alembic_version'
UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = %(schema)s::regnamespace AND conrelid::regclass::text !~ 'alembic_version'
UNION ALL SELECT 'index ' || pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class c ON c.oid = indrelid
WHERE c.relnamespace = %(schema)s::regnamespace AND c.relname <> 'alembic_version'
UNION ALL SELECT 'sequence ' || concat_ws(' ', relname, format_type(seqtypid, NULL), seqstart, seqincrement, seqcache)
FROM pg_sequence JOIN pg_class ON oid = seqrelid WHERE relnamespace = %(schema)s::regnamespace
ORDER BY 1"""


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement)


def lines(url: str, query: str, **values: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(query, values or None)]


def catalog(url: str) -> set[str]:
    return set(lines(url, CATALOG))


def shape(url: str, schema: str) -> list[str]:
    found = lines(url, SHAPE, schema=quoted(schema))
    assert len(found) > 100
    return [line.replace(f"{schema}.", "SCHEMA.") for line in found]


def check(url: str, schema: str = "cayu") -> str:
    """The schema of the extension, when everything is in place."""
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            return check_schema(connection, schema).schema
    finally:
        engine.dispose()


@contextmanager
def alembic_on(url: str, config: Config) -> Iterator[Config]:
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            yield config
    finally:
        engine.dispose()


def alembic_check(url: str, schema: str = "cayu") -> None:
    with alembic_on(url, alembic_config(schema)) as config:
        command.check(config)
