"""PgBouncer in transaction mode: everything works through it, and nothing stays behind in the sessions it shares."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from cayu_pg import AsyncStore, Document, HashEmbedder, InvalidInput, Store, migrate
from cayu_pg.sql.engine import open_engine
from tests.conftest import temporary_folder
from tests.invariants import broken
from tests.pgbouncer import MUST_RUN, PROGRAM, SERVERS, pgbouncer
from tests.stores import rows, scalar
from tests.talks import numbered, texts, user

pytestmark = pytest.mark.skipif(
    PROGRAM is None and not MUST_RUN,
    reason="no pgbouncer here; .ci/run installs Debian's package where it may",
)

EMBEDDER = HashEmbedder(16)
DOCUMENTS = [
    Document(f"Note {n} on subject {n % 5}.", id=str(n), title=f"Note {n}", metadata={"n": n})
    for n in range(60)
]
LEFT_BEHIND = "SELECT locktype, pid FROM pg_locks WHERE locktype = 'advisory'"
SETTINGS = sa.text("SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name")


@pytest.fixture
def pooled_url(database_url: str) -> Iterator[str]:
    """The URL of the test's database through PgBouncer, whose sessions are looked at in the end."""
    with temporary_folder() as folder, pgbouncer(database_url, folder) as url:
        before = sessions(url)
        yield url
        assert sessions(url) == before
        direct = open_engine(database_url)
        assert rows(direct, LEFT_BEHIND) == []
        assert broken(direct) == {}
        direct.dispose()


def sessions(url: str) -> list[list[Any]]:
    """What is set and prepared in the sessions of the pooler: as many transactions at once as it has."""
    engine = open_engine(url)
    clients = [engine.connect() for _ in range(SERVERS)]
    processes = {client.scalar(sa.text("SELECT pg_backend_pid()")) for client in clients}
    assert len(processes) == SERVERS
    found = [
        [
            *map(tuple, client.execute(SETTINGS)),
            *client.scalars(sa.text("SELECT name FROM pg_prepared_statements")),
        ]
        for client in clients
    ]
    for client in clients:
        client.close()
    engine.dispose()
    return found


def test_pgbouncer_between_store_and_server(pooled_url: str, engine: sa.Engine) -> None:
    with Store(pooled_url, embedder=EMBEDDER) as store:
        notes = store.collection("notes")
        assert notes.ingest(DOCUMENTS).records_added == 60
        Store(engine, embedder=EMBEDDER).collection("notes").reindex(min_chunks=10)
        notes = store.collection("notes")
        for options in (
            {},
            {"where": {"n": {"lt": 9}}, "mode": "web"},
            {"fuzzy": True, "timeout": 5, "candidates": 50},
            {"per_record": True, "exact": True},
            {"as_of": datetime.now(UTC)},
            {"channels": "vector", "max_distance": 2.0},
        ):
            assert notes.search("subject 3", **options).hits  # type: ignore[arg-type]
        first = notes.search("subject 3", limit=3)
        assert notes.search("subject 3", limit=3, continuation=first.continuation).hits
        assert len(store.search(["notes"], "subject 3").hits) == 10
        assert notes.ingest([Document("Changed.", id="1")]).records_changed == 1
        assert notes.restore("1", 1) == 3
        assert notes.sync(DOCUMENTS[:55]).records_deleted == 5
        assert notes.delete("2") == 1
        assert notes.erase("3") == 1
        assert notes.prune(keep_last=1) >= 1
        assert notes.refresh_statistics() is True
        assert [each.name for each in store.collections()] == ["notes"]
        assert store.with_timeouts(statement_timeout=5, lock_timeout=5).collection("notes").count() == 53


def test_pgbouncer_between_transcripts_and_server(pooled_url: str) -> None:
    with Store(pooled_url) as store:
        talk = store.transcript("talk")
        talk.append(numbered(30))
        for replayed in (False, True):
            done = talk.append(user("x"), idempotency_key="k")
            assert (done.first, done.replayed) == (30, replayed)
        assert texts(talk.last(2)) == ["message 29", "x"]
        assert len(talk.search("message", limit=5)) == 5
        assert talk.delete_before(10) == 10
        assert store.search_messages("message 29")
        assert talk.delete() is True


def test_pgbouncer_and_a_crowd_of_tasks(pooled_url: str) -> None:
    async def one(store: AsyncStore, number: int) -> int:
        notes = await store.collection("notes")
        talk = await store.transcript("talk")
        await notes.ingest(
            [Document(f"Task {number} on subject {part}", id=f"{number}-{part}") for part in range(5)]
        )
        await talk.append(user(f"task {number}"))
        return len((await notes.search("subject", limit=5)).hits)

    async def main() -> None:
        async with AsyncStore(pooled_url, embedder=EMBEDDER) as store:
            await store.collection("notes")
            assert await asyncio.gather(*(one(store, number) for number in range(12))) == [5] * 12
            assert await (await store.collection("notes")).count() == 60
            assert await (await store.transcript("talk")).count() == 12

    asyncio.run(main())


def test_pgbouncer_and_the_callers_transaction(pooled_url: str, engine: sa.Engine) -> None:
    ours = open_engine(pooled_url)
    with Store(ours, embedder=EMBEDDER) as store, Session(ours) as session:
        store.collection("notes")
        inside = store.using(session).collection("notes")
        inside.ingest(DOCUMENTS)
        assert inside.search("subject 3").hits
        assert scalar(engine, "SELECT count(*) FROM cayu.records") == 0
        session.commit()
        store.using(session).collection("notes").ingest(["Never written."])
        session.rollback()
        assert store.collection("notes").count() == 60
    ours.dispose()


def test_pgbouncer_and_a_collection_with_indexes_that_is_dropped(pooled_url: str, engine: sa.Engine) -> None:
    direct = Store(engine, embedder=EMBEDDER).collection("notes")
    direct.ingest(DOCUMENTS)
    assert direct.reindex(min_chunks=10)
    with Store(pooled_url, embedder=EMBEDDER) as store:
        assert store.drop_collection("notes") is True
    assert scalar(engine, "SELECT count(*) FROM pg_indexes WHERE indexname ~ '^(gin|hnsw)_.*[0-9]$'") == 0


def test_pgbouncer_is_refused_for_what_needs_a_session(pooled_url: str) -> None:
    with Store(pooled_url, embedder=EMBEDDER) as store:
        notes = store.collection("notes")
        notes.ingest(DOCUMENTS)
        with pytest.raises(InvalidInput, match="building indexes, that of the server itself"):
            notes.reindex(min_chunks=10)
    with pytest.raises(InvalidInput, match="pooler"):
        migrate(pooled_url, schema="other")


def test_pgbouncer_is_noted_by_the_doctor(pooled_url: str) -> None:
    with Store(pooled_url) as store:
        report = store.doctor()
    assert report.level != "error"
    assert "it leads through a pooler" in [each.found for each in report.of_level("note")]
