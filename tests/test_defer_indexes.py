"""Loads that put their indexes off: dropped before, built after, and mended by `reindex` where they broke off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cayu_pg.async_store import AsyncStore
from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.errors import InvalidInput, QueryCanceled
from cayu_pg.ingesting import IngestProgress
from cayu_pg.records import Document
from cayu_pg.sql import indexes, settings
from cayu_pg.store import Store
from tests.stores import rows
from tests.test_indexes import ALL, documents, health, open_transaction


@pytest.fixture(autouse=True)
def small_collections_want_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "MIN_CHUNKS", 100)


@pytest.fixture
def collection(engine: sa.Engine) -> Collection:
    collection = Store(engine, embedder=HashEmbedder(16)).collection("docs")
    collection.ingest(documents())
    collection.reindex(min_chunks=1)
    return collection


def test_indexes_are_gone_during_the_load_and_built_after_it(
    collection: Collection, engine: sa.Engine
) -> None:
    seen: list[dict[str, object]] = []

    def more() -> Iterator[Document]:
        yield Document("One more passage.", id="more")
        yield Document("The same record starts another batch.", id="more")
        yield Document("It is asked for after the first was written.", id="more")
        seen.append(health(engine))
        seen.append({hit.record_id: hit for hit in collection.search("Passage 7 speaks").hits})

    report = collection.ingest(more(), defer_indexes=True)
    assert seen[0] == {}
    assert "p7" in seen[1]
    assert set(health(engine)) == set(ALL) and all(health(engine).values())
    assert report.advice == []
    assert collection.search("after the first was written").hits[0].record_id == "more"


def test_a_new_collection_gets_its_indexes_at_the_end(engine: sa.Engine) -> None:
    collection = Store(engine, embedder=HashEmbedder(16)).collection("docs")
    told: list[IngestProgress] = []
    collection.ingest(documents(), defer_indexes=True, progress=told.append)
    assert set(health(engine)) == set(ALL)
    assert [each.index for each in told] == [None, *ALL]
    assert {(each.documents, each.chunks) for each in told} == {(120, 120)}


def test_nothing_is_dropped_where_nothing_is_written(collection: Collection, engine: sa.Engine) -> None:
    identities = "SELECT oid FROM pg_class WHERE relname ~ '^(hnsw|gin)_.*[0-9]$' ORDER BY oid"
    before = rows(engine, identities)
    assert collection.ingest(documents(), defer_indexes=True).records_unchanged == 120
    with pytest.raises(InvalidInput, match="on_error"):
        collection.ingest("More.", defer_indexes=True, on_error="explode")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="text"):
        collection.ingest([""], defer_indexes=True)
    with pytest.raises(InvalidInput, match="defer_indexes"):
        collection.ingest("More.", defer_indexes="no")  # type: ignore[arg-type]
    assert rows(engine, identities) == before


def test_a_small_collection_gets_none(engine: sa.Engine) -> None:
    collection = Store(engine, embedder=HashEmbedder(16)).collection("docs")
    collection.ingest(documents(20), defer_indexes=True)
    assert health(engine) == {}


def test_reindex_mends_what_a_load_left_that_broke_off(collection: Collection, engine: sa.Engine) -> None:
    def broken() -> Iterator[Document]:
        yield from [Document(f"Passage {n} of one record.", id="more") for n in range(3)]
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="gone"):
        collection.ingest(broken(), defer_indexes=True)
    assert health(engine) == {}
    assert set(collection.reindex(min_chunks=1)) == set(health(engine)) == set(ALL)


def test_indexes_that_cannot_be_dropped_in_time_end_the_load_before_it_begins(
    collection: Collection, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOCK_TIMEOUT_MS", 100)
    with open_transaction(engine), engine.connect() as reader:
        reader.execute(sa.text("SELECT count(*) FROM cayu.chunks, cayu.chunk_lexemes, cayu.chunk_embeddings"))
        with pytest.raises(QueryCanceled):
            collection.ingest(Document("One more passage.", id="more"), defer_indexes=True)
    assert collection.get("more") is None
    collection.ingest(Document("One more passage.", id="more"), defer_indexes=True)
    assert set(health(engine)) == set(ALL) and all(health(engine).values())


def test_indexes_cannot_be_put_off_in_a_callers_transaction(
    collection: Collection, engine: sa.Engine
) -> None:
    store = Store(engine, embedder=HashEmbedder(16))
    with engine.connect() as connection:
        inside = store.using(connection).collection("docs")
        with pytest.raises(InvalidInput, match=r"defer_indexes.*connections of its own"):
            inside.ingest(documents(), defer_indexes=True)
    assert set(health(engine)) == set(ALL)


def test_the_async_door_does_the_same(collection: Collection, database_url: str, engine: sa.Engine) -> None:
    async def load() -> list[str | None]:
        told: list[IngestProgress] = []
        async with AsyncStore(database_url, embedder=HashEmbedder(16)) as store:
            docs = await store.collection("docs")
            await docs.ingest(Document("One more.", id="more"), defer_indexes=True, progress=told.append)
        return [each.index for each in told]

    assert asyncio.run(load()) == [None, *ALL]
    assert set(health(engine)) == set(ALL)
