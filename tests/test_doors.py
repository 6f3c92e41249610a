"""Both doors offer the same, and neither commits for its caller."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from cayu_pg.async_collection import AsyncCollection
from cayu_pg.async_store import AsyncStore
from cayu_pg.async_transcript import AsyncTranscript
from cayu_pg.collection import Collection
from cayu_pg.errors import InvalidInput, Unreachable
from cayu_pg.records import Document
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from tests.stores import CountingEmbedder, scalar, wait_for_lock

R = TypeVar("R")
DOCUMENTS = [Document(f"Note {number} on subject {number % 5}.", id=str(number)) for number in range(30)]


def public(kind: type) -> dict[str, list[str]]:
    """The public methods of a class with their parameters and defaults."""
    return {
        name: [f"{p.name}={p.default}" for p in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("door", "twin"), [(Store, AsyncStore), (Collection, AsyncCollection), (Transcript, AsyncTranscript)]
)
def test_both_doors_have_the_same_methods_and_parameters(door: type, twin: type) -> None:
    assert public(door) == public(twin)


def run_async(url: str, work: Callable[[AsyncStore], Coroutine[Any, Any, R]]) -> R:
    async def main() -> R:
        async with AsyncStore(url, embedder=CountingEmbedder()) as store:
            return await work(store)

    return asyncio.run(main())


def test_both_doors_give_identical_results(database_url: str, engine: sa.Engine) -> None:
    async def work(store: AsyncStore) -> tuple[Any, ...]:
        collection = await store.collection("notes")
        report = await collection.ingest(DOCUMENTS)
        again = await collection.ingest(DOCUMENTS)
        found = await collection.search("subject 3")
        page = await collection.records(limit=7)
        return report, again, found, page, await collection.count(), await collection.list_all()

    report, again, found, page, count, texts = run_async(database_url, work)
    collection = Store(engine, embedder=CountingEmbedder()).collection("notes")
    assert report.records_added == again.records_unchanged == count == collection.count() == len(DOCUMENTS)
    assert found.fusion == collection.search("subject 3").fusion
    assert page == collection.records(limit=7)
    assert texts == collection.list_all()


def test_the_async_door_does_everything_else_too(database_url: str) -> None:
    async def work(store: AsyncStore) -> None:
        collection = await store.collection("notes")
        assert collection.name == "notes"
        record_id = await collection.store("A single text.")
        record = await collection.get(record_id)
        assert record is not None
        assert record.text == "A single text."
        await collection.ingest(DOCUMENTS)
        assert sorted(await collection.reindex(min_chunks=10)) == [
            "gin_metadata_1",
            "gin_words_1",
            "hnsw_1_1",
        ]
        assert await collection.refresh_statistics() is True
        assert await collection.delete(record_id) == 1
        assert [each.deleted for each in await collection.history(record_id)] == [False, True]
        assert [each.name for each in await store.collections()] == ["notes"]
        assert await store.for_tenant("other").collections() == []
        assert await store.drop_collection("notes") is True

    run_async(database_url, work)


def test_a_caller_rolls_back_our_rows_with_its_own(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    store.collection("notes").ingest("Already here.")
    with engine.connect() as connection:
        connection.execute(sa.text("CREATE TABLE mine (id int)"))
        inside = store.using(connection).collection("notes")
        assert inside.ingest(DOCUMENTS).records_added == len(DOCUMENTS)
        assert inside.count() == len(DOCUMENTS) + 1
        assert inside.search("subject 3").hits
        connection.rollback()
    assert store.collection("notes").count() == 1
    assert scalar(engine, "SELECT to_regclass('mine')") is None


@pytest.mark.parametrize("write", [lambda notes: notes.ingest("Mine."), lambda notes: notes.delete("3")])
def test_other_writers_of_a_collection_wait_for_the_callers_commit_and_nobody_else(
    engine: sa.Engine, write: Callable[[Collection], object]
) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes, other = store.collection("notes"), store.collection("other")
    notes.ingest(DOCUMENTS)
    with ThreadPoolExecutor() as pool, engine.connect() as connection:
        write(store.using(connection).collection("notes"))
        waiting = pool.submit(notes.ingest, "Theirs.")
        wait_for_lock(engine)
        assert pool.submit(notes.search, "subject 3").result(10).hits
        assert pool.submit(other.ingest, DOCUMENTS).result(10).records_added == len(DOCUMENTS)
        assert not waiting.done()
        connection.commit()
        assert waiting.result(10).records_added == 1


def test_a_caller_commits_our_rows_with_its_own(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    with Session(engine) as session:
        session.execute(sa.text("CREATE TABLE mine (id int)"))
        store.using(session).collection("notes").ingest(DOCUMENTS)
        assert scalar(engine, "SELECT count(*) FROM cayu.records") == 0
        session.commit()
    assert store.collection("notes").count() == len(DOCUMENTS)
    assert scalar(engine, "SELECT count(*) FROM mine") == 0


def test_an_async_session_commits_or_rolls_back_our_rows(database_url: str, engine: sa.Engine) -> None:
    async def work(store: AsyncStore) -> None:
        async with AsyncSession(store.engine) as session:
            inside = await store.using(session)
            await (await inside.collection("notes")).ingest(DOCUMENTS)
            await session.rollback()
        async with store.engine.connect() as connection:
            inside = await store.using(connection)
            await (await inside.collection("notes")).ingest(DOCUMENTS[:3])
            await connection.commit()

    run_async(database_url, work)
    assert scalar(engine, "SELECT count(*) FROM cayu.records") == 3


def settings(connection: sa.Connection) -> dict[str, str]:
    rows = connection.execute(sa.text("SELECT name, setting FROM pg_settings"))
    return {row.name: row.setting for row in rows}


def test_no_setting_stays_behind_in_the_callers_transaction(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    store.collection("notes").ingest(DOCUMENTS)
    store.collection("notes").reindex(min_chunks=10)
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT '[1]'::vector"))  # loads the library, which brings its settings
        connection.execute(sa.text("SET LOCAL hnsw.ef_search = 77"))
        before = settings(connection)
        options = connection.get_execution_options()
        with connection.begin_nested():
            inside = store.using(connection).collection("notes")
            inside.search("subject 3", candidates=200, timeout=5)
            inside.ingest("One more.")
            assert settings(connection) == before
        assert settings(connection) == before
        assert connection.get_execution_options() == options


def test_a_failure_inside_leaves_the_callers_transaction_usable(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    store.collection("notes").ingest(DOCUMENTS)
    with engine.connect() as connection:
        inside = store.using(connection)
        with pytest.raises(InvalidInput):
            inside.collection("notes").ingest(["Good.", ""])
        with pytest.raises(InvalidInput):
            inside.collection("other", text_config="klingon")
        with pytest.raises(InvalidInput):
            inside.collection("notes").reindex(min_chunks=10)
        assert connection.scalar(sa.text("SELECT count(*) FROM cayu.records")) == len(DOCUMENTS)


def test_what_is_no_connection_is_refused(engine: sa.Engine, database_url: str) -> None:
    with pytest.raises(InvalidInput):
        Store(engine).using(object())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        run_async(database_url, lambda store: store.using(object()))  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "", "sqlite://"])
def test_a_url_of_another_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Store(url)
    with pytest.raises(InvalidInput):
        AsyncStore(url)


def test_an_unreachable_server_is_our_error_with_its_cause() -> None:
    with pytest.raises(Unreachable) as raised:
        Store("postgresql://nobody@127.0.0.1:1/nothing", embedder=CountingEmbedder()).collection("x")
    assert isinstance(raised.value.__cause__, sa.exc.OperationalError)


def test_a_connection_that_died_in_the_pool_costs_a_reader_nothing(engine: sa.Engine) -> None:
    collection = Store(engine, embedder=CountingEmbedder()).collection("notes")
    collection.ingest(DOCUMENTS)
    with engine.connect() as connection:
        victim = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    killers = sa.create_engine(engine.url, poolclass=sa.NullPool)
    with killers.connect() as killer:
        killer.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": victim})
    assert collection.search("subject 3").hits


def test_no_connection_is_held_while_a_model_runs(engine: sa.Engine) -> None:
    class Watching(CountingEmbedder):
        checked_out: list[int]

        def encode_query(self, text: str) -> Any:
            self.checked_out.append(engine.pool.checkedout())  # type: ignore[attr-defined]
            return super().encode_query(text)

        def encode_documents(self, texts: Any) -> Any:
            self.checked_out.append(engine.pool.checkedout())  # type: ignore[attr-defined]
            return super().encode_documents(texts)

    embedder = Watching()
    embedder.checked_out = []
    collection = Store(engine, embedder=embedder).collection("notes")
    collection.ingest(DOCUMENTS)
    collection.search("subject 3")
    assert embedder.checked_out == [0, 0]
