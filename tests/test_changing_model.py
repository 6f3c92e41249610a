"""A collection goes over to another embedding model while it is searched and written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg import changing_model
from cayu_pg.async_store import AsyncStore
from cayu_pg.changing_model import ChangeProgress
from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.errors import Conflict, DimensionMismatch, InvalidInput, NotFound
from cayu_pg.query import SearchResult
from cayu_pg.records import Document
from cayu_pg.sql import model_change
from cayu_pg.sql.locks import WritersAtWork
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, rows, scalar, statements_of

TEXTS = [f"document number {n} speaks of topic {n % 7}" for n in range(30)]


@dataclass
class Interrupting(CountingEmbedder):
    """Calls `before` with the number of the call each time it is asked for vectors."""

    before: Callable[[int], None] = field(default=lambda number: None)

    def __init__(self, dimensions: int, before: Callable[[int], None]) -> None:
        super().__init__(dimensions)
        self.before = before
        self.calls = 0

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += 1
        self.before(self.calls)
        return super().encode_documents(texts)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_model, "PAGE", 10)


@pytest.fixture
def old() -> CountingEmbedder:
    return CountingEmbedder(16)


@pytest.fixture
def docs(engine: sa.Engine, old: CountingEmbedder) -> Iterator[Collection]:
    collection = Store(engine, embedder=old).collection("docs")
    collection.ingest([Document(text, id=f"d{n}") for n, text in enumerate(TEXTS)])
    yield collection
    assert broken(engine) == []


def broken(engine: sa.Engine) -> list[tuple[object, ...]]:
    """Vectors that are not those of the text beside them, flags that differ, and chunks without an active vector."""
    wrong: list[tuple[object, ...]] = []
    query = """SELECT k.chunk_id, k.text, k.current = e.current, s.dimensions, e.embedding::text
               FROM cayu.chunks k JOIN cayu.chunk_embeddings e USING (collection_id, chunk_id)
               JOIN cayu.embedding_spaces s USING (collection_id, space_id)"""
    for chunk_id, text, same, dimensions, literal in rows(engine, query):
        expected = HashEmbedder(int(str(dimensions))).encode_query(str(text))
        stored = np.fromstring(str(literal).strip("[]"), dtype=np.float32, sep=",")
        if not same or not np.array_equal(stored, expected):
            wrong.append((chunk_id, dimensions, same))
    lacking = """SELECT k.chunk_id FROM cayu.chunks k JOIN cayu.collections c ON c.id = k.collection_id
                 WHERE c.active_space_id IS NOT NULL AND NOT EXISTS (
                     SELECT FROM cayu.chunk_embeddings e WHERE e.collection_id = c.id AND e.chunk_id = k.chunk_id
                     AND e.space_id = c.active_space_id)"""
    return wrong + rows(engine, lacking)


def states(collection: Collection) -> list[tuple[str, str, int]]:
    return [(each.model, each.state, each.pending) for each in collection.spaces()]


def vector_version(result: SearchResult) -> str:
    return next(e.index_version for e in result.fusion.diagnostics.channels if e.channel == "vector")


def test_searches_go_over_to_the_new_model(docs: Collection) -> None:
    new = CountingEmbedder(24)
    report = docs.change_embedder(new)
    assert (report.previous, report.model, report.dimensions) == ("hash-16", "hash-24", 24)
    assert (report.chunks_filled, report.embeddings_computed) == (30, 30)
    assert states(docs) == [("hash-16", "retired", 0), ("hash-24", "active", 0)]
    result = docs.search(TEXTS[3])
    assert result.texts[0] == TEXTS[3] and new.queries == [TEXTS[3]]
    assert vector_version(result).startswith("hash-24:")


def test_equal_texts_are_embedded_once(docs: Collection) -> None:
    docs.ingest([Document(TEXTS[0], id="same"), Document(TEXTS[29], id="same too")])
    new = CountingEmbedder(24)
    report = docs.change_embedder(new)
    assert (report.chunks_filled, report.embeddings_computed) == (32, 30)
    assert sorted(new.documents) == sorted(TEXTS)


def test_progress_counts_chunks_and_can_be_seen_in_sql(docs: Collection, engine: sa.Engine) -> None:
    told: list[ChangeProgress] = []
    seen: list[tuple[object, ...]] = []

    def look(number: int) -> None:
        seen.extend(
            rows(
                engine, "SELECT state, embedded, pending FROM cayu.embedding_progress WHERE model = 'hash-24'"
            )
        )

    docs.change_embedder(Interrupting(24, look), progress=told.append)
    assert [(each.filled, each.pending) for each in told] == [(10, 20), (20, 10), (30, 0)]
    assert seen == [("building", 0, 30), ("building", 10, 20), ("building", 20, 10)]


def test_interrupted_change_goes_on_where_it_was(docs: Collection) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        docs.change_embedder(Interrupting(24, fail))
    assert states(docs) == [("hash-16", "active", 0), ("hash-24", "building", 20)]
    assert docs.search(TEXTS[0]).texts[0] == TEXTS[0]
    new = CountingEmbedder(24)
    assert docs.change_embedder(new).chunks_filled == 20
    assert len(new.documents) == 20


def test_ingest_in_between_writes_the_vectors_of_both(docs: Collection, engine: sa.Engine) -> None:
    written: list[object] = []

    def ingest(number: int) -> None:
        if number == 1:
            docs.ingest([Document("written meanwhile", id="late")])
            written.append(
                scalar(
                    engine,
                    "SELECT count(*) FROM cayu.chunks JOIN cayu.chunk_embeddings USING (chunk_id)"
                    " WHERE record_id = 'late'",
                )
            )

    new = Interrupting(24, ingest)
    docs.change_embedder(new)
    assert written == [2]
    assert new.documents.count("written meanwhile") == 1
    assert docs.search("written meanwhile", channels=["vector"]).hits[0].record_id == "late"


def test_what_others_write_without_the_new_model_is_filled_too(
    docs: Collection, engine: sa.Engine, old: CountingEmbedder
) -> None:
    other = Store(engine, embedder=old).collection("docs")

    def ingest(number: int) -> None:
        if number == 3:
            other.ingest([Document("from elsewhere", id="late"), Document("changed", id="d0")])
            other.delete("d1")

    docs.change_embedder(Interrupting(24, ingest))
    assert docs.search("from elsewhere", channels=["vector"]).hits[0].record_id == "late"


def test_writers_without_the_new_model_who_never_stop_are_named(
    docs: Collection, engine: sa.Engine, old: CountingEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, switch = Store(engine, embedder=old).collection("docs"), model_change.switch_space
    tried: list[int] = []

    def after_a_write(*given: Any, **named: Any) -> bool:
        tried.append(len(tried))
        other.ingest([Document(f"one more, number {len(tried)}", id="busy")])
        return switch(*given, **named)

    monkeypatch.setattr(model_change, "switch_space", after_a_write)
    with pytest.raises(WritersAtWork, match="give them next_embedder"):
        docs.change_embedder(CountingEmbedder(24))
    assert len(tried) == changing_model.PASSES
    monkeypatch.undo()
    docs.change_embedder(CountingEmbedder(24))


def test_transaction_older_than_the_change_that_commits_last_is_filled_too(
    docs: Collection, engine: sa.Engine, old: CountingEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_through, looked = model_change.filled_until, []

    with engine.connect() as connection:
        callers = Store(engine, embedder=old).using(connection).collection("docs")
        callers.ingest([Document("written before, committed after", id="late")])

        def then_commit(*given: Any) -> int | None:
            looked.append(look_through(*given))
            connection.commit()
            return looked[-1]

        monkeypatch.setattr(model_change, "filled_until", then_commit)
        docs.change_embedder(CountingEmbedder(24))
    assert looked[0] is not None and len(looked) == 2
    assert docs.search("written before, committed after", channels=["vector"]).hits[0].record_id == "late"


def test_collection_opened_with_both_models_follows(engine: sa.Engine, docs: Collection) -> None:
    store = Store(engine, embedder=CountingEmbedder(16), next_embedder=CountingEmbedder(24))
    other = store.collection("docs")
    assert other.search(TEXTS[5]).texts[0] == TEXTS[5]
    docs.change_embedder(CountingEmbedder(24))
    assert other.search(TEXTS[5]).texts[0] == TEXTS[5]
    assert other.ingest([Document("new", id="new")]).records_added == 1
    assert store.search(["docs"], TEXTS[6]).texts[0] == TEXTS[6]


def test_embedder_that_does_not_fit_is_refused_before_sql(engine: sa.Engine, docs: Collection) -> None:
    behind = Store(engine, embedder=CountingEmbedder(16)).collection("docs")
    docs.change_embedder(CountingEmbedder(24))
    late = Store(engine, embedder=CountingEmbedder(16)).collection("docs")
    both = "expected hash-24 with 24 dimensions, .* found hash-16 with 16 dimensions"
    with statements_of(engine) as sent, pytest.raises(DimensionMismatch, match=both):
        late.search("anything")
    assert sent == []
    for stale in (behind, late):
        with pytest.raises(DimensionMismatch, match=both):
            stale.search("anything")
        with pytest.raises(DimensionMismatch, match=both):
            stale.ingest(["anything"])
    assert behind.search("topic", channels=["text"]).hits


def test_change_between_look_up_and_write_of_an_ingest(engine: sa.Engine, docs: Collection) -> None:
    def change(number: int) -> None:
        if number == 1:
            docs.change_embedder(CountingEmbedder(24))

    alone = Store(engine, embedder=Interrupting(16, change)).collection("docs")
    with pytest.raises(DimensionMismatch):
        alone.ingest([Document("half way", id="late")])
    assert docs.get("late") is None

    def change_back(number: int) -> None:
        if number == 1:
            docs.change_embedder(CountingEmbedder(16))

    both = Store(
        engine, embedder=CountingEmbedder(16), next_embedder=Interrupting(24, change_back)
    ).collection("docs")
    both.ingest([Document("half way", id="late")])
    assert docs.search("half way", channels=["vector"]).hits[0].record_id == "late"


def test_change_between_embedding_and_asking_of_a_search(engine: sa.Engine, docs: Collection) -> None:
    class Late(CountingEmbedder):
        def encode_query(self, text: str) -> NDArray[np.float32]:
            docs.change_embedder(CountingEmbedder(24))
            return super().encode_query(text)

    store = Store(engine, embedder=Late(16), next_embedder=CountingEmbedder(24))
    result = store.collection("docs").search(TEXTS[9], channels=["vector"])
    assert result.texts[0] == TEXTS[9]
    assert vector_version(result).startswith("hash-24:")


def test_chunks_that_go_and_come_back_meanwhile_keep_the_right_flag(docs: Collection) -> None:
    def change(number: int) -> None:
        if number == 1:
            docs.delete(["d0", "d1", "d2", "d25"])
        if number == 2:
            docs.ingest([Document(TEXTS[n], id=f"d{n}") for n in (0, 1, 25)])
            docs.erase("d3")

    docs.change_embedder(Interrupting(24, change))
    found = docs.search("document", channels=["vector"], limit=50).hits
    assert {hit.record_id for hit in found} == {f"d{n}" for n in range(30)} - {"d2", "d3"}


def test_chunk_that_somebody_is_changing_is_passed_over_and_filled_later(
    docs: Collection, engine: sa.Engine
) -> None:
    locked, changed = threading.Event(), threading.Event()

    def hold() -> None:
        with engine.begin() as connection:
            Store(engine, embedder=CountingEmbedder(16)).using(connection).collection("docs").delete("d4")
            locked.set()
            assert changed.wait(10)

    def let_go(progress: ChangeProgress) -> None:
        if progress.filled == 29:
            changed.set()

    with ThreadPoolExecutor() as pool:
        holding = pool.submit(hold)
        assert locked.wait(10)
        docs.change_embedder(CountingEmbedder(24), progress=let_go)
        holding.result(10)
    assert docs.count() == 29


def test_past_can_be_searched_with_the_new_model(docs: Collection, engine: sa.Engine) -> None:
    sequence = int(str(scalar(engine, "SELECT max(sequence) FROM cayu.batches")))
    docs.ingest([Document("something else now", id="d8")])
    docs.change_embedder(CountingEmbedder(24))
    assert docs.search(TEXTS[8], channels=["vector"], as_of=sequence).texts[0] == TEXTS[8]


def test_going_back_computes_only_what_is_new(docs: Collection, old: CountingEmbedder) -> None:
    docs.change_embedder(CountingEmbedder(24))
    docs.ingest([Document("written since", id="new")])
    old.documents.clear()
    report = docs.change_embedder(old)
    assert (report.chunks_filled, old.documents) == (1, ["written since"])
    assert states(docs) == [("hash-16", "active", 0), ("hash-24", "retired", 0)]


def test_changing_to_the_active_model_does_nothing(docs: Collection, old: CountingEmbedder) -> None:
    assert docs.change_embedder(old).chunks_filled == 0
    assert states(docs) == [("hash-16", "active", 0)]


def test_collection_without_vectors_starts_with_the_new_model(engine: sa.Engine) -> None:
    empty = Store(engine, embedder=CountingEmbedder(16)).collection("empty")
    assert empty.change_embedder(CountingEmbedder(24)).previous is None
    empty.ingest(["first"])
    assert [each.model for each in empty.spaces()] == ["hash-24"]


def test_old_vectors_stay_until_their_space_is_dropped(docs: Collection, engine: sa.Engine) -> None:
    docs.change_embedder(CountingEmbedder(24))
    assert scalar(engine, "SELECT count(*) FROM cayu.chunk_embeddings") == 60
    assert docs.drop_space("hash-16") == 30
    assert states(docs) == [("hash-24", "active", 0)]
    assert scalar(engine, "SELECT count(*) FROM cayu.chunk_embeddings") == 30
    with pytest.raises(InvalidInput, match="the active one"):
        docs.drop_space("hash-24")
    with pytest.raises(NotFound, match="no embedding space named 'hash-16'"):
        docs.drop_space("hash-16")


def test_new_space_has_its_index_before_it_answers(docs: Collection, engine: sa.Engine) -> None:
    docs.reindex(min_chunks=1)
    report = docs.change_embedder(CountingEmbedder(24))
    assert len(report.indexes_built) == 1 and report.indexes_built[0].startswith("hnsw_")
    assert docs.search(TEXTS[0], candidates=10).diagnostics.channels["vector"].path == "approximate"
    docs.drop_space("hash-16")
    assert scalar(engine, "SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'hnsw_%'") == 1


def test_one_change_at_a_time(docs: Collection, engine: sa.Engine) -> None:
    def third(number: int) -> None:
        with pytest.raises(Conflict, match="is changing to hash-24 with 24 dimensions; finish that"):
            docs.change_embedder(CountingEmbedder(32))

    docs.change_embedder(Interrupting(24, third))


def test_change_can_be_given_up(docs: Collection) -> None:
    def give_up(number: int) -> None:
        if number == 2:
            docs.drop_space("hash-24")

    with pytest.raises(Conflict, match="no longer changing"):
        docs.change_embedder(Interrupting(24, give_up))
    assert states(docs) == [("hash-16", "active", 0)]
    assert docs.search(TEXTS[0]).texts[0] == TEXTS[0]


def test_two_who_change_to_the_same_model_share_the_work(docs: Collection, engine: sa.Engine) -> None:
    other = Store(engine, embedder=CountingEmbedder(16)).collection("docs")

    def second(number: int) -> None:
        if number == 2:
            other.change_embedder(CountingEmbedder(24))

    assert docs.change_embedder(Interrupting(24, second)).model == "hash-24"
    assert states(docs) == [("hash-16", "retired", 0), ("hash-24", "active", 0)]
    assert docs.search(TEXTS[0]).texts[0] == TEXTS[0]


@pytest.mark.parametrize("wrong", [None, 5, "a model", object()])
def test_only_an_embedder_is_taken(docs: Collection, engine: sa.Engine, wrong: object) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput, match="expected an Embedder"):
        docs.change_embedder(wrong)  # type: ignore[arg-type]
    assert sent == []


def test_change_is_refused_in_the_callers_transaction(docs: Collection, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        inside = Store(engine, embedder=CountingEmbedder(16)).using(connection).collection("docs")
        with pytest.raises(InvalidInput, match="connections of its own"):
            inside.change_embedder(CountingEmbedder(24))
    assert states(docs) == [("hash-16", "active", 0)]


def test_async_door_changes_the_model_too(docs: Collection, database_url: str) -> None:
    async def change() -> list[str]:
        async with AsyncStore(database_url, embedder=CountingEmbedder(16)) as store:
            collection = await store.collection("docs")
            await collection.change_embedder(CountingEmbedder(24))
            found = await collection.search(TEXTS[0])
            await collection.drop_space("hash-16")
            return [each.model for each in await collection.spaces()] + found.texts[:1]

    assert asyncio.run(change()) == ["hash-24", TEXTS[0]]


def test_nobody_fails_while_the_model_changes_under_load(engine: sa.Engine, docs: Collection) -> None:
    store = Store(engine, embedder=CountingEmbedder(16), next_embedder=CountingEmbedder(24))
    done = threading.Event()

    def search() -> int:
        collection, asked = store.collection("docs"), 0
        while not done.is_set():
            result = collection.search(TEXTS[asked % 20], channels=["vector"])
            assert result.texts[0] == TEXTS[asked % 20]
            version = vector_version(result)
            dimensions = 16 if version.startswith("hash-16:") else 24
            assert result.fusion.candidates[0].matches[0].raw_score == pytest.approx(0, abs=1e-6), dimensions
            asked += 1
        return asked

    def write(number: int) -> int:
        collection, written = store.collection("docs"), 0
        while not done.is_set():
            text = f"writer {number} wrote text {written}"
            collection.ingest([Document(text, id=f"w{number}-{written % 5}")])
            written += 1
        return written

    with ThreadPoolExecutor() as pool:
        at_work = [pool.submit(search), pool.submit(search), pool.submit(write, 1), pool.submit(write, 2)]
        try:
            for dimensions in (24, 16, 24):
                docs.change_embedder(CountingEmbedder(dimensions))
        finally:
            done.set()
        assert all(each.result(30) > 0 for each in at_work)
    assert (
        states(docs) == [("hash-16", "retired", 0), ("hash-24", "active", 0)]
        or states(docs)[1][1] == "active"
    )
