"""Reads on a replica: which steps go there, how they see the store's own writes, and when the primary answers.

Only pipelines that answer and decide about no write are read there. What the replica cannot do, or does not have yet,
the primary does: a replica takes load off it, and is never a reason for an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from cayu_pg.errors import CayuPgError, Conflict, InvalidInput, NotFound, SchemaError, Unreachable
from cayu_pg.sql.replication import await_replay, log_position
from cayu_pg.steps import Beside, Read, ReadAnywhere, ReadReplica, Repeatable, Step, Steps, Write, relayed

R = TypeVar("R")
MAX_WAIT = 3_600
REST_SECONDS = 10.0  # for which a replica that did not answer is not asked again

log = logging.getLogger(__name__)


class Replica:
    """What a store knows of its replica: how far that has to be, and whether it answered lately.

    Shared by threads. Where it is not known how far the own writes reach, the primary is asked before the next read.
    """

    def __init__(self, *, read_your_writes: bool = True, wait: float = 1.0) -> None:
        if type(read_your_writes) is not bool:
            raise InvalidInput("read_your_writes", "True or False", repr(read_your_writes)[:40])
        if type(wait) not in (int, float) or not 0 <= wait <= MAX_WAIT:
            raise InvalidInput("replica_wait", f"seconds from 0 to {MAX_WAIT}", repr(wait)[:40])
        self.read_your_writes = read_your_writes
        self.wait = wait
        self.position = 0
        self._lost = self._found = 0  # writes of unknown position, and how many of them `position` includes
        self._rests_until = 0.0
        self._lock = threading.Lock()

    @property
    def is_usable(self) -> bool:
        """Whether to ask it."""
        return time.monotonic() >= self._rests_until

    @property
    def is_certain(self) -> bool:
        """Whether `position` includes every write of the store."""
        return self._found == self._lost

    def rest(self) -> None:
        """Do not ask it for a while."""
        self._rests_until = time.monotonic() + REST_SECONDS

    def lose_position(self) -> None:
        """A write may have been committed, nobody knows where in the log."""
        with self._lock:
            self._lost += 1

    def find_position(self) -> Steps[None]:
        """Ask the primary how far its log is."""
        lost = self._lost
        position = yield Read(log_position)
        with self._lock:
            self.position, self._found = max(self.position, position), max(self._found, lost)


class _Behind(CayuPgError):
    """The replica did not have the store's own writes in time."""


def through_replica(steps: Steps[R], replica: Replica | None) -> Steps[R]:
    """The steps, with those that may be done anywhere done by the replica, if there is one."""
    if replica is None:
        return (yield from steps)
    wrote = noted = False

    def relay(step: Step) -> Steps[Any]:
        nonlocal wrote
        wrote = wrote or isinstance(step, Write | Repeatable | Beside)
        if isinstance(step, ReadAnywhere) and replica.is_usable and not wrote:
            return (yield from _answered(step.function, replica))
        return (yield step)

    try:
        result = yield from relayed(steps, relay)
        if wrote and replica.read_your_writes:
            noted = yield from _noted(replica)
        return result
    finally:
        if wrote and not noted:
            replica.lose_position()


def _noted(replica: Replica) -> Steps[bool]:
    """Whether the primary said how far its log is; what was written is written in any case."""
    try:
        yield from replica.find_position()
    except CayuPgError:
        return False
    return True


def _answered(function: Callable[[sa.Connection], Any], replica: Replica) -> Steps[Any]:
    if replica.read_your_writes and not replica.is_certain:
        yield from replica.find_position()
    position = replica.position if replica.read_your_writes else 0
    try:
        return (yield ReadReplica(lambda conn: _once_replayed(conn, function, position, replica.wait)))
    except Unreachable as error:
        replica.rest()
        log.warning("the replica cannot be used, the primary answers for %.0f s: %s", REST_SECONDS, error)
    except _Behind as error:
        log.info("the primary answers: %s", error)
    except (Conflict, NotFound, SchemaError) as error:
        # Cancelled by what it replays, or it lacks what the primary may have.
        log.info("the primary answers, as the replica could not: %s", type(error).__name__)
    return (yield Read(function))


def _once_replayed(
    conn: sa.Connection, function: Callable[[sa.Connection], Any], position: int, seconds: float
) -> Any:
    if position and not await_replay(conn, position, seconds):
        raise _Behind(f"the replica had not replayed this store's writes after {seconds:g} s")
    return function(conn)
