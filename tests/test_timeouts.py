"""Statement and lock timeouts, of a store and of single calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from cayu_pg import AsyncStore, HashEmbedder, InvalidInput, QueryCanceled, Store
from tests.stores import scalar
from tests.talks import user

EMBEDDER = HashEmbedder(16)

CALLS: dict[str, Callable[[Store], Any]] = {
    "ingest": lambda store: store.collection("notes").ingest(["Another text."]),
    "search": lambda store: store.collection("notes").search("text"),
    "delete": lambda store: store.collection("notes").delete("a"),
    "append": lambda store: store.transcript("talk").append(user("Hello.")),
    "read": lambda store: store.transcript("talk").read(),
    "collections": lambda store: store.collections(),
}


@pytest.fixture
def store(engine: sa.Engine) -> Store:
    store = Store(engine, embedder=EMBEDDER)
    store.collection("notes").ingest(["A text."])
    store.transcript("talk").append(user("Hi."))
    return store


def locked(engine: sa.Engine) -> sa.Connection:
    """A connection that keeps everybody out of what all calls need."""
    connection = engine.connect()
    tables = "cayu.collections, cayu.chunk_lexemes, cayu.records, cayu.transcripts, cayu.transcript_messages"
    connection.execute(sa.text(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"))
    return connection


@pytest.mark.parametrize(
    ("timeouts", "reason"),
    [({"statement_timeout": 0.05}, "statement timeout"), ({"lock_timeout": 0.05}, "lock timeout")],
)
def test_timeouts_end_any_call_and_the_next_one_works(
    engine: sa.Engine, store: Store, timeouts: dict[str, float], reason: str
) -> None:
    for call in CALLS.values():
        with locked(engine), pytest.raises(QueryCanceled, match=reason) as raised:
            call(store.with_timeouts(**timeouts))
        assert isinstance(raised.value.__cause__, sa.exc.DBAPIError)
        call(store)


def test_a_store_is_made_with_timeouts_that_its_tenants_have_too(engine: sa.Engine, store: Store) -> None:
    limited = Store(engine, embedder=EMBEDDER, lock_timeout=0.05)
    for each in (limited, limited.for_tenant("other")):
        with locked(engine), pytest.raises(QueryCanceled, match="lock timeout"):
            each.collections()


def test_one_call_of_a_collection_or_transcript_has_timeouts_of_its_own(
    engine: sa.Engine, store: Store
) -> None:
    notes, talk = store.collection("notes"), store.transcript("talk")
    with locked(engine):
        with pytest.raises(QueryCanceled):
            notes.with_timeouts(lock_timeout=0.05).ingest(["Another text."])
        with pytest.raises(QueryCanceled):
            talk.with_timeouts(statement_timeout=0.05).append(user("Hello."))
        with pytest.raises(QueryCanceled):
            notes.with_timeouts(statement_timeout=3600).search("text", timeout=0.05)


def test_the_asynchronous_door_has_the_same_timeouts(
    engine: sa.Engine, database_url: str, store: Store
) -> None:
    async def main() -> None:
        async with AsyncStore(database_url, embedder=EMBEDDER, lock_timeout=3600) as store:
            notes, talk = await store.collection("notes"), await store.transcript("talk")
            with locked(engine):
                with pytest.raises(QueryCanceled):
                    await notes.with_timeouts(lock_timeout=0.05).ingest(["Another text."])
                with pytest.raises(QueryCanceled):
                    await talk.with_timeouts(statement_timeout=0.05).append(user("Hello."))
                with pytest.raises(QueryCanceled):
                    await store.with_timeouts(statement_timeout=0.05).collections()

    asyncio.run(main())


def test_the_callers_transaction_keeps_its_own_timeouts(engine: sa.Engine, store: Store) -> None:
    def timeouts(connection: sa.Connection) -> tuple[object, ...]:
        asked = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
        return tuple(connection.execute(sa.text(asked)).one())

    with engine.connect() as connection:
        connection.execute(sa.text("SET LOCAL statement_timeout = '7min'"))
        inside = store.using(connection).with_timeouts(statement_timeout=5, lock_timeout=0.2)
        inside.collection("notes").ingest(["Another text."])
        inside.collection("notes").search("text")
        assert timeouts(connection) == ("7min", "0")
        with engine.connect() as rival:
            rival.execute(sa.text("LOCK TABLE cayu.transcripts IN EXCLUSIVE MODE"))
            with pytest.raises(QueryCanceled):
                inside.transcript("talk").append(user("Hello."))
        assert timeouts(connection) == ("7min", "0")
        connection.commit()
    assert scalar(engine, "SELECT count(*) FROM cayu.chunks") == 2


def test_statistics_that_a_timeout_stopped_do_not_fail_the_ingest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(conn: sa.Connection, *_: object) -> None:
        conn.execute(sa.text("SELECT pg_sleep(10)"))

    monkeypatch.setattr("cayu_pg.sql.statistics.refresh", slow)
    notes = store.with_timeouts(statement_timeout=0.2).collection("notes")
    assert notes.ingest(["Another text.", "A third."]).records_added == 2


@pytest.mark.parametrize("seconds", [0, -1, "5", True, 1e9, float("nan")])
def test_what_is_no_time_is_refused(engine: sa.Engine, seconds: Any) -> None:
    for field in ("statement_timeout", "lock_timeout"):
        with pytest.raises(InvalidInput, match=field):
            Store(engine, **{field: seconds})
