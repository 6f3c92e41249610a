"""Appending to a transcript: one statement takes the positions and writes messages, words and idempotency key.

Whoever writes to a transcript first holds the lock of its row, by the UPDATE that moves `next_position`, so
positions have neither gaps nor repeats and `created_at` ascends with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from uuid import UUID

import sqlalchemy as sa

from cayu_pg.errors import Conflict, IdempotencyConflict, PositionConflict
from cayu_pg.sql.tables import Tables, sql_text

TEXT_CONFIG = "simple"  # suits every language; a transcript may hold several
# One statement takes at most this many characters: jsonb ends at 256 MB, and small numbers grow sixfold in it.
MAX_STATEMENT = 16 * 1024 * 1024

_TAKE_POSITIONS = """
    UPDATE {schema}.transcripts SET next_position = next_position + :count
    WHERE transcript_key = :transcript_key AND tenant = :tenant
      AND (CAST(:expected AS bigint) IS NULL OR next_position = CAST(:expected AS bigint)){unless_known}
    RETURNING next_position - :count AS first"""

_UNLESS_KNOWN = """
      AND NOT EXISTS (SELECT FROM {schema}.transcript_appends
                      WHERE transcript_key = :transcript_key AND key_hash = :key_hash)"""

_GO_ON = """
    SELECT CAST(:first AS bigint) AS first"""

_WRITE = """
WITH taken AS ({positions}
), messages AS (
    INSERT INTO {schema}.transcript_messages
           (transcript_key, position, tenant, role, content, idempotency_key, created_at)
    SELECT :transcript_key, taken.first + m.place, :tenant, m.message ->> 'role', m.message -> 'content',
           CAST(:idempotency_key AS text), clock_timestamp()
    FROM taken, {messages} m
), words AS (
    INSERT INTO {schema}.message_lexemes (transcript_key, position, tenant, length, truncated, tsv)
    SELECT :transcript_key, taken.first + w.place, :tenant, n.length, w.place = ANY(CAST(:truncated AS bigint[])), v.tsv
    FROM taken, {texts} w,
         LATERAL (SELECT to_tsvector('{config}', w.analyzed) AS tsv) v,
         LATERAL (SELECT coalesce(sum(cardinality(u.positions)), 0) AS length FROM unnest(v.tsv) u) n
){note}
SELECT first FROM taken"""

_NOTE = """, noted AS (
    INSERT INTO {schema}.transcript_appends
           (transcript_key, key_hash, tenant, messages_digest, first_position, last_position)
    SELECT :transcript_key, :key_hash, :tenant, :digest, taken.first, taken.first + :count - 1 FROM taken
)"""

_MANY_MESSAGES = """(
    SELECT message, place - 1 AS place
    FROM jsonb_array_elements(CAST(:messages AS jsonb)) WITH ORDINALITY e (message, place))"""
_MANY_TEXTS = """(
    SELECT analyzed, place - 1 AS place
    FROM jsonb_array_elements_text(CAST(:texts AS jsonb)) WITH ORDINALITY e (analyzed, place))"""
# Nearly all appends are of one message, and are planned and run in two thirds of the time without functions.
_ONE_MESSAGE = "(SELECT CAST(:messages AS jsonb) AS message, 0 AS place)"
_ONE_TEXT = "(SELECT CAST(:texts AS text) AS analyzed, 0 AS place)"


@dataclass(frozen=True, slots=True)
class TranscriptName:
    """Which transcript of which tenant; `key` places its rows."""

    tenant: str
    transcript_id: str
    key: UUID


@dataclass(frozen=True, slots=True)
class OnceOnly:
    """An idempotency key, with hashes of the key and of the messages that it stands for."""

    key: str
    key_hash: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages ready to be written: each as JSON, each as `to_tsvector` sees it, and which texts were cut."""

    messages: Sequence[str]
    texts: Sequence[str]
    truncated: Sequence[int]
    once: OnceOnly | None


@dataclass(frozen=True, slots=True)
class Appended:
    """The positions of the messages; `replayed` says that an earlier append had written them."""

    first: int
    last: int
    replayed: bool


def transcript_name(tenant: str, transcript_id: str) -> TranscriptName:
    """The transcript with its key, a hash of tenant and id, neither of which can hold U+0000."""
    digest = sha256(f"{tenant}\0{transcript_id}".encode()).digest()
    return TranscriptName(tenant, transcript_id, UUID(bytes=digest[:16]))


def append_messages(
    conn: sa.Connection, t: Tables, name: TranscriptName, batch: Batch, expected: int | None
) -> Appended:
    """Append a batch; the first append creates the transcript.

    Raises PositionConflict and IdempotencyConflict. A Conflict of the database is left when another append has
    used the idempotency key meanwhile: in a new transaction the answer is there.
    """
    first = _write(conn, t, name, batch, expected)
    if first is None:
        current = create_or_lock(conn, t, name)
        earlier = None if batch.once is None else _find_append(conn, t, name, batch.once)
        if earlier is not None:
            return earlier
        if expected is not None and expected != current:
            raise PositionConflict(expected, current)
        first = _write(conn, t, name, batch, expected)
    if first is None:
        raise Conflict(f"transcript {name.transcript_id!r} cannot be written by this tenant")
    return Appended(first, first + len(batch.messages) - 1, replayed=False)


def create_or_lock(conn: sa.Connection, t: Tables, name: TranscriptName) -> int:
    """The next position of the transcript, which exists and is locked from here on."""
    statement = sql_text(
        t,
        "INSERT INTO {schema}.transcripts"
        " (transcript_key, tenant, transcript_id, next_position, metadata)"
        " VALUES (:transcript_key, :tenant, :transcript_id, 0, '{{}}')"
        " ON CONFLICT (transcript_key) DO UPDATE SET transcript_id = excluded.transcript_id"
        " RETURNING next_position",
    )
    binds = {"transcript_key": name.key, "tenant": name.tenant, "transcript_id": name.transcript_id}
    return int(conn.execute(statement, binds).scalar_one())


def _find_append(conn: sa.Connection, t: Tables, name: TranscriptName, once: OnceOnly) -> Appended | None:
    a = t.transcript_appends
    row = conn.execute(
        sa.select(a.c.messages_digest, a.c.first_position, a.c.last_position).where(
            a.c.transcript_key == name.key, a.c.key_hash == once.key_hash
        )
    ).one_or_none()
    if row is None:
        return None
    if bytes(row.messages_digest) != once.digest:
        raise IdempotencyConflict(once.key, row.first_position, row.last_position)
    return Appended(row.first_position, row.last_position, replayed=True)


def _write(
    conn: sa.Connection, t: Tables, name: TranscriptName, batch: Batch, expected: int | None
) -> int | None:
    """The first position; None when nothing was written: no transcript yet, or not as expected, or a known key."""
    first: int | None = None
    for start, stop in _slices(batch):
        one = stop - start == 1
        statement = _statement(t, one=one, keyed=batch.once is not None, going_on=first is not None)
        position = {} if first is None else {"first": first + start}
        binds = _binds(name, batch, expected) | _rows(batch, start, stop) | position
        found = conn.execute(statement, binds).scalar_one_or_none()
        if found is None:
            return None
        first = found if first is None else first
    return first


def _slices(batch: Batch) -> Iterator[tuple[int, int]]:
    start, size = 0, 0
    for place, (message, text) in enumerate(zip(batch.messages, batch.texts, strict=True)):
        if size and size + len(message) + len(text) > MAX_STATEMENT:
            yield start, place
            start, size = place, 0
        size += len(message) + len(text)
    yield start, len(batch.messages)


def _rows(batch: Batch, start: int, stop: int) -> dict[str, object]:
    truncated = [place - start for place in batch.truncated if start <= place < stop]
    if stop - start == 1:
        return {"messages": batch.messages[start], "texts": batch.texts[start], "truncated": truncated}
    messages, texts = batch.messages[start:stop], batch.texts[start:stop]
    return {
        "messages": f"[{','.join(messages)}]",
        "texts": json.dumps(texts, ensure_ascii=False),
        "truncated": truncated,
    }


def _binds(name: TranscriptName, batch: Batch, expected: int | None) -> dict[str, object]:
    binds: dict[str, object] = {
        "transcript_key": name.key,
        "tenant": name.tenant,
        "count": len(batch.messages),
        "expected": expected,
        "idempotency_key": None,
    }
    if batch.once is not None:
        binds |= {
            "idempotency_key": batch.once.key,
            "key_hash": batch.once.key_hash,
            "digest": batch.once.digest,
        }
    return binds


@lru_cache(maxsize=256)
def _statement(t: Tables, *, one: bool, keyed: bool, going_on: bool) -> sa.TextClause:
    first_of_key = keyed and not going_on
    take = _TAKE_POSITIONS.replace("{unless_known}", _UNLESS_KNOWN if first_of_key else "")
    template = _WRITE.replace("{positions}", _GO_ON if going_on else take)
    return sql_text(
        t,
        template.replace("{note}", _NOTE if first_of_key else ""),
        messages=_ONE_MESSAGE if one else _MANY_MESSAGES,
        texts=_ONE_TEXT if one else _MANY_TEXTS,
        config=TEXT_CONFIG,
    )
