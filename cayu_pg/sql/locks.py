"""The advisory locks of a collection, all of which end with the transaction.

Order: `weights` first, then the row of the collection, then what a statement locks.
"""

from __future__ import annotations

import time
import zlib

import sqlalchemy as sa

from cayu_pg.errors import Conflict

PATIENCE = 5.0  # seconds to wait for a moment without writers


class WritersAtWork(Conflict):
    """Nothing was done, because there was always somebody writing."""


def lock_key(purpose: str, collection_id: int) -> int:
    """The number that stands for one purpose in one collection."""
    return (zlib.crc32(f"cayu_pg:{purpose}".encode()) << 31) ^ collection_id


def lock_weights_shared(conn: sa.Connection, collection_id: int) -> None:
    """Write under the weights version and embedding space that are active; writers do not exclude each other."""
    lock = sa.func.pg_advisory_xact_lock_shared(lock_key("weights", collection_id))
    conn.execute(sa.select(lock))


def lock_weights(conn: sa.Connection, collection_id: int) -> None:
    """Keep writers out. Polled: a waiting lock would make later writers wait behind it for an older one."""
    lock = sa.func.pg_try_advisory_xact_lock(lock_key("weights", collection_id))
    deadline = time.monotonic() + PATIENCE
    while not conn.scalar(sa.select(lock)):
        if time.monotonic() > deadline:
            raise WritersAtWork(f"writers left no moment of quiet within {PATIENCE:g} seconds")
        conn.execute(sa.select(sa.func.pg_sleep(0.01)))
