"""Faults that a review found, each as the behaviour that it broke."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.ext.asyncio import create_async_engine

from cayu_pg import AsyncStore, Collection, Document, HashEmbedder, Store, migrate
from cayu_pg.errors import Conflict, DimensionMismatch, InvalidInput, NotFound, StaleContinuation, Unreachable
from cayu_pg.sql import batches
from cayu_pg.sql.channels import Question, fetch_channels, fetch_texts
from cayu_pg.sql.embeddings import write_vectors
from cayu_pg.sql.engine import open_engine, parse_url
from tests.stores import CountingEmbedder, rows, scalar, wait_for_lock


def test_stores_of_two_schemas_on_one_engine_number_their_rows_apart(
    engine: sa.Engine, database_url: str
) -> None:
    migrate(database_url, schema="other")
    Store(engine, embedder=CountingEmbedder()).collection("notes").ingest(["one"])
    Store(engine, schema="other", embedder=CountingEmbedder()).collection("notes").ingest(["two"])
    assert rows(engine, "SELECT chunk_id FROM other.chunks") == [(1,)]
    later = open_engine(database_url)  # where `other` is the first
    Store(later, schema="other", embedder=CountingEmbedder()).collection("notes").ingest(["three", "four"])
    later.dispose()
    assert rows(engine, "SELECT chunk_id FROM other.chunks ORDER BY 1") == [(1,), (2,), (3,)]


def test_a_second_model_is_refused_by_whoever_knew_the_collection_empty(engine: sa.Engine) -> None:
    store = Store(engine)
    early = store.collection("notes", embedder=HashEmbedder(16))
    store.collection("notes", embedder=HashEmbedder(32)).ingest(["one"])
    with pytest.raises(DimensionMismatch, match="hash-32 with 32 dimensions"):
        early.ingest(["two"])
    assert early.list_all() == ["one"]


def test_a_second_model_is_refused_when_both_write_first(engine: sa.Engine) -> None:
    store = Store(engine)
    other = store.collection("notes", embedder=HashEmbedder(16))

    class Late(HashEmbedder):
        def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            other.ingest(["one"])  # between the look at the collection and the write
            return super().encode_documents(texts)

    with pytest.raises(DimensionMismatch, match="hash-16 with 16 dimensions"):
        store.collection("notes", embedder=Late(32)).ingest(["two"])
    assert scalar(engine, "SELECT array_agg(vector_dims(embedding)) FROM cayu.chunk_embeddings") == [16]


def test_a_text_that_comes_back_in_the_first_ingest_is_current_again(engine: sa.Engine) -> None:
    notes = Store(engine, embedder=CountingEmbedder()).collection("notes")
    report = notes.ingest([Document("one", "a"), Document("two", "a"), Document("one", "a")])
    assert (report.records_added, report.records_changed) == (1, 2)
    assert [each.text for each in notes.history("a")] == ["one", "two", "one"]
    assert set(notes.search("one").texts) == {"one"}


def test_batches_of_the_first_ingest_share_vectors(engine: sa.Engine) -> None:
    embedder = CountingEmbedder()
    notes = Store(engine, embedder=embedder).collection("notes")
    notes.ingest([Document("same", "a"), Document("other", "a"), Document("same", "b")])
    assert embedder.documents == ["same", "other"]


def test_an_ingest_is_repeated_after_its_transaction_was_rolled_back(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    store.collection("notes")
    with engine.connect() as connection:
        notes = store.using(connection).collection("notes")
        notes.ingest(["one"])
        connection.rollback()
        assert notes.ingest(["one"]).records_added == 1
        connection.commit()
    assert store.collection("notes").search("one").texts == ["one"]


def test_writers_to_a_dropped_collection_are_told_so(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes = store.collection("notes")
    notes.ingest(["one"])
    store.drop_collection("notes")
    for write in (lambda: notes.ingest(["two"]), lambda: notes.delete("a"), lambda: notes.erase("a")):
        with pytest.raises(NotFound, match="no collection named 'notes'"):
            write()


def test_a_collection_is_dropped_behind_an_open_ingest_without_a_deadlock(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes = store.collection("notes")
    notes.ingest([Document("a", "a"), Document("b", "b")])
    with ThreadPoolExecutor() as pool, engine.connect() as connection:
        inside = store.using(connection).collection("notes")
        inside.ingest([Document("new", "new")])
        dropped = pool.submit(store.drop_collection, "notes")
        wait_for_lock(engine)
        inside.ingest([Document("a, changed", "a"), Document("b, changed", "b")])
        inside.delete("b")
        connection.commit()
        assert dropped.result(10)
    assert scalar(engine, "SELECT count(*) FROM cayu.chunks") == 0


def test_words_weighted_by_statistics_of_an_old_snapshot_are_refused(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes = store.collection("notes")
    notes.ingest(["one"])
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        stale = store.using(connection).collection("notes")
        with engine.begin() as other:
            other.execute(sa.text("UPDATE cayu.statistics_versions SET average_length = 9"))
        assert notes.refresh_statistics()
        with pytest.raises(Conflict):
            stale.ingest(["two"])


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ"])
def test_a_write_is_one_transaction_whatever_isolation_the_engine_has(
    database_url: str, level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sa.create_engine(parse_url(database_url), isolation_level=level)
    notes = Store(engine, embedder=CountingEmbedder()).collection("notes")
    with monkeypatch.context() as patch:
        patch.setattr(batches, "finish_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            notes.ingest(["one"])
    assert scalar(engine, "SELECT count(*) FROM cayu.chunks") == 0
    assert notes.ingest(["one"]).records_added == 1
    engine.dispose()


def test_an_asynchronous_write_is_one_transaction_too(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write_twice() -> int:
        engine = create_async_engine(parse_url(database_url), isolation_level="AUTOCOMMIT")
        notes = await AsyncStore(engine, embedder=CountingEmbedder()).collection("notes")
        with monkeypatch.context() as patch:
            patch.setattr(batches, "finish_batch", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await notes.ingest(["one"])
        added = (await notes.ingest(["one"])).records_added
        await engine.dispose()
        return added

    assert asyncio.run(write_twice()) == 1


def test_an_engine_of_another_driver_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"postgresql\+psycopg, found one of sqlite"):
        Store(sa.create_engine("sqlite://"))
    with sa.create_engine("sqlite://").connect() as connection, pytest.raises(InvalidInput, match="sqlite"):
        Store("postgresql://nobody@nowhere/nothing").using(connection)


def test_a_lost_connection_of_the_caller_is_unreachable_until_rolled_back(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    store.collection("notes").ingest(["one"])
    with engine.connect() as connection:
        notes = store.using(connection).collection("notes")
        process = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        assert scalar(engine, f"SELECT pg_terminate_backend({process}, 5000)") is True
        for _ in range(2):
            with pytest.raises(Unreachable):
                notes.search("one")
        connection.rollback()
        assert notes.search("one").texts == ["one"]
    with pytest.raises(Unreachable):
        notes.search("one")


def test_the_past_of_a_dropped_collection_is_not_found(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes = store.collection("notes")
    notes.ingest(["one"])
    store.drop_collection("notes")
    with pytest.raises(NotFound, match="no collection named 'notes'"):
        notes.search("one", as_of=1)


def test_a_text_configuration_is_named_as_the_server_reads_it(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text('CREATE TEXT SEARCH CONFIGURATION "My Words" (COPY = english)'))
        connection.execute(sa.text("CREATE SCHEMA hidden"))
        connection.execute(sa.text("CREATE TEXT SEARCH CONFIGURATION hidden.words (COPY = english)"))
    store = Store(engine, embedder=CountingEmbedder())
    for unreadable in ("My Words", "words"):
        with pytest.raises(InvalidInput, match="text_config"):
            store.collection(unreadable, text_config=unreadable)
    for readable in ('"My Words"', "hidden.words"):
        notes = store.collection(readable, text_config=readable)
        notes.ingest(["one"])
        assert notes.search("one").texts == ["one"]


def test_records_are_erased_in_a_schema_with_a_percent_sign(empty_database_url: str) -> None:
    migrate(empty_database_url, schema="sel%ect")
    with Store(empty_database_url, schema="sel%ect", embedder=CountingEmbedder()) as store:
        notes = store.collection("notes")
        notes.ingest([Document("one", "a")])
        assert notes.erase("a") == 1


def words_left_out(engine: sa.Engine, notes: Collection) -> tuple[float, float]:
    """The bound on what `zebra` can add where it chooses no candidates, and the most that it adds to a chunk."""
    tables, row = notes._state.tables, notes._state.row
    with engine.connect() as connection:
        asked = Question(None, "unheard zebra", candidates=1, approximate=False, budget=0)
        found = fetch_channels(connection, tables, row, asked)
        best = fetch_channels(connection, tables, row, replace(asked, analyzed="zebra"))
    assert found is not None and best is not None
    return found.rest, -best.text[0].value


def test_a_chunk_written_late_is_inside_the_bound(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Store(engine, embedder=CountingEmbedder()).collection("notes")
    notes.ingest([Document(f"zebra among other words, number {n}", str(n)) for n in range(20)])
    numbered, counted = threading.Event(), threading.Event()

    def later(*given: Any) -> int:
        numbered.set()
        assert counted.wait(10)
        return write_vectors(*given)

    with ThreadPoolExecutor() as pool:
        with monkeypatch.context() as patch:
            patch.setattr(batches, "write_vectors", later)
            late = pool.submit(notes.ingest, [Document("zebra zebra zebra zebra", "late")])
            assert numbered.wait(10)
        notes.ingest([Document("zebra among other words, the last", "early")])
        notes.refresh_statistics()
        counted.set()
        assert late.result(10).records_added == 1
    bound, most = words_left_out(engine, notes)
    assert bound >= most


def test_a_chunk_that_came_back_is_inside_the_bound(engine: sa.Engine) -> None:
    notes = Store(engine, embedder=CountingEmbedder()).collection("notes")
    loud = Document("zebra zebra zebra zebra", "loud")
    notes.ingest([loud, *(Document(f"zebra among other words, number {n}", str(n)) for n in range(20))])
    notes.delete("loud")
    notes.refresh_statistics()
    notes.ingest(loud)
    bound, most = words_left_out(engine, notes)
    assert bound >= most


class Counting:
    """A reranker for which the larger number is the better passage, and that can take its time."""

    model = "counting"
    seconds = 0.0

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        time.sleep(self.seconds)
        return np.array([float(text.split()[-1]) for text in documents], np.float32)


def test_pages_of_one_result_are_in_one_order_though_the_reranker_runs_late(engine: sa.Engine) -> None:
    notes = Store(engine, embedder=CountingEmbedder()).collection("notes")
    notes.ingest([f"one more note, number {n}" for n in range(40)])
    reranker = Counting()
    search = partial(notes.search, "note", limit=5, rerank=reranker, rerank_seconds=0.5)
    first = search()
    assert search(continuation=first.continuation).diagnostics.rerank.applied  # type: ignore[union-attr]
    reranker.seconds = 0.6
    with pytest.raises(StaleContinuation, match="rerank_seconds"):
        search(continuation=first.continuation)


def test_what_is_erased_during_a_search_of_the_callers_is_a_conflict(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes = store.collection("notes")
    notes.ingest([Document("one", "a"), Document("one more", "b")])

    def later(*given: Any) -> Any:
        notes.erase("a")
        return fetch_texts(*given)

    monkeypatch.setattr("cayu_pg.retrieval.fetch_texts", later)
    with engine.connect() as connection, pytest.raises(Conflict, match="search again"):
        store.using(connection).collection("notes").search("one")


def test_others_search_while_a_collection_with_indexes_is_dropped(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    for name in ("notes", "other"):
        store.collection(name).ingest(["one"])
    store.collection("notes").reindex(min_chunks=1)
    with ThreadPoolExecutor() as pool, engine.connect() as connection:
        store.using(connection).collection("other").ingest(["two"])
        dropped = pool.submit(store.drop_collection, "notes")
        wait_for_lock(engine)
        assert pool.submit(store.collection("other").search, "one").result(10).texts == ["one"]
        connection.commit()
        assert dropped.result(10)
    assert scalar(engine, "SELECT count(*) FROM pg_indexes WHERE indexname ~ '^(gin|hnsw)_.*[0-9]$'") == 0
