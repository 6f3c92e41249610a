"""Every operation of a transcript as steps, and what they return."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from cayu_pg import appending
from cayu_pg.appending import AppendResult, check_position, reason_of
from cayu_pg.arguments import check_flag, check_name
from cayu_pg.errors import InvalidInput, InvalidStoredMessage
from cayu_pg.messages import Message
from cayu_pg.operations import StoreState, open_tables
from cayu_pg.sql import transcripts as sql_transcripts
from cayu_pg.sql.appends import TranscriptName, transcript_name
from cayu_pg.sql.transcripts import MessageRow
from cayu_pg.steps import Steps, answering, compute, read, write

OnInvalid = Literal["raise", "skip"]
MAX_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a transcript, with its place in it."""

    position: int
    message: Message
    created_at: datetime
    idempotency_key: str | None = None


class MessagePage(list[StoredMessage]):
    """Messages in reading order. `skipped` holds an error for each row left out as no message any more.

    `after` is where the next page begins; None when there is nothing behind this one.
    """

    skipped: tuple[InvalidStoredMessage, ...] = ()
    after: int | None = None


@dataclass(frozen=True, slots=True)
class TranscriptState:
    """A transcript of a store."""

    store: StoreState
    name: TranscriptName


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a retention run deleted, in how many batches; a dry run only counts."""

    messages: int
    batches: int
    dry_run: bool


def transcript_state(store: StoreState, tenant: str, transcript_id: str) -> TranscriptState:
    """The transcript of that id; it need not exist, the first append makes it. Raises InvalidInput."""
    check_name("tenant", tenant)
    check_name("transcript_id", transcript_id)
    return TranscriptState(store, transcript_name(tenant, transcript_id))


def append(
    state: TranscriptState, messages: object, expected: int | None, key: str | None
) -> Steps[AppendResult]:
    """Append messages, all or none; everything is checked before the first statement."""
    batch = yield from compute(appending.prepare, messages, key)
    check_position("expected_position", expected)
    tables = yield from open_tables(state.store)
    return (yield from appending.append(tables, state.name, batch, expected))


@answering
def read_page(
    state: TranscriptState, after: int | None, limit: int, reverse: bool, on_invalid: OnInvalid
) -> Steps[MessagePage]:
    """A page of messages, forwards or backwards."""
    check_position("after", after)
    check_limit("limit", limit)
    check_on_invalid(on_invalid)
    check_flag("reverse", reverse)
    tables = yield from open_tables(state.store)
    key = state.name.key
    rows = yield from read(
        sql_transcripts.read_messages, tables, key, after=after, limit=limit + 1, reverse=reverse
    )
    # Thousands of messages take long to check.
    return (yield from compute(_page, state.name.transcript_id, rows, limit, on_invalid))


def last(state: TranscriptState, n: int, on_invalid: OnInvalid) -> Steps[MessagePage]:
    """The newest `n` messages, oldest of them first."""
    check_limit("n", n)
    page = yield from read_page(state, None, n, True, on_invalid)
    page.reverse()
    page.after = None
    return page


@answering
def count(state: TranscriptState) -> Steps[int]:
    """How many messages there are."""
    tables = yield from open_tables(state.store)
    return (yield from read(sql_transcripts.count_messages, tables, state.name.key))


def next_position(state: TranscriptState) -> Steps[int]:
    """The position that the next message will get."""
    tables = yield from open_tables(state.store)
    return (yield from read(sql_transcripts.next_position, tables, state.name.key)) or 0


def delete_before(state: TranscriptState, position: int) -> Steps[int]:
    """Delete what stands in front of a position; how many messages there were."""
    if position is None:
        raise InvalidInput("position", "an int from 0", "None")
    check_position("position", position)
    tables = yield from open_tables(state.store)
    return (yield from write(sql_transcripts.delete_before, tables, state.name.key, position))


def delete(state: TranscriptState) -> Steps[bool]:
    """Delete the transcript with everything in it; whether there was one."""
    tables = yield from open_tables(state.store)
    return (yield from write(sql_transcripts.delete_transcript, tables, state.name.key))


def delete_messages_older_than(
    store: StoreState, tenant: str, cutoff: datetime, batch: int, dry_run: bool
) -> Steps[RetentionReport]:
    """Delete the tenant's messages written before `cutoff`, each batch in a transaction of its own.

    Transcripts keep their next position and idempotency keys. A dry run counts and deletes nothing.
    """
    check_name("tenant", tenant)
    check_time("cutoff", cutoff)
    check_limit("batch", batch)
    check_flag("dry_run", dry_run)
    tables = yield from open_tables(store)
    if dry_run:
        found = yield from read(sql_transcripts.count_older, tables, tenant, cutoff)
        return RetentionReport(found, -(-found // batch), dry_run=True)
    messages, batches = 0, 0
    while True:
        deleted = yield from write(sql_transcripts.delete_older, tables, tenant, cutoff, batch)
        if deleted is None:
            return RetentionReport(messages, batches, dry_run=False)
        messages, batches = messages + deleted, batches + 1


def check_limit(field: str, limit: object) -> None:
    """InvalidInput unless it is a size that a page can have."""
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(field, f"an int from 1 to {MAX_PAGE}", repr(limit)[:40])


def check_on_invalid(choice: object) -> None:
    """InvalidInput unless it is one of the two choices."""
    if choice not in ("raise", "skip"):
        raise InvalidInput("on_invalid", "raise or skip", repr(choice)[:40])


def check_time(field: str, time: object) -> None:
    """InvalidInput unless it is a time with a zone."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        found = "one without" if isinstance(time, datetime) else f"a value of type {type(time).__name__}"
        raise InvalidInput(field, "a datetime with a time zone", found)


def valid_message(
    transcript_id: str, row: MessageRow, on_invalid: OnInvalid, skipped: list[InvalidStoredMessage]
) -> Message | None:
    """The message that a row holds; where it holds none, an error that is raised, or noted in `skipped`."""
    try:
        return Message.model_validate_json(f'{{"role":{json.dumps(row.role)},"content":{row.content}}}')
    except ValidationError as error:
        invalid = InvalidStoredMessage(transcript_id, row.position, reason_of(error))
        if on_invalid == "raise":
            raise invalid from error
        skipped.append(invalid)
        return None


def _page(transcript_id: str, rows: list[MessageRow], limit: int, on_invalid: OnInvalid) -> MessagePage:
    page, skipped = MessagePage(), list[InvalidStoredMessage]()
    for row in rows[:limit]:
        message = valid_message(transcript_id, row, on_invalid, skipped)
        if message is not None:
            page.append(StoredMessage(row.position, message, row.created_at, row.idempotency_key))
    page.skipped = tuple(skipped)
    page.after = rows[limit - 1].position if len(rows) > limit else None
    return page
