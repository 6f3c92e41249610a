"""The append pipeline: check the messages, prepare their words, write all of them in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from pydantic import ValidationError

from cayu_pg.analysis import MAX_ANALYZED, analyze
from cayu_pg.errors import Conflict, IdempotencyConflict, InvalidInput, PositionConflict
from cayu_pg.messages import (
    CitationPart,
    FilePart,
    Message,
    PeerContentPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    detach_message,
)
from cayu_pg.sql.appends import Batch, OnceOnly, TranscriptName, append_messages
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, write, write_repeatable
from cayu_pg.texts import storable
from cayu_pg.tracing import span

ANALYZER = "standard-1"
MAX_KEY = 512
MAX_MESSAGES = 1_000_000
MAX_POSITION = 2**63 - 1
# A tsvector ends at 1 MB. A word of the worst text, such as an address, takes four times its bytes there.
MAX_INDEXED = 200_000


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where the messages stand: positions `first` to `last`.

    `replayed` says that an earlier append with this idempotency key had written them. Of `truncated` messages, too
    long for the index of words, only the beginning can be searched.
    """

    first: int
    last: int
    replayed: bool
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class Words:
    """What `to_tsvector` sees of a message, and whether that is only its beginning."""

    analyzed: str
    truncated: bool


def append(tables: Tables, name: TranscriptName, batch: Batch, expected: int | None) -> Steps[AppendResult]:
    """Write a batch in one transaction; only an idempotency key tells whether that has happened already."""
    write_once = write if batch.once is None else write_repeatable
    with span("append", messages=len(batch.messages)) as note:
        try:
            done = yield from write_once(append_messages, tables, name, batch, expected)
        except Conflict as error:
            if batch.once is None or not _lost_a_race(error):
                raise
            done = yield from write_once(append_messages, tables, name, batch, expected)
        note(first=done.first, replayed=done.replayed)
    return AppendResult(done.first, done.last, done.replayed, len(batch.truncated))


def prepare(messages: object, key: str | None) -> Batch:
    """A batch of valid messages with their words; InvalidInput names what is wrong."""
    checked = check_messages(messages)
    words = [words_of(message) for message in checked]
    return Batch(
        messages=[message.model_dump_json() for message in checked],
        texts=[each.analyzed for each in words],
        truncated=[place for place, each in enumerate(words) if each.truncated],
        once=None if key is None else _once(key, checked),
    )


def check_messages(messages: object) -> list[Message]:
    """The messages, one or any iterable of them, validated anew: an instance may have been built unchecked."""
    given = [messages] if isinstance(messages, Message) else messages
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput("messages", "a Message or several", f"a value of type {type(messages).__name__}")
    checked = [_checked(place, message) for place, message in enumerate(given)]
    if not 1 <= len(checked) <= MAX_MESSAGES:
        raise InvalidInput("messages", f"1 to {MAX_MESSAGES} messages", str(len(checked)))
    return checked


def check_position(field: str, position: object) -> None:
    """InvalidInput unless it is None or can be a position."""
    if position is not None and (type(position) is not int or not 0 <= position <= MAX_POSITION):
        raise InvalidInput(field, "an int from 0", repr(position)[:40])


def text_of(message: Message) -> str:
    """What a message says as far as it is searched.

    Texts, content from peers, names of tools with what they returned, file names, and titles of citations.
    Thinking, arguments, structured values and provider state are left out.
    """
    texts: list[str | None] = []
    for part in message.content:
        match part:
            case TextPart() | PeerContentPart():
                texts.append(part.text)
            case ToolCallPart():
                texts.append(part.tool_name)
            case ToolResultPart():
                texts += [part.tool_name, part.content]
            case FilePart():
                texts.append(part.attachment["filename"])
            case CitationPart():
                texts.append(part.title)
    return "\n".join(text for text in texts if text)


def words_of(message: Message) -> Words:
    """What `to_tsvector` sees of a message: as much from the beginning as fits into a tsvector."""
    text = text_of(message)
    analyzed, cut = beginning(analyze(ANALYZER, text))
    return Words(analyzed, truncated=cut or len(text) > MAX_ANALYZED)


def beginning(analyzed: str) -> tuple[str, bool]:
    """As much of an analyzed text as surely fits into a tsvector, and whether something was cut."""
    if len(analyzed) * 4 <= MAX_INDEXED or len(encoded := analyzed.encode()) <= MAX_INDEXED:
        return analyzed, False
    return encoded[:MAX_INDEXED].decode(errors="ignore"), True


def _checked(place: int, message: object) -> Message:
    if not isinstance(message, Message):
        raise InvalidInput(f"messages[{place}]", "a Message", f"a value of type {type(message).__name__}")
    try:
        return detach_message(message)
    except (TypeError, ValidationError) as error:
        raise InvalidInput(f"messages[{place}]", "a valid Message", reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """Why something is no message: the first place and rule, never the content."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}"


def _once(key: object, messages: list[Message]) -> OnceOnly:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY:
        found = f"{len(key)} characters" if isinstance(key, str) else f"a value of type {type(key).__name__}"
        raise InvalidInput("idempotency_key", f"text of 1 to {MAX_KEY} characters", found)
    try:
        storable(key)
    except ValueError as error:
        raise InvalidInput("idempotency_key", "text that Postgres can take", f"text that {error}") from None
    return OnceOnly(key, sha256(key.encode()).digest(), digest_of(messages))


def digest_of(messages: Iterable[Message]) -> bytes:
    """SHA-256 of the messages as JSON with sorted keys, one a line: the same for equal messages."""
    digest = sha256()
    for message in messages:
        line = json.dumps(message.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.digest()


def _lost_a_race(error: Conflict) -> bool:
    """Whether the database saw the same key from two appends at once; the other one has the answer."""
    return not isinstance(error, PositionConflict | IdempotencyConflict)
