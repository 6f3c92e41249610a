"""Versions: supported ones of PostgreSQL do everything, a pgvector too old is refused, a vulnerable one is told of."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from cayu_pg import Document, HashEmbedder, Message, MissingExtension, Store, migrate
from cayu_pg.sql.engine import vulnerability, warn_of_vulnerability
from tests.conftest import new_database

EMBEDDER = HashEmbedder(16)


@pytest.mark.parametrize(("server", "version"), [("server_url", 18), ("postgres16_url", 16)])
def test_versions_of_postgresql_that_are_supported_do_everything(
    request: pytest.FixtureRequest, server: str, version: int
) -> None:
    with new_database(request.getfixturevalue(server)) as url:
        migrate(url)
        with Store(url, embedder=EMBEDDER) as store:
            notes = store.collection("notes")
            notes.ingest([Document(f"Note {number}.", id=str(number)) for number in range(30)])
            assert len(notes.reindex(min_chunks=10)) == 3
            assert [hit.record_id for hit in notes.search("note 7", limit=1).hits] == ["7"]
            store.transcript("talk").append([Message.text("user", "Rotate the key.")])
            assert [hit.position for hit in store.transcript("talk").search("key")] == [0]
            report = store.doctor()
    assert report.level != "error"
    assert f"PostgreSQL: {version}." in str(report)


def pretend(engine: sa.Engine, version: str) -> None:
    """Let the database say that it has this version of pgvector."""
    with engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE pg_extension SET extversion = :version WHERE extname = 'vector'"),
            {"version": version},
        )


def test_a_version_that_is_too_old_is_refused_by_stores_and_migrations(
    engine: sa.Engine, database_url: str
) -> None:
    pretend(engine, "0.7.4")
    with pytest.raises(MissingExtension, match=r"expected 0\.8\.0 or newer, found 0\.7\.4"):
        Store(engine, embedder=EMBEDDER).collection("notes")
    with pytest.raises(MissingExtension, match=r"expected 0\.8\.0 or newer, found 0\.7\.4"):
        migrate(database_url, schema="other")


def test_a_version_with_a_known_vulnerability_is_warned_about_once(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_vulnerability.cache_clear()
    pretend(engine, "0.8.1")
    with caplog.at_level(logging.WARNING):
        for tenant in ("default", "other"):
            notes = Store(engine, embedder=EMBEDDER).for_tenant(tenant).collection("notes")
            assert notes.ingest(["A text."]).records_added == 1
    assert [each.getMessage() for each in caplog.records] == [vulnerability("0.8.1")]


@pytest.mark.parametrize("version", ["0.8.2", "0.8.10", "0.10.0", "1.0"])
def test_a_version_without_a_known_vulnerability_is_no_news(version: str) -> None:
    assert vulnerability(version) is None
