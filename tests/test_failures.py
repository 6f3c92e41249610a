"""Failures that the server reports: each is one of our errors with its cause, and the next call works."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from psycopg import sql

from cayu_pg import (
    Collection,
    Conflict,
    DatabaseError,
    Document,
    HashEmbedder,
    OutcomeUnknown,
    QueryCanceled,
    Store,
    Unreachable,
    migrate,
)
from cayu_pg.sql.engine import open_engine
from tests.conftest import MakeRole, admin, temporary_folder
from tests.invariants import broken
from tests.servers import SURVIVES_A_KILL, postgres16_server, restart
from tests.stores import scalar
from tests.talks import user

EMBEDDER = HashEmbedder(16)

REPORTED = [
    ("53100", DatabaseError),  # the disk is full
    ("53200", DatabaseError),  # out of memory
    ("58030", DatabaseError),  # the disk fails
    ("25006", DatabaseError),  # a read-only transaction
    ("XX000", DatabaseError),
    ("57014", QueryCanceled),
    ("55P03", QueryCanceled),  # a lock was not to be had
    ("40001", Conflict),
    ("40P01", Conflict),
    ("53300", Unreachable),  # too many connections
    ("57P01", Unreachable),  # the server shuts down
    ("57P03", Unreachable),  # the server starts
    ("08006", Unreachable),
]


@pytest.fixture
def store(engine: sa.Engine) -> Store:
    store = Store(engine, embedder=EMBEDDER)
    store.collection("notes").ingest([Document("Here before.", id="before")])
    store.transcript("talk").append(user("Hi."))
    return store


@contextmanager
def failing(engine: sa.Engine, table: str, state: str) -> Iterator[None]:
    """Let the server report that state when somebody writes to the table."""
    name = f"fail_{table}"
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN RAISE EXCEPTION 'as ordered' USING ERRCODE = '{state}'; END $$"
            )
        )
        connection.execute(
            sa.text(f"CREATE TRIGGER fail BEFORE INSERT ON cayu.{table} EXECUTE FUNCTION {name}()")
        )
    yield
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP FUNCTION {name} CASCADE"))


@pytest.mark.parametrize(
    "table", ["revisions", "chunk_embeddings", "batches"]
)  # the first, by COPY, the last
def test_a_full_disk_leaves_nothing_of_an_ingest(engine: sa.Engine, store: Store, table: str) -> None:
    notes = store.collection("notes")
    with failing(engine, table, "53100"), pytest.raises(DatabaseError, match="as ordered") as raised:
        notes.ingest([Document("A text.", id="a"), Document("Another.", id="b")])
    assert raised.value.sqlstate == "53100"
    assert notes.list_all() == ["Here before."]
    assert broken(engine) == {}
    assert notes.ingest([Document("A text.", id="a")]).records_added == 1
    assert notes.search("text").texts[0] == "A text."


def test_whatever_the_server_reports_is_one_of_our_errors_with_its_cause(
    engine: sa.Engine, store: Store
) -> None:
    notes, talk = store.collection("notes"), store.transcript("talk")
    for number, (state, expected) in enumerate(REPORTED):
        with failing(engine, "message_lexemes", state), failing(engine, "chunks", state):
            for write in (
                lambda: notes.ingest(["A text."]),
                lambda: talk.append([user("One."), user("Two.")], idempotency_key="request"),
            ):
                with pytest.raises(expected, match="as ordered") as raised:
                    write()
                assert raised.value.__cause__.orig.sqlstate == state  # type: ignore[union-attr]
        assert broken(engine) == {}
        assert (talk.count(), notes.count()) == (number + 1, number + 1)
        assert talk.append(user("x")).first == number + 1
        assert notes.ingest([f"Text {number}"]).records_added == 1


def test_a_database_with_too_many_connections_is_unreachable_until_one_is_free(
    empty_database_url: str, make_role: MakeRole
) -> None:
    owner = open_engine(empty_database_url)
    with owner.begin() as connection:
        connection.execute(sa.text("CREATE EXTENSION vector"))
    url = make_role("app", empty_database_url)
    migrate(url)
    name = sa.make_url(url).database
    with Store(url, embedder=EMBEDDER) as store:
        for limit, message in ((0, "too many connections"), (-1, None)):
            with owner.begin() as connection:
                connection.execute(sa.text(f'ALTER DATABASE "{name}" CONNECTION LIMIT {limit}'))
            if message is not None:
                with pytest.raises(Unreachable, match=message):
                    store.collection("notes")
        assert store.collection("notes").ingest(["A text."]).records_added == 1
    owner.dispose()


def test_a_read_only_server_answers_and_refuses_writes(
    engine: sa.Engine, server_url: str, store: Store
) -> None:
    notes, talk = store.collection("notes"), store.transcript("talk")

    def restrict(to: str) -> None:
        admin(
            server_url,
            sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(
                sql.Identifier(str(engine.url.database)), sql.SQL(to)
            ),
        )
        engine.dispose()

    restrict("on")
    assert notes.search("before").texts == ["Here before."]
    for write in (lambda: notes.ingest(["A text."]), lambda: talk.append(user("x"))):
        with pytest.raises(DatabaseError, match="read-only") as raised:
            write()
        assert raised.value.sqlstate == "25006"
    restrict("off")
    assert notes.ingest(["A text."]).records_added == 1


def test_a_deadlock_of_two_callers_is_a_conflict_for_one_of_them(engine: sa.Engine, store: Store) -> None:
    met = threading.Barrier(2)

    def append_to_both(first: str, second: str) -> str:
        with engine.connect() as connection:
            inside = store.using(connection)
            inside.transcript(first).append(user("x"))
            met.wait(10)
            try:
                inside.transcript(second).append(user("x"))
            except Conflict:
                return "conflict"
            connection.commit()
            return "committed"

    for name in ("one", "two"):
        store.transcript(name).append(user("x"))
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(append_to_both, ("one", "two"), ("two", "one")))
    assert sorted(ends) == ["committed", "conflict"]
    assert [store.transcript(name).count() for name in ("one", "two")] == [2, 2]


def test_a_serialization_failure_in_the_callers_transaction_is_a_conflict(
    engine: sa.Engine, store: Store
) -> None:
    talk = store.transcript("talk")
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        inside = store.using(connection).transcript("talk")
        assert inside.count() == 1
        talk.append(user("Meanwhile."))
        with pytest.raises(Conflict) as raised:
            inside.append(user("x"))
        assert raised.value.__cause__.orig.sqlstate == "40001"  # type: ignore[union-attr]
        connection.rollback()
        assert inside.append(user("x")).first == 2


def terminate_whoever_waits(engine: sa.Engine) -> None:
    """End the session that waits for a lock."""
    query = sa.text(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    deadline = time.monotonic() + 10
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(query):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_an_administrator_who_ends_a_session_costs_the_call_nothing(engine: sa.Engine, store: Store) -> None:
    calls = {
        "chunks": lambda: store.collection("notes").ingest(["A text."]).records_added,
        "transcripts": lambda: store.transcript("talk").append(user("x")).first,
        "records": lambda: store.collection("notes").delete("before"),
        "chunk_embeddings": lambda: len(store.collection("notes").search("text", channels="vector").hits),
    }
    with ThreadPoolExecutor(1) as pool:
        for table, call in calls.items():
            with engine.connect() as holder:
                holder.execute(sa.text(f"LOCK TABLE cayu.{table} IN ACCESS EXCLUSIVE MODE"))
                called = pool.submit(call)
                terminate_whoever_waits(engine)
            assert called.result(10) == 1


def test_a_session_that_ends_while_it_commits_leaves_the_outcome_unknown(
    engine: sa.Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(conn: sa.Connection) -> None:
        process = conn.connection.info.get("pid") or conn.scalar(sa.text("SELECT pg_backend_pid()"))
        assert scalar(engine, f"SELECT pg_terminate_backend({process}, 5000)") is True

    sa.event.listen(engine, "commit", lost)
    with pytest.raises(OutcomeUnknown) as raised:
        store.transcript("talk").append(user("x"))
    assert isinstance(raised.value.__cause__, sa.exc.DBAPIError)
    sa.event.remove(engine, "commit", lost)
    assert store.transcript("talk").append(user("x"), expected_position=1).first == 1


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_restart_of_the_server_between_and_during_calls(how: str) -> None:
    with temporary_folder() as folder, postgres16_server(folder, SURVIVES_A_KILL) as url:
        migrate(url)
        with Store(url, embedder=EMBEDDER) as store:
            notes, talk = store.collection("notes"), store.transcript("talk")
            notes.ingest([Document("Here before.", id="before")])
            talk.append(user("Hi."))
            for call in (
                lambda: notes.search("before").texts == ["Here before."],
                lambda: talk.append(user("x")).replayed is False,
                lambda: notes.ingest([Document("A text.", id=how)]).records_added == 1,
            ):
                restart(folder, how)
                assert call()
            during(notes, lambda: restart(folder, how))
            assert talk.count() == 2
            assert broken(store.engine) == {}


def during(notes: Collection, act: object) -> None:
    """Ingest and search in threads while `act` runs: nothing but our errors, and all works afterwards."""
    done, errors = threading.Event(), []

    def work(number: int) -> None:
        while not done.is_set():
            try:
                notes.ingest([Document(f"Text {time.monotonic()}", id=str(number))])
                notes.search("Text")
            except Unreachable as error:
                errors.append(error)

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        time.sleep(0.3)
        act()  # type: ignore[operator]
        time.sleep(0.3)
        done.set()
    for worker in workers:
        worker.result()
    assert errors
    assert notes.count() == 6
