"""The caller's transaction: its rows and ours are one, and it keeps its settings and its options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from cayu_pg import AsyncStore, Collection, Document, HashEmbedder, Store, Transcript
from tests.stores import scalar, statements_of
from tests.talks import numbered

EMBEDDER = HashEmbedder(16)
DOCUMENTS = [Document(f"Note {n} on subject {n % 5}.", id=str(n)) for n in range(30)]
TABLES = (
    "records",
    "revisions",
    "chunks",
    "chunk_embeddings",
    "chunk_lexemes",
    "transcript_messages",
    "batches",
)


class Stop(Exception):
    """What a caller raises."""


@pytest.fixture
def store(engine: sa.Engine) -> Store:
    store = Store(engine, embedder=EMBEDDER)
    store.collection("notes")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE mine (id int)"))
    return store


@contextmanager
def connection_of(engine: sa.Engine) -> Iterator[Any]:
    with engine.begin() as connection:
        yield connection


@contextmanager
def session_of(engine: sa.Engine) -> Iterator[Any]:
    with Session(engine) as session, session.begin():
        yield session


@contextmanager
def savepoint_of(engine: sa.Engine) -> Iterator[Any]:
    with engine.begin() as connection, connection.begin_nested():
        yield connection


def counted(engine: sa.Engine) -> dict[str, object]:
    return {table: scalar(engine, f"SELECT count(*) FROM cayu.{table}") for table in TABLES}


@pytest.mark.parametrize("caller", [connection_of, session_of, savepoint_of])
def test_the_callers_transaction_takes_our_rows_with_its_own_when_it_fails(
    engine: sa.Engine, store: Store, caller: Callable[[sa.Engine], Any]
) -> None:
    def work(connection: Any) -> None:
        connection.execute(sa.text("INSERT INTO mine VALUES (1)"))
        inside = store.using(connection)
        inside.collection("notes").ingest(DOCUMENTS)
        inside.transcript("talk").append(numbered(3))
        assert inside.collection("notes").search("subject 3").hits
        assert inside.transcript("talk").count() == 3

    with pytest.raises(Stop), caller(engine) as connection:
        work(connection)
        raise Stop
    assert counted(engine) == dict.fromkeys(TABLES, 0)
    assert scalar(engine, "SELECT count(*) FROM mine") == 0
    with caller(engine) as connection:
        work(connection)
    assert scalar(engine, "SELECT count(*) FROM cayu.records") == len(DOCUMENTS)
    assert scalar(engine, "SELECT count(*) FROM mine") == 1


@pytest.mark.parametrize("kind", [AsyncConnection, AsyncSession])
def test_the_callers_asynchronous_transaction_takes_our_rows_with_its_own(
    engine: sa.Engine, database_url: str, store: Store, kind: type
) -> None:
    async def work(store: AsyncStore, connection: Any) -> None:
        await connection.execute(sa.text("INSERT INTO mine VALUES (1)"))
        inside = await store.using(connection)
        notes, talk = await inside.collection("notes"), await inside.transcript("talk")
        await notes.ingest(DOCUMENTS)
        await talk.append(numbered(3))
        assert (await notes.search("subject 3")).hits

    async def main() -> None:
        async with AsyncStore(database_url, embedder=EMBEDDER) as store:
            opened: Any = (
                store.engine.connect if kind is AsyncConnection else lambda: AsyncSession(store.engine)
            )
            with pytest.raises(Stop):
                async with opened() as connection, connection.begin():
                    await work(store, connection)
                    raise Stop
            assert counted(engine) == dict.fromkeys(TABLES, 0)
            async with opened() as connection, connection.begin():
                await work(store, connection)

    asyncio.run(main())
    assert scalar(engine, "SELECT count(*) FROM cayu.records") == len(DOCUMENTS)
    assert scalar(engine, "SELECT count(*) FROM mine") == 1


def everything(notes: Collection, talk: Transcript) -> Iterator[object]:
    """Each call that a caller's transaction allows, after the one before."""
    yield notes.search("subject 3", candidates=200, timeout=5, where={"lang": {"exists": False}})
    yield notes.search("subjekt 3", fuzzy=True, exact=True, per_record=True, mode="web")
    yield notes.search("subject", as_of=datetime.now(UTC))
    yield notes.ingest([Document("One more.", id="more")])
    yield notes.with_timeouts(statement_timeout=5, lock_timeout=5).ingest([Document("And more.", id="more")])
    yield notes.restore("more", 1)
    yield notes.sync([Document("One more.", id="more")], scope={"lang": "none"})
    yield notes.delete("more")
    yield notes.erase("3")
    yield notes.prune(keep_last=1)
    yield notes.refresh_statistics()
    yield notes.measure_recall(sample=5)
    yield notes.records()
    yield talk.append(numbered(3), idempotency_key="k")
    yield talk.search("message")
    yield talk.last(2)
    yield talk.delete_before(1)


def settings(connection: sa.Connection) -> list[Any]:
    return list(connection.execute(sa.text("SELECT name, setting FROM pg_settings ORDER BY name")))


def test_the_callers_transaction_keeps_its_settings_and_options_also_inside_savepoints(
    engine: sa.Engine, store: Store
) -> None:
    store.collection("notes").ingest(DOCUMENTS)
    store.collection("notes").reindex(min_chunks=10)
    with engine.connect().execution_options(stream_results=False) as connection:
        connection.execute(sa.text("SELECT '[1]'::vector"))  # loads the library, which brings its settings
        connection.execute(sa.text("SET LOCAL hnsw.ef_search = 77"))
        connection.execute(sa.text("SET LOCAL lock_timeout = '7s'"))
        before, options = settings(connection), dict(connection.get_execution_options())
        inside = store.using(connection)
        notes, talk = inside.collection("notes"), inside.transcript("talk")
        for savepoint in (connection.begin_nested, connection.begin_nested, None):
            entered = savepoint() if savepoint is not None else None
            for _ in everything(notes, talk):
                assert settings(connection) == before
            if entered is not None:
                entered.rollback()
                assert settings(connection) == before
        assert dict(connection.get_execution_options()) == options
        assert connection.in_transaction()
        connection.rollback()
    assert counted(engine)["transcript_messages"] == 0


class Noting(HashEmbedder):
    """An embedder that notes how many statements were sent before it was asked."""

    def __init__(self, sent: list[str]) -> None:
        super().__init__(16)
        self.sent = sent
        self.noted: list[list[str]] = []

    def encode_documents(self, texts: Any) -> NDArray[np.float32]:
        self.noted.append([each for each in self.sent if "SAVEPOINT" not in each])
        return super().encode_documents(texts)


def test_the_callers_transaction_has_not_begun_when_a_question_is_embedded(
    engine: sa.Engine, store: Store
) -> None:
    store.collection("notes").ingest(DOCUMENTS)
    with statements_of(engine) as sent, engine.connect() as connection:
        model = Noting(sent)
        notes = store.using(connection).collection("notes", embedder=model)
        connection.commit()
        sent.clear()
        assert notes.search("subject 3").hits
        assert model.noted == [[]]


def test_the_callers_transaction_only_looks_before_documents_are_embedded(
    engine: sa.Engine, store: Store
) -> None:
    with statements_of(engine) as sent, engine.connect() as connection:
        model = Noting(sent)
        notes = store.using(connection).collection("notes", embedder=model)
        sent.clear()
        notes.ingest(DOCUMENTS)
        assert all(each.lstrip().startswith("SELECT") for each in model.noted[0])
        connection.rollback()
