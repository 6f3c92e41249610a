"""Search in what messages say, in one transcript or all of a tenant's, and its hits as a channel for fusion."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from cayu_pg import appending, bm25
from cayu_pg.analysis import analyze
from cayu_pg.arguments import check_name, several
from cayu_pg.errors import InvalidInput, InvalidStoredMessage
from cayu_pg.message_terms import K1, B, Choice, choose, is_exact, with_newest_of_all
from cayu_pg.messages import Message, MessageRole
from cayu_pg.operations import StoreState, open_tables
from cayu_pg.ranking import RankedRetrievalChannel, RankedRetrievalHit, RetrievalCandidateIdentity
from cayu_pg.sql.appends import TEXT_CONFIG
from cayu_pg.sql.message_search import HitRow, Scope, Wanted, rank_messages, take_statistics
from cayu_pg.sql.settings import set_for_message_search
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, answering, compute, read
from cayu_pg.texts import storable
from cayu_pg.transcripts import (
    OnInvalid,
    TranscriptState,
    check_limit,
    check_on_invalid,
    check_time,
    valid_message,
)

MAX_QUERY = 1_000_000  # characters
INDEX_VERSION = f"{appending.ANALYZER}:{TEXT_CONFIG}:bm25-{K1}-{B}"


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message found by its words; the score says nothing outside its search."""

    transcript_id: str
    position: int
    message: Message
    created_at: datetime
    score: float


class MessageHits(list[MessageHit]):
    """Hits, best first. `skipped` is as in MessagePage; `truncated` says that more messages than these hold a word.

    `exact` says that none of those is better. Where it is not, the words of the question are so common that only the
    newest messages with them were ranked.
    """

    skipped: tuple[InvalidStoredMessage, ...] = ()
    truncated: bool = False
    exact: bool = True


@answering
def search(
    state: TranscriptState, query: str, which: Wanted, limit: int, on_invalid: OnInvalid
) -> Steps[MessageHits]:
    """The best messages of this transcript for a question."""
    analyzed = _check_search(query, which, limit, on_invalid)
    tables = yield from open_tables(state.store)
    scope = Scope("transcript_key", state.name.key)
    found = yield from read(_search, tables, scope, analyzed, which, limit)
    return (yield from compute(_hits, found, limit, on_invalid))


@answering
def search_messages(
    store: StoreState, tenant: str, query: str, which: Wanted, limit: int, on_invalid: OnInvalid
) -> Steps[MessageHits]:
    """The best messages of all transcripts of a tenant for a question."""
    check_name("tenant", tenant)
    analyzed = _check_search(query, which, limit, on_invalid)
    tables = yield from open_tables(store)
    found = yield from read(_search, tables, Scope("tenant", tenant), analyzed, which, limit)
    return (yield from compute(_hits, found, limit, on_invalid))


def message_channel(
    hits: MessageHits, *, candidate_limit: int, channel: str = "messages"
) -> RankedRetrievalChannel:
    """Hits as a channel for fusion, beside those of chunks; `candidate_limit` is the limit of their search."""
    return RankedRetrievalChannel(
        channel=channel,
        index_version=INDEX_VERSION,
        candidate_limit=candidate_limit,
        hits=tuple(_ranked(rank, hit) for rank, hit in enumerate(hits, start=1)),
        truncated=hits.truncated,
    )


def message_identity(transcript_id: str, position: int) -> RetrievalCandidateIdentity:
    """How fusion names a message."""
    return RetrievalCandidateIdentity(
        record_type="transcript_message", record_id=f"{transcript_id}:{position}", revision="1"
    )


def which_messages(
    roles: str | Iterable[str] | None, since: datetime | None, until: datetime | None
) -> Wanted:
    """Which messages to search, checked; `since` is included, `until` is not."""
    for field, time in (("since", since), ("until", until)):
        if time is not None:
            check_time(field, time)
    return Wanted(None if roles is None else _check_roles(roles), since, until)


def _check_roles(roles: object) -> list[str]:
    names = [roles] if isinstance(roles, str) else several("roles", roles, "roles")
    if not all(isinstance(name, str) and name in list(MessageRole) for name in names):
        raise InvalidInput("roles", f"some of {', '.join(MessageRole)}", "another")
    return [str(name) for name in names]


def _check_search(query: object, which: Wanted, limit: object, on_invalid: object) -> str:
    """What `to_tsvector` sees of the question."""
    check_limit("limit", limit)
    check_on_invalid(on_invalid)
    if not isinstance(query, str):
        raise InvalidInput("query", "text", f"a value of type {type(query).__name__}")
    if not query.strip():
        raise InvalidInput("query", "text with something to search for", "blank text")
    if len(query) > MAX_QUERY:
        raise InvalidInput("query", f"at most {MAX_QUERY} characters", f"{len(query)}")
    try:
        storable(query)
    except ValueError as error:
        raise InvalidInput("query", "text that Postgres can take", f"text that {error}") from None
    return appending.beginning(analyze(appending.ANALYZER, query))[0]


@dataclass(frozen=True, slots=True)
class _Found:
    rows: list[HitRow]
    exact: bool


def _search(conn: sa.Connection, t: Tables, scope: Scope, analyzed: str, which: Wanted, limit: int) -> _Found:
    set_for_message_search(conn)
    statistics = take_statistics(conn, t, scope, analyzed)
    if statistics is None:
        return _Found([], exact=True)

    def ranked(choice: Choice) -> _Found:
        best = rank_messages(conn, t, scope, choice, statistics.average_length, which, limit + 1)
        scores = [row.score for row in best.hits]
        exact = best.within_reach and is_exact(choice, scores, limit, complete=best.complete)
        return _Found(best.hits, exact)

    choice = choose(statistics.frequencies, statistics.messages, limit, bm25.POSTING_BUDGET)
    found = ranked(choice)
    if found.exact or len(found.rows) > limit:
        return found
    return ranked(with_newest_of_all(choice))


def _hits(found: _Found, limit: int, on_invalid: OnInvalid) -> MessageHits:
    hits, skipped = MessageHits(), list[InvalidStoredMessage]()
    for row in found.rows[:limit]:
        message = valid_message(row.transcript_id, row.message, on_invalid, skipped)
        if message is not None:
            place = (row.transcript_id, row.message.position)
            hits.append(MessageHit(*place, message, row.message.created_at, row.score))
    hits.skipped = tuple(skipped)
    hits.truncated = len(found.rows) > limit or not found.exact
    hits.exact = found.exact
    return hits


def _ranked(rank: int, hit: MessageHit) -> RankedRetrievalHit:
    return RankedRetrievalHit(
        identity=message_identity(hit.transcript_id, hit.position),
        rank=rank,
        representation="lexemes",
        content_hash=hashlib.sha256(appending.text_of(hit.message).encode()).hexdigest(),
        raw_score=hit.score,
    )
