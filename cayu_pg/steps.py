"""Pipelines as generators of steps: one body that a synchronous and an asynchronous door drive alike.

A step says what to do and holds nothing: `Read` and `Write` get a connection in a transaction of their own (or the
caller's), `Compute` runs a model or other long work with no connection held. The door sends the result back in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Read:
    """Call `function` with a connection, in a transaction that changes nothing."""

    function: Callable[[sa.Connection], Any]


@dataclass(frozen=True, slots=True)
class Write:
    """Call `function` with a connection, in a transaction that commits when it returns.

    It is called again when the connection broke before the commit.
    """

    function: Callable[[sa.Connection], Any]


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A `Write` that may be committed twice with the effect of once; so it is, when its outcome is unknown."""

    function: Callable[[sa.Connection], Any]


@dataclass(frozen=True, slots=True)
class Compute:
    """Call `function` without a connection; a model, or anything that takes long."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Maintain:
    """Call `function` with a connection outside any transaction, for what Postgres refuses inside one.

    It may be called twice, when the connection broke.
    """

    function: Callable[[sa.Connection], Any]


Step = Read | Write | Repeatable | Compute | Maintain
Steps = Generator[Step, Any, R]


def read(function: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> Steps[R]:
    """The result of `function(conn, *args, **kwargs)` in a reading transaction."""
    return cast(R, (yield Read(_bound(function, args, kwargs))))


def write(
    function: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs
) -> Steps[R]:
    """The result of `function(conn, *args, **kwargs)` in a writing transaction."""
    return cast(R, (yield Write(_bound(function, args, kwargs))))


def write_repeatable(
    function: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs
) -> Steps[R]:
    """The same for a write that finds out for itself whether it has been done already."""
    return cast(R, (yield Repeatable(_bound(function, args, kwargs))))


def maintain(
    function: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs
) -> Steps[R]:
    """The result of `function(conn, *args, **kwargs)` on a connection outside any transaction."""
    return cast(R, (yield Maintain(_bound(function, args, kwargs))))


def compute(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Steps[R]:
    """The result of `function(*args, **kwargs)`, computed with no connection held."""
    return cast(R, (yield Compute(partial(function, *args, **kwargs))))


def _bound(
    function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[sa.Connection], R]:
    return lambda conn: function(conn, *args, **kwargs)


def drive(steps: Steps[R], perform: Callable[[Step], Any]) -> R:
    """Perform the steps one after the other and return what the pipeline returns."""
    advance: Callable[[Any], Step] = steps.send
    value: Any = None
    while True:
        try:
            step = advance(value)
        except StopIteration as stop:
            return cast(R, stop.value)
        try:
            advance, value = steps.send, perform(step)
        except Exception as error:  # noqa: BLE001 - handed to the pipeline, which lets it go or knows better
            advance, value = steps.throw, error


async def drive_async(steps: Steps[R], perform: Callable[[Step], Awaitable[Any]]) -> R:
    """`drive`, with each step awaited."""
    advance: Callable[[Any], Step] = steps.send
    value: Any = None
    while True:
        try:
            step = advance(value)
        except StopIteration as stop:
            return cast(R, stop.value)
        try:
            advance, value = steps.send, await perform(step)
        except Exception as error:  # noqa: BLE001 - as in drive; cancellation is no Exception and just ends it
            advance, value = steps.throw, error
