"""The asynchronous door to one transcript."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Protocol, TypeVar

from cayu_pg import message_search, transcripts
from cayu_pg.appending import AppendResult
from cayu_pg.message_search import MessageHits, which_messages
from cayu_pg.messages import Message
from cayu_pg.steps import Steps
from cayu_pg.timeouts import Timeouts, timeouts_of, within
from cayu_pg.transcripts import MessagePage, OnInvalid, StoredMessage, TranscriptState

R = TypeVar("R")


class Run(Protocol):
    """Performs steps in the transactions that a store opens for them."""

    async def __call__(self, steps: Steps[R], /) -> R:
        """What the steps return."""
        ...


def limited(run: Run, timeouts: Timeouts) -> Run:
    """`run`, for steps whose transactions have these timeouts."""

    async def run_within(steps: Steps[R], /) -> R:
        return await run(within(steps, timeouts))

    return run_within


class AsyncTranscript:
    """One conversation: an append-only log of messages with positions from 0.

    It exists from its first append on; before, it reads as empty. Rows that SQL users made invalid raise
    InvalidStoredMessage; with `on_invalid="skip"` they are left out and listed in `skipped` of what is returned.
    """

    def __init__(self, run: Run, state: TranscriptState) -> None:
        self._run = run
        self._state = state

    @property
    def id(self) -> str:
        """What the transcript is called in its tenant."""
        return self._state.name.transcript_id

    def with_timeouts(
        self, *, statement_timeout: float | None = None, lock_timeout: float | None = None
    ) -> AsyncTranscript:
        """The same transcript, with timeouts in seconds for what it is asked, as `Store.with_timeouts`."""
        timeouts = timeouts_of(statement_timeout, lock_timeout)
        return AsyncTranscript(limited(self._run, timeouts), self._state)

    async def append(
        self,
        messages: Message | Iterable[Message],
        *,
        expected_position: int | None = None,
        idempotency_key: str | None = None,
    ) -> AppendResult:
        """Append messages, all or none, and say which positions they have.

        `expected_position` is the position that the first of them must get, else PositionConflict tells the
        `current` one. The same `idempotency_key` with the same messages answers what the first append did and writes
        nothing, also after old messages were deleted; with other messages it raises IdempotencyConflict.
        """
        steps = transcripts.append(self._state, messages, expected_position, idempotency_key)
        return await self._run(steps)

    async def read(
        self,
        *,
        after: int | None = None,
        limit: int = 100,
        reverse: bool = False,
        on_invalid: OnInvalid = "raise",
    ) -> MessagePage:
        """A page of messages from behind the position `after`; with `reverse` from the newest towards the first.

        The next page begins at `page.after`, which is None on the last page.
        """
        return await self._run(transcripts.read_page(self._state, after, limit, reverse, on_invalid))

    async def pages(
        self,
        *,
        after: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        on_invalid: OnInvalid = "raise",
    ) -> AsyncIterator[MessagePage]:
        """One page after the other, each read in a transaction of its own."""
        while True:
            page = await self.read(after=after, limit=limit, reverse=reverse, on_invalid=on_invalid)
            yield page
            if page.after is None:
                return
            after = page.after

    async def iterate(
        self, *, after: int | None = None, reverse: bool = False, on_invalid: OnInvalid = "raise"
    ) -> AsyncIterator[StoredMessage]:
        """Every message, however many, a page of them in memory; `pages()` also tells what was skipped."""
        async for page in self.pages(after=after, reverse=reverse, on_invalid=on_invalid):
            for message in page:
                yield message

    async def last(self, n: int, *, on_invalid: OnInvalid = "raise") -> MessagePage:
        """The newest `n` messages, the oldest of them first."""
        return await self._run(transcripts.last(self._state, n, on_invalid))

    async def search(
        self,
        query: str,
        *,
        roles: str | Iterable[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        on_invalid: OnInvalid = "raise",
    ) -> MessageHits:
        """The messages that hold words of `query`, best first, of these roles and times (`until` excluded)."""
        which = which_messages(roles, since, until)
        return await self._run(message_search.search(self._state, query, which, limit, on_invalid))

    async def count(self) -> int:
        """How many messages there are."""
        return await self._run(transcripts.count(self._state))

    async def next_position(self) -> int:
        """The position that the next message will get; more than `count()` once messages were deleted."""
        return await self._run(transcripts.next_position(self._state))

    async def delete_before(self, position: int) -> int:
        """Delete the messages in front of `position`; how many there were. Positions are not used again."""
        return await self._run(transcripts.delete_before(self._state, position))

    async def delete(self) -> bool:
        """Delete the transcript with its messages and idempotency keys; whether there was one."""
        return await self._run(transcripts.delete(self._state))
