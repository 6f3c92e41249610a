"""Many writers, rivals and writers that die leave one consistent log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import sqlalchemy as sa

from cayu_pg.appending import AppendResult
from cayu_pg.errors import IdempotencyConflict, PositionConflict
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from tests.stores import rows, scalar
from tests.talks import numbered, open_transcript, positions, texts, user

WRITERS, APPENDS = 16, 200
R = TypeVar("R")
UNFINISHED = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND backend_type = 'client backend' AND xact_start < now()"""


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    engine = sa.create_engine(
        sa.make_url(database_url).set(drivername="postgresql+psycopg"), pool_size=WRITERS, max_overflow=0
    )
    yield Store(engine)
    engine.dispose()


@pytest.fixture
def talk(store: Store) -> Transcript:
    return open_transcript(store)


def at_once(count: int, act: Callable[[int], R]) -> list[R | Exception]:
    """What `act` returns or raises for 0, 1, ... in as many threads, started together."""
    start = threading.Barrier(count)

    def run(number: int) -> R | Exception:
        start.wait()
        try:
            return act(number)
        except (PositionConflict, IdempotencyConflict) as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_16_writers_of_200_appends_leave_no_gap_and_keep_their_order(store: Store, talk: Transcript) -> None:
    def write(writer: int) -> list[int]:
        return [talk.append(user(f"{writer}:{number}")).first for number in range(APPENDS)]

    at_once(WRITERS, write)
    log = list(talk.iterate())
    assert [stored.position for stored in log] == list(range(WRITERS * APPENDS))
    for writer in range(WRITERS):
        said = [text for stored in log if (text := stored.message.content[0].text).startswith(f"{writer}:")]
        assert said == [f"{writer}:{number}" for number in range(APPENDS)]
    times = [stored.created_at for stored in log]
    assert times == sorted(times)
    assert scalar(store.engine, "SELECT count(*) FROM cayu.transcripts") == 1
    assert scalar(store.engine, "SELECT count(*) FROM cayu.message_lexemes") == WRITERS * APPENDS


def test_batches_of_concurrent_writers_stay_together(talk: Transcript) -> None:
    results = at_once(WRITERS, lambda writer: talk.append(numbered(20, start=100 * writer)))
    for writer, result in enumerate(results):
        assert isinstance(result, AppendResult)
        assert texts(talk.read(after=result.first - 1 if result.first else None, limit=20)) == [
            f"message {number}" for number in range(100 * writer, 100 * writer + 20)
        ]


def append_at(talk: Transcript, position: int, rival: int) -> AppendResult:
    return talk.append(user(f"rival {rival}"), expected_position=position)


@pytest.mark.parametrize("expected", [0, 3])
def test_exactly_one_of_two_rivals_gets_the_expected_position(talk: Transcript, expected: int) -> None:
    if expected:
        talk.append(numbered(expected))
    for attempt in range(10):
        position = expected + attempt
        results = at_once(2, partial(append_at, talk, position))
        won = [each for each in results if isinstance(each, AppendResult)]
        lost = [each for each in results if isinstance(each, PositionConflict)]
        assert [each.first for each in won] == [position]
        assert [(each.expected, each.current) for each in lost] == [(position, position + 1)]
    assert talk.count() == expected + 10


def test_one_key_given_by_many_at_once_writes_once(talk: Transcript) -> None:
    results = at_once(WRITERS, lambda _: talk.append(numbered(3), idempotency_key="k"))
    appended = [each for each in results if isinstance(each, AppendResult)]
    assert [(each.first, each.last) for each in appended] == [(0, 2)] * WRITERS
    assert sorted(each.replayed for each in appended) == [False] + [True] * (WRITERS - 1)
    assert positions(talk.read()) == [0, 1, 2]


def test_one_key_given_with_different_messages_at_once_has_one_winner(talk: Transcript) -> None:
    results = at_once(4, lambda number: talk.append(user(f"{number}"), idempotency_key="k"))
    assert sum(isinstance(each, AppendResult) for each in results) == 1
    assert sum(isinstance(each, IdempotencyConflict) for each in results) == 3
    assert talk.count() == 1


def test_appends_go_on_beside_deletion(talk: Transcript) -> None:
    def act(number: int) -> int:
        if number == 0:
            return sum(talk.delete_before(talk.next_position()) for _ in range(30))
        return sum(1 for _ in range(50) if talk.append(user("x")))

    deleted, *written = at_once(5, act)
    assert written == [50] * 4
    assert isinstance(deleted, int)
    assert (talk.next_position(), talk.count()) == (200, 200 - deleted)


# --- writers that die

WRITER = """
import sys
from cayu_pg.store import Store
from tests.talks import numbered, open_transcript

store = Store(sys.argv[1])
if sys.argv[2] == "before commit":
    with store.engine.connect() as connection:
        open_transcript(store.using(connection)).append(numbered(50), idempotency_key="k")
        print("written", flush=True)
        sys.stdin.read()
elif sys.argv[2] == "after commit":
    open_transcript(store).append(numbered(50), idempotency_key="k")
    print("written", flush=True)
    sys.stdin.read()
else:
    print("written", flush=True)
    for number in range(10_000):
        open_transcript(store).append(numbered(50, start=50 * number), idempotency_key=f"{number}")
"""


@pytest.fixture
def start_writer(database_url: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(when: str) -> subprocess.Popen[str]:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, database_url, when],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        started.append(writer)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        return writer

    yield start
    for writer in started:
        kill(writer)


def kill(writer: subprocess.Popen[str]) -> None:
    if writer.poll() is None:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    for pipe in (writer.stdin, writer.stdout):
        if pipe is not None:
            pipe.close()


@pytest.mark.parametrize(("when", "replayed"), [("before commit", False), ("after commit", True)])
def test_a_writer_killed_in_an_append_can_be_repeated(
    talk: Transcript, start_writer: Callable[[str], subprocess.Popen[str]], when: str, replayed: bool
) -> None:
    writer = start_writer(when)
    kill(writer)
    assert talk.count() == (50 if replayed else 0)
    assert talk.append(numbered(50), idempotency_key="k").replayed is replayed
    assert texts(talk.read()) == [f"message {number}" for number in range(50)]


@pytest.mark.parametrize("seconds", [0.05, 0.21, 0.34])
def test_a_writer_killed_at_any_time_leaves_whole_batches(
    store: Store, talk: Transcript, start_writer: Callable[[str], subprocess.Popen[str]], seconds: float
) -> None:
    writer = start_writer("at any time")
    time.sleep(seconds)
    kill(writer)
    while scalar(store.engine, UNFINISHED):
        time.sleep(0.01)  # the server ends what the dead writer had begun
    count = talk.count()
    assert count % 50 == 0
    assert talk.next_position() == count
    kept = rows(store.engine, "SELECT first_position, last_position FROM cayu.transcript_appends ORDER BY 1")
    assert kept == [(first, first + 49) for first in range(0, count, 50)]
    done = count // 50
    for number in range(max(0, done - 1), done + 1):  # the last that was answered or not, and the next
        batch = numbered(50, start=50 * number)
        assert talk.append(batch, idempotency_key=f"{number}").replayed is (number < done)
    assert [stored.position for stored in talk.iterate()] == list(range(count + 50))
    assert texts(talk.last(50)) == [f"message {number}" for number in range(50 * done, 50 * done + 50)]
