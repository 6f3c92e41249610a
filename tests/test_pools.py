"""Pools: one connection is enough for anything, and none is kept while a model runs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg import (
    CayuPgError,
    Document,
    HashEmbedder,
    InvalidInput,
    NotFound,
    PositionConflict,
    QueryCanceled,
    Store,
)
from cayu_pg.sql.engine import open_engine, parse_url
from tests.invariants import broken
from tests.stores import rows
from tests.talks import user

OTHERS = """SELECT state FROM pg_stat_activity WHERE datname = current_database()
    AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


@pytest.fixture
def one_connection(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(parse_url(database_url), pool_size=1, max_overflow=0, pool_timeout=5)
    yield engine
    engine.dispose()


class Failing(HashEmbedder):
    """An embedder that fails for some texts."""

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if any("fails" in text for text in texts):
            raise RuntimeError("the model failed")
        return super().encode_documents(texts)


def test_a_pool_of_one_connection_survives_1000_mixed_calls(
    one_connection: sa.Engine, engine: sa.Engine
) -> None:
    store = Store(one_connection, embedder=Failing(16))
    notes, talk = store.collection("notes"), store.transcript("talk")
    choose = random.Random(8)

    def ingest() -> object:
        number = choose.randrange(40)
        text = choose.choice(["is fine", "is long " * 300, "fails"])
        return notes.ingest([Document(f"Document {number} {text} {choose.random()}", id=str(number))])

    calls: dict[Any, tuple[type[Exception], ...]] = {
        ingest: (RuntimeError,),
        lambda: notes.ingest([Document("Good.", id="good"), ""]): (InvalidInput,),
        lambda: notes.search("document", limit=3): (),
        lambda: notes.search("document", timeout=0.001): (QueryCanceled,),
        lambda: notes.search("document", as_of=10**12): (),
        lambda: notes.delete(str(choose.randrange(40))): (),
        lambda: notes.restore(str(choose.randrange(40)), 1): (NotFound,),
        lambda: notes.sync([Document("Synchronised.", id="s")], scope={"none": 1}): (),
        lambda: talk.append(user("x"), expected_position=choose.randrange(9)): (PositionConflict,),
        lambda: talk.append([user("x")] * 3, idempotency_key=str(choose.randrange(99))): (),
        lambda: talk.read(limit=5): (),
        lambda: talk.search("x", limit=3): (),
        lambda: store.collection("absent", create=False): (NotFound,),
        lambda: store.collection("other", text_config="klingon"): (InvalidInput,),
        lambda: store.collections(): (),
    }
    failed = 0
    for _ in range(1_000):
        call = choose.choice(list(calls))
        try:
            call()
        except calls[call]:
            failed += 1
        assert one_connection.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert 100 < failed < 900
    assert rows(engine, OTHERS) == [("idle",)]
    assert broken(engine) == {}


class Watching(HashEmbedder):
    """An embedder and reranker that looks at what the sessions of the database do while it works."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(16)
        self.engine = engine
        self.seen: list[list[tuple[object, ...]]] = []

    def look(self) -> None:
        self.seen.append(rows(self.engine, OTHERS))

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.look()
        return super().encode_documents(texts)

    def encode_query(self, text: str) -> NDArray[np.float32]:
        self.look()
        return super().encode_query(text)

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        self.look()
        return np.zeros(len(documents), np.float32)


def test_no_session_is_idle_in_a_transaction_while_a_model_runs(
    database_url: str, one_connection: sa.Engine
) -> None:
    watcher = open_engine(database_url)
    model = Watching(watcher)
    notes = Store(one_connection, embedder=model).collection("notes")
    notes.ingest([Document(f"Document {number}", id=str(number)) for number in range(1_100)])
    notes.sync([Document("Synchronised.", id="s")], scope={"none": 1})
    notes.search("document", rerank=model)
    notes.delete("s")
    notes.restore("s", 1)
    assert len(model.seen) >= 6  # three batches, a sync, a question, its reranking
    assert {state for seen in model.seen for state in seen} == {("idle",)}
    watcher.dispose()


def test_a_pool_without_a_free_connection_is_unreachable_with_its_reason(database_url: str) -> None:
    engine = sa.create_engine(parse_url(database_url), pool_size=1, max_overflow=0, pool_timeout=0.05)
    store = Store(engine, embedder=HashEmbedder(16))
    with engine.connect(), pytest.raises(CayuPgError, match="no connection of the pool") as raised:
        store.collections()
    assert isinstance(raised.value.__cause__, sa.exc.TimeoutError)
    assert store.collections() == []
    engine.dispose()


def test_reads_are_repeated_once_on_a_broken_connection(engine: sa.Engine, database_url: str) -> None:
    killers = open_engine(database_url)
    killed: list[object] = []

    def kill(conn: sa.Connection, *_: object) -> None:
        if len(killed) < 2:
            process = conn.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
            killed.append(rows(killers, f"SELECT pg_terminate_backend({process}, 5000)"))

    store = Store(engine, embedder=HashEmbedder(16))
    store.collection("notes").ingest(["A text."])
    notes = store.collection("notes")
    sa.event.listen(engine, "before_cursor_execute", kill)
    with pytest.raises(CayuPgError, match="the connection broke"):  # both times
        notes.search("text")
    assert killed == [[(True,)], [(True,)]]
    killed.pop()
    assert notes.search("text").texts == ["A text."]
    assert len(killed) == 2
    killers.dispose()


def test_a_connection_that_was_closed_in_the_pool_costs_a_call_nothing(engine: sa.Engine) -> None:
    store = Store(engine, embedder=HashEmbedder(16))
    notes = store.collection("notes")
    for call in (
        lambda: notes.ingest(["A text."]),
        lambda: notes.search("text"),
        lambda: store.transcript("talk").append(user("x")),
        lambda: notes.reindex(min_chunks=1),
    ):
        with engine.connect() as connection:
            pooled = connection.connection.driver_connection
        pooled.close()  # type: ignore[union-attr]
        assert call()


def test_a_network_that_swallows_everything_is_noticed_within_a_minute(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        set_for_it = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    idle, interval, count = (int(set_for_it[f"keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle + interval * count <= 60
    assert int(set_for_it["tcp_user_timeout"]) <= 60_000
