"""Pipelines as generators of steps: one body that a synchronous and an asynchronous door drive alike.

A step says what to do and holds nothing: `Read` and `Write` get a connection in a transaction of their own (or the
caller's), `Compute` runs a model or other long work with no connection held. `Beside` is two things at once. The door
sends the result back in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import sqlalchemy as sa

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Read:
    """Call `function` with a connection, in a transaction that changes nothing."""

    function: Callable[[sa.Connection], Any]


@dataclass(frozen=True, slots=True)
class ReadAnywhere(Read):
    """A `Read` that a replica may do, though it may be behind."""


@dataclass(frozen=True, slots=True)
class ReadReplica(Read):
    """A `Read` for the replica of the store."""


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


@dataclass(frozen=True, slots=True)
class Beside:
    """Write while other steps go on; both have ended before the pipeline goes on, with an Outcome of each."""

    write: Repeatable
    steps: Generator[Any, Any, Any]


Step = Read | Write | Repeatable | Compute | Maintain | Beside
Steps = Generator[Step, Any, R]


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What something gave, or the error that it ended with."""

    given: R | None = None
    error: Exception | None = None

    def get(self) -> R:
        """What it gave; raises its error."""
        if self.error is not None:
            raise self.error
        return cast(R, self.given)


def read(function: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> Steps[R]:
    """The result of `function(conn, *args, **kwargs)` in a reading transaction."""
    return cast(R, (yield Read(_bound(function, args, kwargs))))


def read_anywhere(
    function: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs
) -> Steps[R]:
    """The same, where a replica may answer."""
    return cast(R, (yield ReadAnywhere(_bound(function, args, kwargs))))


def answering(pipeline: Callable[P, Steps[R]]) -> Callable[P, Steps[R]]:
    """The pipeline with reads that a replica may do: for what only answers, and decides about no write."""

    @wraps(pipeline)
    def answer(*args: P.args, **kwargs: P.kwargs) -> Steps[R]:
        return relayed(pipeline(*args, **kwargs), _anywhere)

    return answer


def _anywhere(step: Step) -> Steps[Any]:
    return (yield ReadAnywhere(step.function) if isinstance(step, Read) else step)


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


def write_beside(
    steps: Steps[S],
    function: Callable[Concatenate[sa.Connection, P], R],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Steps[tuple[Outcome[R], Outcome[S]]]:
    """The outcomes of `write_repeatable(function, *args, **kwargs)`, and of `steps` meanwhile."""
    outcomes = yield Beside(Repeatable(_bound(function, args, kwargs)), steps)
    return cast(tuple[Outcome[R], Outcome[S]], outcomes)


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
    with closing(steps):  # what the pipeline opened ends here, not whenever it is collected
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
    with closing(steps):
        while True:
            try:
                step = advance(value)
            except StopIteration as stop:
                return cast(R, stop.value)
            try:
                advance, value = steps.send, await perform(step)
            except Exception as error:  # noqa: BLE001 - as in drive; cancellation is no Exception and just ends it
                advance, value = steps.throw, error


def relayed(steps: Steps[R], relay: Callable[[Step], Steps[Any]]) -> Steps[R]:
    """The pipeline with each of its steps done by what `relay` makes of it."""
    advance: Callable[[Any], Step] = steps.send
    value: Any = None
    with closing(steps):
        while True:
            try:
                step = advance(value)
            except StopIteration as stop:
                return cast(R, stop.value)
            try:
                advance, value = steps.send, (yield from relay(step))
            except Exception as error:  # noqa: BLE001 - as in drive
                advance, value = steps.throw, error


def in_turn(one: Callable[[], R], other: Callable[[], S]) -> tuple[Outcome[R], Outcome[S]]:
    """What `Beside` gives where only one connection is to be had: the other follows if the one went well."""
    first = settled(one)
    return first, Outcome(error=first.error) if first.error else settled(other)


async def in_turn_async(
    one: Callable[[], Awaitable[R]], other: Callable[[], Awaitable[S]]
) -> tuple[Outcome[R], Outcome[S]]:
    """`in_turn`, awaited."""
    first = await settled_async(one)
    return first, Outcome(error=first.error) if first.error else await settled_async(other)


def settled(call: Callable[[], R]) -> Outcome[R]:
    """What `call` gives, or its error."""
    try:
        return Outcome(call())
    except Exception as error:  # noqa: BLE001 - handed to the pipeline, as in drive
        return Outcome(error=error)


async def settled_async(call: Callable[[], Awaitable[R]]) -> Outcome[R]:
    """`settled`, awaited."""
    try:
        return Outcome(await call())
    except Exception as error:  # noqa: BLE001 - as in settled
        return Outcome(error=error)
