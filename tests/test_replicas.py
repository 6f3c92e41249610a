"""A store with a streaming replica: answers come from there, writes go to the primary, and nobody misses their own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from cayu_pg import replicas
from cayu_pg.async_store import AsyncStore
from cayu_pg.errors import InvalidInput, NotFound, PositionConflict, Unreachable
from cayu_pg.findings import on_replica
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.messages import Message
from cayu_pg.migrating import migrate
from cayu_pg.records import Document
from cayu_pg.sql.health import ReplicaFacts
from cayu_pg.store import Store
from tests.conftest import new_database, on_database, temporary_folder
from tests.replicated import Pair, replicated
from tests.stores import CountingEmbedder, statements_of

DOCUMENTS = [Document(f"Note {number} on subject {number % 5}.", id=str(number)) for number in range(60)]
FUSION = WeightedReciprocalRankFusionConfig(
    configuration_version="1", channel_weights={"vector": 1.0, "text": 1.0}
)
HELLO = Message.text("user", "Hello, how do I rotate my key?")


@pytest.fixture(scope="module")
def pair(server_url: str) -> Iterator[Pair]:
    """Depends on the session's server, whose start makes the programs readable for the servers' user."""
    assert server_url
    with temporary_folder() as folder, replicated(folder) as pair:
        yield pair


@pytest.fixture(scope="module")
def template(pair: Pair) -> Iterator[str]:
    with new_database(pair.primary.url) as url:
        migrate(url)
        yield str(sa.make_url(url).database)


@pytest.fixture
def urls(pair: Pair, template: str) -> Iterator[tuple[str, str]]:
    """The same new database on the primary and on the replica."""
    with new_database(pair.primary.url, template) as url:
        pair.catch_up()
        yield url, on_database(pair.replica.url, str(sa.make_url(url).database))


@pytest.fixture
def store(urls: tuple[str, str]) -> Iterator[Store]:
    with Store(urls[0], embedder=CountingEmbedder(), read_url=urls[1]) as store:
        yield store


@contextmanager
def asked(store: Store) -> Iterator[tuple[list[str], list[str]]]:
    """What is sent to the primary and to the replica meanwhile."""
    with statements_of(store.engine) as primary, statements_of(store._replica_pool.engine) as replica:
        yield primary, replica


def filled(store: Store) -> None:
    store.collection("notes").ingest(DOCUMENTS)
    store.transcript("talk").append([HELLO, HELLO])


READS: dict[str, Callable[[Store], Any]] = {
    "search": lambda store: store.collection("notes", create=False).search("subject 3", fuzzy=True).hits,
    "search with a filter": lambda store: (
        store.collection("notes", create=False)
        .search("subject 3", where={"lang": {"exists": False}}, as_of=1)
        .hits
    ),
    "search of several": lambda store: store.search(["notes"], "subject 3", per_record=True).hits,
    "get": lambda store: store.collection("notes", create=False).get("3"),
    "history": lambda store: store.collection("notes", create=False).history("3"),
    "count": lambda store: store.collection("notes", create=False).count(),
    "records": lambda store: store.collection("notes", create=False).records(),
    "list_all": lambda store: store.collection("notes", create=False).list_all(),
    "spaces": lambda store: store.collection("notes", create=False).spaces(),
    "collections": lambda store: store.collections(),
    "measure_recall": lambda store: store.collection("notes", create=False).measure_recall(sample=5).recall,
    "evaluate": lambda store: (
        store.collection("notes", create=False).evaluate({"q": "subject 3"}, {"q": {"3": 1}}).measured
    ),
    "transcript read": lambda store: store.transcript("talk").read(),
    "transcript last": lambda store: store.transcript("talk").last(1),
    "transcript search": lambda store: store.transcript("talk").search("rotate"),
    "transcript count": lambda store: store.transcript("talk").count(),
    "search_messages": lambda store: store.search_messages("rotate"),
}


def test_whatever_only_answers_is_read_from_the_replica(
    store: Store, urls: tuple[str, str], pair: Pair
) -> None:
    filled(store)
    store.collection("notes").reindex(min_chunks=10)
    pair.catch_up()
    with Store(urls[0], embedder=CountingEmbedder(), read_url=urls[1]) as fresh:
        for name, answer in READS.items():
            with asked(fresh) as (primary, replica):
                assert answer(fresh), name
            assert (primary, bool(replica)) == ([], True), name


def test_writes_and_what_they_look_at_go_to_the_primary(store: Store) -> None:
    with asked(store) as (primary, replica):
        filled(store)
        store.collection("notes").sync(DOCUMENTS[:55])
        store.collection("notes").delete("3")
        store.collection("notes").save_fusion("mine", FUSION)
        assert store.transcript("talk").next_position() == 2
    assert primary
    assert [each for each in replica if "cayu.records" in each] == []


def test_a_read_waits_until_the_stores_own_writes_have_arrived(store: Store, pair: Pair) -> None:
    filled(store)
    notes = store.collection("notes")
    with ThreadPoolExecutor(1) as pool, pair.late_replica():
        notes.ingest(Document("A comet passed.", id="comet"))
        with asked(store) as (primary, replica):
            reading = pool.submit(notes.get, "comet")
            while not any("pg_sleep" in each for each in replica):
                time.sleep(0.01)
            assert not reading.done()
            pair.tell_replica("SELECT pg_wal_replay_resume()")
            assert reading.result(10) is not None
            assert primary == []


def test_what_does_not_arrive_in_time_is_read_from_the_primary(
    urls: tuple[str, str], pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(urls[0], embedder=CountingEmbedder(), read_url=urls[1], replica_wait=0) as store:
        filled(store)
        pair.catch_up()
        with pair.late_replica(), caplog.at_level(logging.INFO, "cayu_pg"):
            store.transcript("talk").append(HELLO)
            assert store.transcript("talk").count() == 3
            assert store.for_tenant("default").transcript("talk").count() == 3
    assert "had not replayed" in caplog.text


def test_without_read_your_writes_nobody_waits(urls: tuple[str, str], pair: Pair) -> None:
    with Store(urls[0], embedder=CountingEmbedder(), read_url=urls[1], read_your_writes=False) as store:
        filled(store)
        pair.catch_up()
        with pair.late_replica():
            store.transcript("talk").append(HELLO)
            assert store.transcript("talk").count() == 2
            assert store.without_replica().transcript("talk").count() == 3


def test_the_primary_answers_while_the_replica_is_away(
    store: Store, pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store)
    notes = store.collection("notes", create=False)
    with pair.stopped_replica():
        assert notes.search("subject 3").hits
        with asked(store) as (_, replica):
            assert notes.search("subject 3").hits
        assert replica == []  # it is left in peace for a while
    assert caplog.text.count("the replica cannot be used") == 1
    monkeypatch.setattr(replicas, "REST_SECONDS", 0.0)
    assert store._replica is not None
    store._replica.rest()
    with asked(store) as (primary, replica):
        assert notes.search("subject 3").hits
    assert primary == []
    assert replica


def test_searches_go_on_while_the_primary_is_away(store: Store, pair: Pair) -> None:
    filled(store)
    notes, talk = store.collection("notes"), store.transcript("talk")
    pair.catch_up()
    pair.primary.stop()
    try:
        assert notes.search("subject 3").hits
        assert talk.last(1)
        with pytest.raises(Unreachable):
            notes.ingest("No.")
    finally:
        pair.primary.start()


def test_a_read_that_the_replica_cancels_for_what_it_replays_is_answered(store: Store, pair: Pair) -> None:
    filled(store)
    notes = store.collection("notes", create=False)
    pair.catch_up()
    canceled: list[str] = []

    def vacuum(*arguments: Any) -> None:
        """In the middle of the first search's transaction: rows that its snapshot sees go on the primary."""
        if not canceled and "chunks" in arguments[2]:
            canceled.append(arguments[2])
            with psycopg.connect(
                str(store.engine.url.set(drivername="postgresql")), autocommit=True
            ) as primary:
                primary.execute("CREATE TABLE gone AS SELECT generate_series(1, 1000)")
                primary.execute("DELETE FROM gone")
                primary.execute("VACUUM gone")
            pair.catch_up()

    sa.event.listen(store._replica_pool.engine, "before_cursor_execute", vacuum)
    assert len(notes.search("subject 3").hits) == 10
    assert canceled


def test_a_collection_that_has_not_arrived_is_found_on_the_primary(urls: tuple[str, str], pair: Pair) -> None:
    with pair.late_replica(), Store(urls[0], embedder=CountingEmbedder()) as other:
        other.collection("notes").ingest(DOCUMENTS)
        with Store(urls[0], embedder=CountingEmbedder(), read_url=urls[1]) as store:
            assert store.collection("notes", create=False).search("subject 3").hits
            assert store.search(["notes"], "subject 3").hits
            with pytest.raises(NotFound):
                store.collection("nowhere", create=False)


def test_a_callers_transaction_never_leaves_its_connection(store: Store) -> None:
    filled(store)
    with store.engine.connect() as connection, asked(store) as (_, replica):
        inside = store.using(connection)
        inside.transcript("talk").append(HELLO)
        assert inside.transcript("talk").count() == 3
        assert inside.collection("notes").search("subject 3").hits
    assert replica == []


def test_after_a_write_that_failed_the_primary_is_asked_how_far_it_is(store: Store) -> None:
    filled(store)
    assert store._replica is not None
    with pytest.raises(PositionConflict):
        store.transcript("talk").append(HELLO, expected_position=7)
    assert not store._replica.is_certain
    assert store.transcript("talk").count() == 2
    assert store._replica.is_certain


def test_the_async_door_reads_from_the_replica_too(urls: tuple[str, str], pair: Pair) -> None:
    async def main() -> None:
        async with AsyncStore(urls[0], embedder=CountingEmbedder(), read_url=urls[1]) as store:
            notes = await store.collection("notes")
            await notes.ingest(DOCUMENTS)
            talk = await store.transcript("talk")
            await talk.append(HELLO)
            engines = store.engine.sync_engine, store._replica_pool.engine.sync_engine
            with statements_of(engines[0]) as primary, statements_of(engines[1]) as replica:
                assert (await notes.search("subject 3")).hits
                assert await talk.count() == 1
            assert primary == []
            assert any("pg_last_wal_replay_lsn" in each for each in replica)

    asyncio.run(main())


@pytest.mark.parametrize("options", [{"read_your_writes": 1}, {"replica_wait": -1}, {"replica_wait": "long"}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    for door in (Store, AsyncStore):
        with pytest.raises(InvalidInput):
            door(url, read_url=url, **options)
        with pytest.raises(InvalidInput):
            door(url, read_url="mysql://x/y")


def replica_finding(store: Store) -> str:
    [found] = [each for each in store.doctor().findings if each.subject == "replica"]
    return f"{found.level}: {found.found}"


def test_doctor_says_how_far_behind_the_replica_is(store: Store, pair: Pair) -> None:
    filled(store)
    pair.catch_up()
    assert replica_finding(store) == "ok: 0 B of log behind the primary"
    with pair.late_replica():
        assert replica_finding(store) == "warning: its replay is paused"
    with pair.stopped_replica():
        assert replica_finding(store).startswith("warning: the server cannot be")
    assert store.doctor().level != "error"


def test_doctor_tells_a_replica_from_a_primary(urls: tuple[str, str]) -> None:
    with Store(urls[0], read_url=urls[0]) as store:
        assert replica_finding(store) == "warning: read_url leads to a server that is no replica"
    with Store(urls[1]) as store:
        assert [each.found for each in store.doctor().of_level("error")] == [
            "it is a replica, every write will fail"
        ]
    behind = on_replica(ReplicaFacts(True, False, position=1 << 20, seconds=9.0), (1 << 20) + (65 << 20))
    assert str(behind).startswith(
        "warning  replica: 65.0 MB of log behind the primary, its last transaction is 9 s old"
    )
