"""The schema and its SQL stay fit for a distributed engine, and each rule is seen to catch a fault.

Rows of one collection or transcript live on one node, so every key, reference and statement names the
collection or transcript; what such an engine refuses or does silently wrong is not used at all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

ROOT = Path(__file__).parent.parent

# `collections` is copied to every node; all other tables are spread by the column that places their rows.
# A table with a transcript key belongs to the transcripts.
PLACED = """
WITH tables AS (
    SELECT oid, relname AS name FROM pg_class
    WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p') AND relname <> 'alembic_version'
),
placed AS (
    SELECT t.oid, t.name, a.attnum AS place, a.attname AS column_name, a.attnotnull AS is_required
    FROM tables t LEFT JOIN pg_attribute a
      ON a.attrelid = t.oid AND a.attname IN ('collection_id', 'transcript_key') AND NOT a.attisdropped
    WHERE t.name <> 'collections'
),
columns AS (
    SELECT t.name, a.* FROM tables t
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
),
foreign_keys AS (
    SELECT t.name, c.* FROM tables t JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype = 'f'
)
"""

# Each finds (table, detail) of what breaks it, and stands beside a fault that it has to find.
RULES = {
    "every table has a required column that places its rows": (
        "SELECT name, column_name FROM placed WHERE is_required IS NOT TRUE",
        "CREATE TABLE planted (id bigint NOT NULL)",
    ),
    "the column that places rows is in every unique key": (
        """SELECT p.name, i.indexrelid::regclass::text FROM placed p JOIN pg_index i ON i.indrelid = p.oid
        WHERE (i.indisunique OR i.indisexclusion)
        AND p.place <> ALL ((i.indkey::int2[])[0:i.indnkeyatts - 1])""",
        "CREATE TABLE planted (collection_id bigint NOT NULL, id bigint, UNIQUE (id) INCLUDE (collection_id))",
    ),
    "the column that places rows comes first in the primary key": (
        """SELECT p.name, coalesce(c.conname, 'no primary key') FROM placed p
        LEFT JOIN pg_constraint c ON c.conrelid = p.oid AND c.contype = 'p'
        WHERE c.conkey[1] IS DISTINCT FROM p.place""",
        "CREATE TABLE planted (collection_id bigint, id bigint, PRIMARY KEY (id, collection_id))",
    ),
    "no identity columns": (
        "SELECT name, attname FROM columns WHERE attidentity <> ''",
        "CREATE TABLE planted (collection_id bigint NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY)",
    ),
    "sequences are bigint": (
        """SELECT c.name, c.attname FROM columns c
        JOIN pg_attrdef d ON d.adrelid = c.attrelid AND d.adnum = c.attnum
        WHERE pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%' AND c.atttypid <> 'int8'::regtype
        UNION ALL SELECT s.seqrelid::regclass::text, format_type(s.seqtypid, NULL) FROM pg_sequence s
        JOIN pg_class k ON k.oid = s.seqrelid
        WHERE k.relnamespace = to_regnamespace(:schema) AND s.seqtypid <> 'int8'::regtype""",
        "CREATE TABLE planted (collection_id bigint NOT NULL, id serial)",
    ),
    "no triggers": (
        "SELECT t.name, g.tgname FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid WHERE NOT g.tgisinternal",
        """CREATE TABLE planted (collection_id bigint NOT NULL);
        CREATE TRIGGER touched BEFORE UPDATE ON planted
        FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()""",
    ),
    "no rules": (
        "SELECT t.name, w.rulename FROM tables t JOIN pg_rewrite w ON w.ev_class = t.oid",
        """CREATE TABLE planted (collection_id bigint NOT NULL);
        CREATE RULE keep AS ON DELETE TO planted DO INSTEAD NOTHING""",
    ),
    "no columns that hold an oid": (
        r"""SELECT name, attname || ' ' || format_type(atttypid, NULL) FROM columns
        WHERE format_type(atttypid, NULL) ~ '^(reg\w+|oid)(\[\])?$'""",
        "CREATE TABLE planted (collection_id bigint NOT NULL, config regconfig, parents oid[])",
    ),
    "references go to a table placed alike, or to collections": (
        """SELECT f.name, f.conname FROM foreign_keys f LEFT JOIN placed p ON p.oid = f.conrelid
        LEFT JOIN placed q ON q.oid = f.confrelid LEFT JOIN tables r ON r.oid = f.confrelid
        WHERE r.name IS DISTINCT FROM 'collections' AND p.column_name IS DISTINCT FROM q.column_name""",
        """CREATE TABLE talks (transcript_key uuid PRIMARY KEY);
        CREATE TABLE planted (collection_id bigint NOT NULL, talk uuid REFERENCES talks)""",
    ),
    "references carry the column that places rows first on both sides": (
        """SELECT f.name, f.conname FROM foreign_keys f JOIN placed p ON p.oid = f.conrelid
        LEFT JOIN placed q ON q.oid = f.confrelid
        WHERE f.conkey[1] <> p.place OR (q.oid IS NOT NULL AND f.confkey[1] <> q.place)""",
        """CREATE TABLE parents (collection_id bigint, id bigint, PRIMARY KEY (collection_id, id));
        CREATE TABLE planted (collection_id bigint NOT NULL, parent bigint, other bigint,
        FOREIGN KEY (parent, collection_id) REFERENCES parents (collection_id, id))""",
    ),
    "collections refers to no other table": (
        "SELECT name, conname FROM foreign_keys WHERE name = 'collections'",
        """CREATE TABLE records (collection_id bigint PRIMARY KEY);
        CREATE TABLE collections (id bigint REFERENCES records)""",
    ),
    "references cascade or refuse": (
        """SELECT name, conname FROM foreign_keys
        WHERE confdeltype NOT IN ('c', 'a', 'r') OR confupdtype NOT IN ('a', 'r')""",
        """CREATE TABLE parents (collection_id bigint PRIMARY KEY);
        CREATE TABLE planted (collection_id bigint REFERENCES parents ON DELETE SET NULL)""",
    ),
    "deleting a collection or transcript cascades all the way down": (
        "SELECT name, conname FROM foreign_keys WHERE confdeltype <> 'c'",
        """CREATE TABLE parents (collection_id bigint PRIMARY KEY);
        CREATE TABLE planted (collection_id bigint REFERENCES parents)""",
    ),
    "row security compares plainly": (
        """SELECT t.name, p.polname FROM tables t JOIN pg_policy p ON p.polrelid = t.oid
        WHERE concat(pg_get_expr(p.polqual, t.oid), pg_get_expr(p.polwithcheck, t.oid)) ~* 'select| or '""",
        """CREATE TABLE planted (collection_id bigint NOT NULL, tenant text);
        CREATE POLICY mine ON planted WITH CHECK (tenant = (SELECT current_setting('cayu.tenant', true)))""",
    ),
    "tables are neither partitioned nor inherited": (
        """SELECT t.name, k.relkind::text FROM tables t JOIN pg_class k ON k.oid = t.oid
        WHERE k.relkind = 'p' OR k.relispartition OR EXISTS (SELECT FROM pg_inherits h WHERE t.oid = h.inhrelid)""",
        "CREATE TABLE planted (collection_id bigint NOT NULL) PARTITION BY HASH (collection_id)",
    ),
    "every row says whose it is": (
        """SELECT t.name, 'tenant' FROM tables t
        LEFT JOIN columns c ON c.attrelid = t.oid AND c.attname = 'tenant' AND c.attnotnull
        LEFT JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype = 'c' AND k.convalidated
             AND pg_get_constraintdef(k.oid) = 'CHECK ((tenant <> ''''::text))'
        WHERE c.attname IS NULL OR k.oid IS NULL""",
        "CREATE TABLE planted (collection_id bigint NOT NULL, tenant text NOT NULL CHECK (tenant <> 'x'))",
    ),
    "constraints are named by our convention": (
        """SELECT t.name, k.conname FROM tables t JOIN pg_constraint k ON k.conrelid = t.oid
        LEFT JOIN pg_class r ON r.oid = k.confrelid
        CROSS JOIN LATERAL (SELECT string_agg(a.attname, '_' ORDER BY n) AS names
            FROM unnest(k.conkey) WITH ORDINALITY u(number, n)
            JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = u.number) c
        WHERE k.contype <> 'n' AND NOT CASE k.contype
            WHEN 'p' THEN k.conname = 'pk_' || t.name
            WHEN 'u' THEN k.conname = 'uq_' || t.name || '_' || c.names
            WHEN 'f' THEN k.conname = 'fk_' || t.name || '_' || r.relname
            WHEN 'c' THEN k.conname LIKE 'ck_' || t.name || '_%'
            ELSE false END""",
        "CREATE TABLE planted (collection_id bigint PRIMARY KEY)",
    ),
    "indexes are named by our convention": (
        """SELECT t.name, x.relname FROM tables t JOIN pg_index i ON i.indrelid = t.oid
        JOIN pg_class x ON x.oid = i.indexrelid
        CROSS JOIN LATERAL (SELECT string_agg(a.attname, '_' ORDER BY n) AS names
            FROM unnest(i.indkey::int2[]) WITH ORDINALITY u(number, n)
            JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = u.number) c
        WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = x.oid)
        AND x.relname <> 'ix_' || t.name || '_' || c.names""",
        "CREATE TABLE planted (collection_id bigint NOT NULL); CREATE INDEX fast ON planted (collection_id)",
    ),
}
EACH_RULE = pytest.mark.parametrize("rule", RULES)


def broken(connection: sa.Connection, rule: str, schema: str) -> list[tuple[str, str]]:
    query, _ = RULES[rule]
    return [(row[0], row[1]) for row in connection.execute(sa.text(PLACED + query), {"schema": schema})]


@pytest.fixture
def scratch(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection whose unnamed tables go to the schema `scratch`, all of it rolled back."""
    with engine.connect() as connection:
        connection.execute(sa.text("CREATE SCHEMA scratch"))
        connection.execute(sa.text("SET LOCAL search_path = scratch"))
        yield connection


@EACH_RULE
def test_migrated_schema_keeps(engine: sa.Engine, rule: str) -> None:
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM pg_tables WHERE schemaname = 'cayu'")) >= 16
        assert broken(connection, rule, "cayu") == []


@EACH_RULE
def test_a_planted_fault_is_seen_by(scratch: sa.Connection, rule: str) -> None:
    fault = RULES[rule][1]
    for statement in fault.split(";"):
        scratch.execute(sa.text(statement))
    table = "collections" if "TABLE collections" in fault else "planted"
    assert table in {name for name, _ in broken(scratch, rule, "scratch")}


# --- the SQL that the product and its migrations send

SOURCES = sorted([*(ROOT / "cayu_pg").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")])

# What no SQL text may hold, and which calls or attributes spell the same in Python.
FORBIDDEN_SQL = {
    r"\bset_config\s*\(": "a setting made by a function is not forwarded to other nodes",
    r"\bMERGE\s+INTO\b": "MERGE returns nothing and knows no defaults on a distributed table",
    r"\bGENERATED\s+(ALWAYS|BY\s+DEFAULT)\s+AS\s+IDENTITY\b": "identity columns cannot be redistributed",
    r"\bDO\s+UPDATE\s+SET\b[^;]*\b(now|clock_timestamp|statement_timestamp|random)\s*\(": "must be immutable",
    r"\bDO\s+UPDATE\s+SET\b[^;]*\bcurrent_timestamp\b": "must be immutable",
    r"\bCREATE\s+(CONSTRAINT\s+)?TRIGGER\b": "distributed tables have no triggers",
}
FORBIDDEN_NAMES = {
    "set_config": "a setting made by a function is not forwarded to other nodes",
    "constraint_name": "a distributed engine sends no constraint names; judge by SQLSTATE",
    "Identity": "identity columns cannot be redistributed",
}
VOLATILE = {"now", "current_timestamp", "clock_timestamp", "statement_timestamp", "random"}


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Every string of a module that is no docstring; of an f-string the parts that are fixed."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def names_of(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def upserts_of(tree: ast.AST) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if getattr(call.func, "attr", None) == "on_conflict_do_update"]


def faults_in(source: str) -> set[str]:
    tree = ast.parse(source)
    found = {
        pattern
        for text in texts_of(tree)
        for pattern in FORBIDDEN_SQL
        if re.search(pattern, text, re.I | re.S)
    }
    found |= names_of(tree) & FORBIDDEN_NAMES.keys()
    for call in upserts_of(tree):
        updates = [word.value for word in call.keywords]
        found |= {f"{name}() in DO UPDATE" for value in updates for name in names_of(value) & VOLATILE}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sql_has_nothing_that_a_distributed_engine_refuses(path: Path) -> None:
    assert faults_in(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    "source",
    [
        "q = \"SELECT set_config('hnsw.ef_search', '200', true)\"",
        "q = f'SELECT set_config({name}, {value}, true)'",
        "q = sa.func.set_config('hnsw.ef_search', '200', True)",
        "q = 'MERGE INTO records USING staged ON true WHEN MATCHED THEN DELETE'",
        "q = 'INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET seen = now()'",
        "q = 'INSERT INTO t VALUES (1) ON CONFLICT (id)\\nDO UPDATE SET n = 1, seen = current_timestamp'",
        "q = insert(t).on_conflict_do_update(index_elements=['id'], set_={'seen': sa.func.now()})",
        "if error.orig.diag.constraint_name == 'uq_records': pass",
        "q = 'ALTER TABLE t ADD COLUMN id bigint GENERATED BY DEFAULT AS IDENTITY'",
        "c = sa.Column('id', sa.BigInteger, sa.Identity())",
        "q = 'CREATE TRIGGER touch BEFORE UPDATE ON t EXECUTE FUNCTION f()'",
    ],
)
def test_a_planted_statement_is_seen(source: str) -> None:
    assert len(faults_in(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        '"""Never by set_config(), which is not forwarded."""',
        "q = 'INSERT INTO t VALUES (now()) ON CONFLICT (id) DO UPDATE SET n = excluded.n'",
        "q = insert(t).on_conflict_do_update(index_elements=['id'], set_={'n': 1}).values(seen=sa.func.now())",
        "convention = {'ck': 'ck_%(table_name)s_%(constraint_name)s'}",
    ],
)
def test_what_is_allowed_is_not_reported(source: str) -> None:
    assert faults_in(source) == set()
