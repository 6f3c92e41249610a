"""How far the log of the primary is, and whether a replica has replayed it that far."""

from __future__ import annotations

import time

import sqlalchemy as sa

POLL_SECONDS = 0.005


def log_position(conn: sa.Connection) -> int:
    """Where the log of the primary ends, in bytes since it began; whatever was committed lies before it."""
    return int(conn.exec_driver_sql("SELECT pg_current_wal_insert_lsn() - '0/0'").scalar_one())


def await_replay(conn: sa.Connection, position: int, seconds: float) -> bool:
    """Whether the replica has replayed the log up to `position`, now or within so many seconds.

    For a connection outside a transaction, which it is again afterwards: a snapshot would not move on.
    """
    deadline = time.monotonic() + seconds
    while not _has_replayed(conn, position):
        if time.monotonic() > deadline:
            return False
        conn.exec_driver_sql(f"SELECT pg_sleep({POLL_SECONDS})")
        conn.rollback()
    return True


def _has_replayed(conn: sa.Connection, position: int) -> bool:
    replayed = conn.execute(
        # A replica that became the primary replays nothing more.
        sa.text("SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() - '0/0' >= :position"),
        {"position": position},
    ).scalar_one()
    conn.rollback()
    return bool(replayed)
