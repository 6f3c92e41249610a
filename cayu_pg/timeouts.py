"""How long statements and waits for locks may take: steps whose transactions carry limits, whatever they do inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from cayu_pg.errors import InvalidInput
from cayu_pg.sql.settings import restore_timeouts, set_timeouts
from cayu_pg.steps import Beside, Read, Repeatable, Step, Steps, Write, relayed

R = TypeVar("R")
MAX_SECONDS = 604_800  # a week


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a statement may take and wait for a lock, in milliseconds; None leaves it to the server."""

    statement_ms: int | None = None
    lock_ms: int | None = None


def timeouts_of(statement_timeout: float | None, lock_timeout: float | None) -> Timeouts:
    """Timeouts from seconds; InvalidInput for what is no time."""
    return Timeouts(
        None if statement_timeout is None else milliseconds("statement_timeout", statement_timeout),
        None if lock_timeout is None else milliseconds("lock_timeout", lock_timeout),
    )


def within(steps: Steps[R], timeouts: Timeouts) -> Steps[R]:
    """The same steps, each of whose transactions has the timeouts; what a step sets itself goes first.

    Maintenance outside transactions, such as an index build, has limits of its own.
    """
    if timeouts == Timeouts():
        return (yield from steps)
    return (yield from relayed(steps, lambda step: _limited(step, timeouts)))


def _limited(step: Step, timeouts: Timeouts) -> Steps[Any]:
    match step:
        case Read(function) | Write(function) | Repeatable(function):
            limited = partial(_limited_call, function=function, timeouts=timeouts)
            return (yield replace(step, function=limited))
        case Beside(write, steps):
            limited = partial(_limited_call, function=write.function, timeouts=timeouts)
            return (yield Beside(Repeatable(limited), within(steps, timeouts)))
        case _:
            return (yield step)


def _limited_call(conn: sa.Connection, function: Callable[[sa.Connection], Any], timeouts: Timeouts) -> Any:
    before = set_timeouts(conn, statement_ms=timeouts.statement_ms, lock_ms=timeouts.lock_ms)
    result = function(conn)
    # In a caller's transaction a setting outlives the savepoint; after a failure the savepoint restores it.
    restore_timeouts(conn, before)
    return result


def milliseconds(field: str, seconds: float) -> int:
    """The same time; InvalidInput for what is no time."""
    if type(seconds) not in (int, float) or not 0.001 <= seconds <= MAX_SECONDS:
        raise InvalidInput(field, f"seconds from 0.001 to {MAX_SECONDS}", repr(seconds)[:40])
    return int(seconds * 1000)
