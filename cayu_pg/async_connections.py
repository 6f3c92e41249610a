"""Where the steps of the asynchronous door get their connections: from a pool, or from the caller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cayu_pg.connections import AGAIN
from cayu_pg.errors import ConnectionLost, InvalidInput, OutcomeUnknown
from cayu_pg.sql.engine import check_driver, lends_one, open_async_engine
from cayu_pg.sql.errors import committing, translated
from cayu_pg.steps import Outcome, in_turn_async, settled_async

log = logging.getLogger(__name__)

R = TypeVar("R")
S = TypeVar("S")
Call = Callable[[], Awaitable[R]]


class AsyncConnections(Protocol):
    """What runs the steps of a door."""

    async def reading(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` reads, in one snapshot."""

    async def writing(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did in a transaction that is committed."""

    async def repeating(self, function: Callable[[sa.Connection], R]) -> R:
        """The same for one that may be done again even if it was committed."""

    async def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did outside any transaction."""

    async def beside(self, one: Call[R], other: Call[S]) -> tuple[Outcome[R], Outcome[S]]:
        """The outcomes of both, which go on at once where there are connections for it."""


class AsyncPool:
    """Connections of an engine: each step is a transaction of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """A connection of the pool."""
        async with self.engine.connect() as conn:
            yield conn

    async def reading(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` reads, in one snapshot."""
        try:
            return await self._read(function)
        except ConnectionLost:
            log.warning(AGAIN)
            return await self._read(function)  # the pool drops all connections of then, so this one is new

    async def _read(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            async with self.connect() as conn:
                await conn.execution_options(isolation_level="REPEATABLE READ")  # one snapshot for the step
                return await conn.run_sync(function)

    async def writing(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did in a transaction that is committed."""
        try:
            return await self._write(function)
        except OutcomeUnknown:
            raise
        except ConnectionLost:
            log.warning(AGAIN)
            return await self._write(function)  # what was not committed is as if it had never been sent

    async def repeating(self, function: Callable[[sa.Connection], R]) -> R:
        """The same for one that may be done again even if it was committed."""
        try:
            return await self._write(function)
        except ConnectionLost:
            log.warning(AGAIN)
            return await self._write(function)

    async def _write(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            # READ COMMITTED, whatever the caller's engine has: what a lock was waited for must be seen after it.
            async with self.connect() as conn:
                await conn.execution_options(isolation_level="READ COMMITTED")
                async with conn.begin() as transaction:
                    result = await conn.run_sync(function)
                    with committing():
                        await transaction.commit()
                return result

    async def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did outside any transaction."""
        try:
            return await self._maintain(function)
        except ConnectionLost:
            log.warning(AGAIN)
            return await self._maintain(function)  # it looks first at what is left to do

    async def _maintain(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            async with self.connect() as conn:
                try:
                    await conn.execution_options(isolation_level="AUTOCOMMIT")
                    return await conn.run_sync(function)
                finally:
                    await conn.invalidate()  # its settings were changed for the session

    async def beside(self, one: Call[R], other: Call[S]) -> tuple[Outcome[R], Outcome[S]]:
        """The outcomes of both, which go on at once where there are connections for it."""
        if lends_one(self.engine.pool):
            return await in_turn_async(one, other)
        return await asyncio.gather(settled_async(one), settled_async(other))


class _OwnPool(AsyncPool):
    """A pool of our own, which one event loop after the other may use."""

    _loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """A connection of this loop; InvalidInput while another one is open."""
        last, self._loop = self._loop, asyncio.get_running_loop()
        if last not in (None, self._loop):
            if not last.is_closed():
                self._loop = last
                raise InvalidInput("store", "to be used in one event loop at a time", "two that are open")
            await self.engine.dispose()  # what waits in the pool belongs to the closed loop
        async with super().connect() as conn:
            yield conn


class AsyncBorrowed:
    """The caller's connection: we never commit, and leave behind neither settings nor a failed transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def reading(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` reads."""
        with translated():
            savepoint = await self.connection.begin_nested()
            try:
                return await self.connection.run_sync(function)
            finally:
                await savepoint.rollback()  # restores every SET LOCAL of the step

    async def writing(self, function: Callable[[sa.Connection], R]) -> R:
        """What `function` did in a savepoint."""
        with translated():
            async with self.connection.begin_nested():
                return await self.connection.run_sync(function)

    async def repeating(self, function: Callable[[sa.Connection], R]) -> R:
        """The same: a lost connection took the caller's rows with it."""
        return await self.writing(function)

    async def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        """Raises InvalidInput: there is always a transaction."""
        raise InvalidInput(
            "store", "a store with connections of its own", "one that uses the caller's transaction"
        )

    async def beside(self, one: Call[R], other: Call[S]) -> tuple[Outcome[R], Outcome[S]]:
        """The outcomes of one after the other."""
        return await in_turn_async(one, other)  # one connection does one thing at a time


def pool_of(field: str, given: str | sa.URL | AsyncEngine) -> AsyncPool:
    """The pool of a given engine, or one of our own."""
    if not isinstance(given, AsyncEngine):
        return _OwnPool(open_async_engine(given))
    check_driver(field, given.dialect)
    return AsyncPool(given)


async def connection_of(session: object) -> AsyncConnection:
    """The connection of an ORM session, told by what it offers, so that the ORM need not be imported."""
    connection = getattr(session, "connection", None)
    found = await connection() if callable(connection) else None
    if not isinstance(found, AsyncConnection):
        raise InvalidInput(
            "connection", "a SQLAlchemy AsyncConnection or AsyncSession", type(session).__name__
        )
    return found
