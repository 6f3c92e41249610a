"""While one batch is written, the next is cut and embedded: what overlaps, and what stays as strict as before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.ext.asyncio import create_async_engine

from cayu_pg.async_store import AsyncStore
from cayu_pg.errors import InvalidInput, QueryCanceled
from cayu_pg.ingesting import IngestProgress
from cayu_pg.records import Document
from cayu_pg.sql import batches
from cayu_pg.sql.engine import parse_url
from cayu_pg.sql.records import finish_batch
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, rows, scalar

COUNT = "SELECT count(*) FROM cayu.records"
OF_OURS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
SECONDS = 20.0  # to wait for what has to come; a failing test takes that long


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cayu_pg.ingesting.BATCH_DOCUMENTS", 2)


def notes(count: int = 6) -> list[Document]:
    return [Document(f"Note {number} about topic {number * 7}.", id=str(number)) for number in range(count)]


class Watched(CountingEmbedder):
    """Notes who calls; may fail at a call, and tells when it was called for the second time."""

    def __init__(self, *, fail_at: int = 0, error: BaseException | None = None) -> None:
        super().__init__()
        self.calls: list[threading.Thread] = []
        self.again = threading.Event()
        self.alone = threading.Lock()
        self.fail_at, self.error = fail_at, error

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        assert self.alone.acquire(blocking=False), "called from two threads at once"
        try:
            self.calls.append(threading.current_thread())
            if len(self.calls) == 2:
                self.again.set()
            if self.error is not None and len(self.calls) == self.fail_at:
                raise self.error
            return super().encode_documents(texts)
        finally:
            self.alone.release()


def wait_in_the_first_write(monkeypatch: pytest.MonkeyPatch, event: threading.Event) -> list[bool]:
    """The first write waits for the event; whether it came, for each write."""
    came: list[bool] = []

    def finish(*given: Any, **named: Any) -> None:
        came.append(event.wait(0 if came else SECONDS))
        finish_batch(*given, **named)

    monkeypatch.setattr(batches, "finish_batch", finish)
    return came


def test_a_batch_is_embedded_while_the_last_is_written(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Watched()
    came = wait_in_the_first_write(monkeypatch, embedder.again)
    report = Store(engine, embedder=embedder).collection("notes").ingest(notes())
    assert came == [True] * 3
    assert report.records_added == scalar(engine, COUNT) == 6
    assert set(embedder.calls) == {threading.current_thread()}


def test_a_batch_is_embedded_while_the_last_is_written_by_asyncio(
    database_url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Watched()
    written: list[int] = []

    def finish(*given: Any, **named: Any) -> None:
        # The loop must stay free for the embedder: the write waits in the server, for the second embedding.
        while not written and not embedder.again.is_set():
            given[0].execute(sa.text("SELECT pg_sleep(0.01)"))
        written.append(len(embedder.calls))
        finish_batch(*given, **named)

    async def ingest() -> None:
        async with AsyncStore(database_url, embedder=embedder) as store:
            await (await store.collection("notes")).ingest(notes())

    monkeypatch.setattr(batches, "finish_batch", finish)
    asyncio.run(asyncio.wait_for(ingest(), SECONDS))
    assert written[0] >= 2
    assert scalar(engine, COUNT) == 6


def test_what_fails_ahead_leaves_the_batch_before_it_written_and_told(engine: sa.Engine) -> None:
    told: list[IngestProgress] = []
    store = Store(engine, embedder=Watched(fail_at=2, error=InvalidInput("text", "some", "none")))
    with pytest.raises(InvalidInput, match="expected some"):
        store.collection("notes").ingest(notes(), progress=told.append)
    assert [each.documents for each in told] == [2]
    assert rows(engine, "SELECT record_id FROM cayu.records ORDER BY 1") == [("0",), ("1",)]


def test_documents_that_end_in_an_error_leave_the_batches_before_it(engine: sa.Engine) -> None:
    def documents() -> Iterator[Document]:
        yield from notes(5)
        raise OSError("the source is gone")

    told: list[IngestProgress] = []
    with pytest.raises(OSError, match="gone"):
        Store(engine, embedder=Watched()).collection("notes").ingest(documents(), progress=told.append)
    assert [each.documents for each in told] == [2, 4]
    assert scalar(engine, COUNT) == 4


def test_a_write_that_fails_ends_the_ingest_and_leaves_nothing_of_its_batch_or_the_next(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(engine, embedder=Watched())
    with monkeypatch.context() as patch:
        patch.setattr(batches, "finish_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.collection("notes").ingest(notes())
    assert scalar(engine, COUNT) == 0
    assert store.collection("notes").ingest(notes()).records_added == 6


def test_an_interrupt_waits_for_the_write_and_leaves_no_thread(engine: sa.Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        Store(engine, embedder=Watched(fail_at=2, error=KeyboardInterrupt())).collection("notes").ingest(
            notes()
        )
    assert [each.name for each in threading.enumerate() if each.name.startswith("cayu_pg")] == []
    assert scalar(engine, COUNT) == scalar(engine, "SELECT count(*) FROM cayu.chunk_lexemes") == 2


def test_a_cancelled_ingest_ends_its_write_on_the_server(
    database_url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(conn: sa.Connection, *_: Any, **__: Any) -> None:
        conn.execute(sa.text("SELECT pg_sleep(600)"))

    async def ingest_and_cancel() -> None:
        async with AsyncStore(database_url, embedder=embedder) as store:
            task = asyncio.create_task((await store.collection("notes")).ingest(notes()))
            while not embedder.again.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    embedder = Watched()
    monkeypatch.setattr(batches, "finish_batch", finish)
    asyncio.run(asyncio.wait_for(ingest_and_cancel(), SECONDS))
    assert scalar(engine, OF_OURS + " AND query ~ 'pg_sleep'") == 0
    assert scalar(engine, COUNT) == 0


def test_on_a_callers_connection_everything_happens_in_turn(engine: sa.Engine) -> None:
    threads: set[threading.Thread] = set()
    sa.event.listen(engine, "before_cursor_execute", lambda *_: threads.add(threading.current_thread()))
    with engine.connect() as connection:
        Store(engine, embedder=Watched()).using(connection).collection("notes").ingest(notes())
        assert scalar(engine, COUNT) == 0
        connection.commit()
    assert scalar(engine, COUNT) == 6
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("pool", [{"pool_size": 1, "pool_timeout": 0.1}, {"poolclass": sa.AssertionPool}])
def test_one_connection_is_enough(database_url: str, pool: dict[str, Any]) -> None:
    engine = sa.create_engine(parse_url(database_url), **pool)
    report = Store(engine, embedder=Watched()).collection("notes").ingest(notes())
    assert report.records_added == 6
    engine.dispose()


def test_one_connection_is_enough_for_asyncio(database_url: str) -> None:
    async def ingest() -> int:
        engine = create_async_engine(parse_url(database_url), pool_size=1, max_overflow=0, pool_timeout=0.1)
        collection = await AsyncStore(engine, embedder=Watched()).collection("notes")
        added = (await collection.ingest(notes())).records_added
        await engine.dispose()
        return added

    assert asyncio.run(ingest()) == 6


def test_texts_of_the_batch_that_is_being_written_are_not_embedded_again(engine: sa.Engine) -> None:
    embedder = Watched()
    same = [Document("The same text.", id=str(number)) for number in range(8)]
    report = Store(engine, embedder=embedder).collection("notes").ingest(same)
    assert embedder.documents == ["The same text."]
    assert (report.embeddings_computed, report.embeddings_reused) == (1, 7)


def test_a_record_that_comes_back_in_the_next_batch_is_compared_with_what_was_just_written(
    engine: sa.Engine,
) -> None:
    collection = Store(engine, embedder=Watched()).collection("notes")
    collection.ingest(Document("first", id="a"))
    report = collection.ingest([Document("second", id="a"), Document("first", id="a")])
    assert report.records_changed == 2
    assert [each.text for each in collection.history("a")] == ["first", "second", "first"]


def test_timeouts_hold_for_writes_beside_other_steps(engine: sa.Engine) -> None:
    store = Store(engine, embedder=Watched()).with_timeouts(lock_timeout=0.1)
    store.collection("notes").ingest(notes())
    with engine.connect() as holder:
        holder.execute(sa.text("SELECT FROM cayu.records WHERE record_id = '3' FOR UPDATE"))
        changed = [Document(f"{each.text} Changed.", id=each.id) for each in notes()]
        with pytest.raises(QueryCanceled):
            store.collection("notes").ingest(changed)
    assert store.collection("notes").ingest(changed).records_changed == 4
