"""Where the steps of the synchronous door get their connections: from a pool, or from the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Protocol, TypeVar

import sqlalchemy as sa

from cayu_pg.errors import ConnectionLost, InvalidInput, OutcomeUnknown
from cayu_pg.sql.engine import check_driver, lends_one, open_engine
from cayu_pg.sql.errors import committing, translated
from cayu_pg.steps import Outcome, in_turn, settled

log = logging.getLogger(__name__)

AGAIN = "a connection broke; the step is done once more on another"

R = TypeVar("R")
S = TypeVar("S")
Call = Callable[[], R]


class Connections(Protocol):
    """What runs the steps of a door."""

    def reading(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` reads, in one snapshot."""

    def writing(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did in a transaction that is committed."""

    def repeating(self, function: Callable[[sa.Connection], R]) -> R:
        """The same for one that may be done again even if it was committed."""

    def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did outside any transaction."""

    def beside(self, one: Call[R], other: Call[S]) -> tuple[Outcome[R], Outcome[S]]:
        """The outcomes of both, which go on at once where there are connections for it."""


class Pool:
    """Connections of an engine: each step is a transaction of its own."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    def reading(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` reads, in one snapshot."""
        try:
            return self._read(function)
        except ConnectionLost:
            log.warning(AGAIN)
            return self._read(function)  # the pool drops all connections of then, so this one is new

    def _read(self, function: Callable[[sa.Connection], R]) -> R:
        # One snapshot for all statements of the step.
        with translated(), self.engine.connect() as conn:
            return function(conn.execution_options(isolation_level="REPEATABLE READ"))

    def writing(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did in a transaction that is committed."""
        try:
            return self._write(function)
        except OutcomeUnknown:
            raise
        except ConnectionLost:
            log.warning(AGAIN)
            return self._write(function)  # what was not committed is as if it had never been sent

    def repeating(self, function: Callable[[sa.Connection], R]) -> R:
        """The same for one that may be done again even if it was committed."""
        try:
            return self._write(function)
        except ConnectionLost:
            log.warning(AGAIN)
            return self._write(function)

    def _write(self, function: Callable[[sa.Connection], R]) -> R:
        # READ COMMITTED, whatever the caller's engine has: what a lock was waited for must be seen after it.
        options = {"isolation_level": "READ COMMITTED"}
        with translated(), self.engine.connect() as conn:
            with conn.execution_options(**options).begin() as transaction:
                result = function(conn)
                with committing():
                    transaction.commit()
            return result

    def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did outside any transaction."""
        try:
            return self._maintain(function)
        except ConnectionLost:
            log.warning(AGAIN)
            return self._maintain(function)  # it looks first at what is left to do

    def _maintain(self, function: Callable[[sa.Connection], R]) -> R:
        with translated(), self.engine.connect() as conn:
            try:
                return function(conn.execution_options(isolation_level="AUTOCOMMIT"))
            finally:
                conn.invalidate()  # its settings were changed for the session

    def beside(self, one: Call[R], other: Call[S]) -> tuple[Outcome[R], Outcome[S]]:
        """The outcomes of both, which go on at once where there are connections for it."""
        if lends_one(self.engine.pool):
            return in_turn(one, other)
        # The other stays in the caller's thread: it reads the caller's documents and calls the model.
        with ThreadPoolExecutor(1, "cayu_pg") as threads:
            writing = threads.submit(copy_context().run, settled, one)
            outcome = settled(other)
        return writing.result(), outcome


class Borrowed:
    """The caller's connection: we never commit, and leave behind neither settings nor a failed transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection

    def reading(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` reads."""
        with translated():
            savepoint = self.connection.begin_nested()
            try:
                return function(self.connection)
            finally:
                savepoint.rollback()  # restores every SET LOCAL of the step

    def writing(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did in a savepoint."""
        with translated(), self.connection.begin_nested():
            return function(self.connection)

    def repeating(self, function: Callable[[sa.Connection], R]) -> R:
        """The same: a lost connection took the caller's rows with it."""
        return self.writing(function)

    def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        """Raises InvalidInput: there is always a transaction."""
        raise InvalidInput(
            "store", "a store with connections of its own", "one that uses the caller's transaction"
        )

    def beside(self, one: Call[R], other: Call[S]) -> tuple[Outcome[R], Outcome[S]]:
        """The outcomes of one after the other."""
        return in_turn(one, other)  # the connection is not ours to use from another thread


def pool_of(field: str, given: str | sa.URL | sa.Engine) -> Pool:
    """The pool of a given engine, or of one of our own."""
    engine = given if isinstance(given, sa.Engine) else open_engine(given)
    check_driver(field, engine.dialect)
    return Pool(engine)


def connection_of(session: object) -> sa.Connection:
    """The connection of an ORM session, told by what it offers, so that the ORM need not be imported."""
    connection = getattr(session, "connection", None)
    found = connection() if callable(connection) else None
    if not isinstance(found, sa.Connection):
        raise InvalidInput("connection", "a SQLAlchemy Connection or Session", type(session).__name__)
    return found
