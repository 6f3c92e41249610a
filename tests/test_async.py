"""The asynchronous door in an event loop that others use: cancelling, never blocking, and loop after loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.ext.asyncio import create_async_engine

from cayu_pg import AsyncStore, Document, HashEmbedder, InvalidInput, appending, message_search, transcripts
from cayu_pg.sql.engine import parse_url
from tests.invariants import broken
from tests.stores import rows, scalar
from tests.talks import user

Call = Callable[[AsyncStore], Coroutine[Any, Any, Any]]
SESSIONS = """SELECT state, coalesce(wait_event_type, '') FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


NUMBERS = count()


async def ingest(store: AsyncStore) -> Any:
    return await (await store.collection("notes")).ingest(
        [Document(f"Text {n}", id=str(n)) for n in range(9)]
    )


async def ingest_anew(store: AsyncStore) -> Any:
    text = f"Text {next(NUMBERS)}"
    return await (await store.collection("notes")).ingest([Document(text, id=str(n)) for n in range(9)])


async def search(store: AsyncStore) -> Any:
    return await (await store.collection("notes")).search("text")


async def append(store: AsyncStore) -> Any:
    return await (await store.transcript("talk")).append([user("x")] * 3)


async def read(store: AsyncStore) -> Any:
    return await (await store.transcript("talk")).read()


CALLS: tuple[tuple[Call, str], ...] = (
    (ingest, "chunks"),
    (ingest, "chunk_embeddings"),  # while it sends vectors by COPY
    (search, "chunk_embeddings"),
    (append, "transcript_messages"),
    (read, "transcript_messages"),
)


def one_connection(url: str) -> AsyncStore:
    engine = create_async_engine(parse_url(url), pool_size=1, max_overflow=0, pool_timeout=10)
    return AsyncStore(engine, embedder=HashEmbedder(16))


def locked(engine: sa.Engine, table: str) -> sa.Connection:
    """A connection that keeps everybody out of a table."""
    connection = engine.connect()
    connection.execute(sa.text(f"LOCK TABLE cayu.{table} IN ACCESS EXCLUSIVE MODE"))
    return connection


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def waits(engine: sa.Engine) -> bool:
    return ("active", "Lock") in rows(engine, SESSIONS)


def test_cancelling_a_task_stops_its_statement_and_leaves_the_pool_whole(
    database_url: str, engine: sa.Engine
) -> None:
    async def main() -> None:
        store = one_connection(database_url)
        for call, table in CALLS:
            await ingest(store)
            await (await store.collection("notes")).delete("0")
            with locked(engine, table):
                task = asyncio.create_task(call(store))
                await until(lambda: waits(engine))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                # The lock is still held: what waited for it has been stopped.
                await until(lambda: not waits(engine))
            assert store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
            await call(store)
        await store.engine.dispose()

    asyncio.run(main())
    assert broken(engine) == {}


def test_cancelling_at_any_statement_leaves_the_pool_whole_and_nothing_half_written(
    database_url: str, engine: sa.Engine
) -> None:
    async def cancelled_at(store: AsyncStore, call: Call, statement: int) -> bool:
        """Whether the call had so many statements; it is cancelled while it waits for that one."""
        task, sent = asyncio.create_task(call(store)), count(1)

        def cancel(*_: object) -> None:
            if next(sent) == statement:
                task.cancel()

        sa.event.listen(store.engine.sync_engine, "before_cursor_execute", cancel)
        await asyncio.wait([task])
        sa.event.remove(store.engine.sync_engine, "before_cursor_execute", cancel)
        assert store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        return task.cancelled()

    async def main() -> list[int]:
        store, statements = one_connection(database_url), []
        await ingest(store)
        for call in (ingest_anew, search, append, read):
            statement = 1
            while await cancelled_at(store, call, statement):
                assert await asyncio.to_thread(broken, engine) == {}
                statement += 1
            statements.append(statement - 1)
        await store.engine.dispose()
        return statements

    written, *others = asyncio.run(main())
    assert written > 15
    assert min(others) >= 1


class Ticks:
    """A task that shows that the event loop runs: it counts, and says so when it has counted on for a while."""

    def __init__(self) -> None:
        self.count = 0
        self.went_on = threading.Event()
        self._until = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.count += 1
            if self.count >= self._until:
                self.went_on.set()

    def wait_for(self, ticks: int) -> None:
        """Block this thread, which is not that of the loop, until the loop has gone on for so many ticks."""
        self.went_on.clear()
        self._until = self.count + ticks
        assert self.went_on.wait(10), "the event loop was blocked"


class Slow(HashEmbedder):
    """A model that takes as long as the event loop needs for 20 ticks, which is for ever when it blocks the loop."""

    def __init__(self, ticks: Ticks) -> None:
        super().__init__(16)
        self.ticks = ticks
        self.calls = 0

    def work(self) -> None:
        self.calls += 1
        self.ticks.wait_for(20)

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.work()
        return super().encode_documents(texts)

    def encode_query(self, text: str) -> NDArray[np.float32]:
        self.work()
        return super().encode_query(text)

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        self.work()
        return np.zeros(len(documents), np.float32)


def test_a_slow_model_never_blocks_the_event_loop(database_url: str) -> None:
    async def main() -> int:
        ticks = Ticks()
        ticking, model = asyncio.create_task(ticks.run()), Slow(ticks)
        async with AsyncStore(database_url, embedder=model, reranker=model) as store:
            await ingest(store)
            await (await store.collection("notes")).search("text", rerank=True)
        ticking.cancel()
        return model.calls

    assert asyncio.run(main()) >= 3  # documents, question, reranking


def test_slow_sql_never_blocks_the_event_loop(database_url: str, engine: sa.Engine) -> None:
    async def main() -> None:
        ticks = Ticks()
        ticking = asyncio.create_task(ticks.run())
        async with AsyncStore(database_url, embedder=HashEmbedder(16), statement_timeout=10) as store:
            for call, table in CALLS:
                await ingest(store)
                await (await store.collection("notes")).delete("0")
                with locked(engine, table):
                    slow = asyncio.create_task(call(store))
                    await until(lambda: waits(engine))
                    await asyncio.to_thread(ticks.wait_for, 20)
                    assert not slow.done()
                await slow
        ticking.cancel()

    asyncio.run(main())


def test_checking_messages_never_blocks_the_event_loop(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*given)

        return call

    monkeypatch.setattr(transcripts, "valid_message", noted(transcripts.valid_message))
    monkeypatch.setattr(appending, "check_messages", noted(appending.check_messages))
    monkeypatch.setattr(message_search, "valid_message", noted(message_search.valid_message))

    async def main() -> None:
        async with AsyncStore(database_url) as store:
            await append(store)
            await read(store)
            await (await store.transcript("talk")).search("x")

    asyncio.run(main())
    assert len(threads) == 1 + 3 + 3
    assert threading.main_thread() not in threads


def test_one_store_works_in_one_event_loop_after_the_other(database_url: str, engine: sa.Engine) -> None:
    store = AsyncStore(database_url, embedder=HashEmbedder(16))

    async def crowd() -> list[Any]:
        # More than the pool holds, so that some wait for a connection.
        return await asyncio.gather(*(search(store) for _ in range(30)))

    asyncio.run(ingest(store))
    for _ in range(3):
        assert {len(found.hits) for found in asyncio.run(crowd())} == {9}
    asyncio.run(store.close())
    assert scalar(engine, f"SELECT count(*) FROM ({SESSIONS}) s WHERE state <> 'idle'") == 0


def test_one_store_in_two_event_loops_at_once_is_refused(database_url: str) -> None:
    store = AsyncStore(database_url, embedder=HashEmbedder(16))

    def in_a_loop_of_its_own(work: Callable[[AsyncStore], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            return await work(store)

        return asyncio.run(main())

    async def main() -> None:
        await ingest(store)
        with pytest.raises(InvalidInput, match="one event loop"):
            await asyncio.to_thread(in_a_loop_of_its_own, search)
        assert (await search(store)).hits
        await store.close()

    asyncio.run(main())
