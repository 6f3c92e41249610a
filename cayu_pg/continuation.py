"""Tokens that lead from one page of a result to the next, and notice when there is no next page to be had."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime

from cayu_pg.errors import InvalidInput, StaleContinuation


@dataclass(frozen=True)
class Continuation:
    """Where a result goes on: the digest of the request, the state of the data, and the hits already shown.

    `reranked` says whether the reranker was done in time, None that there was none. `now` is the moment that features
    were measured at: all pages measure them at the same.
    """

    digest: str
    state: str
    offset: int
    reranked: bool | None = None
    now: datetime | None = None

    def token(self) -> str:
        """The continuation as text for a client to send back."""
        now = None if self.now is None else self.now.isoformat()
        facts = [self.digest, self.state, self.offset, self.reranked, now]
        text = json.dumps(facts, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def parse_continuation(token: str, digest: str) -> Continuation:
    """What a token says; InvalidInput when it is none, or belongs to another search."""
    continuation = read_token(token)
    if continuation.digest != digest:
        raise InvalidInput("continuation", "the token of a search with the same arguments", "another one")
    return continuation


def read_token(token: object) -> Continuation:
    """What a token says, of whichever search; InvalidInput when it is none."""
    try:
        text = token if isinstance(token, str) else ""
        facts = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        facts = None
    match facts:
        case [str(found), str(state), int(offset), bool() | None as reranked, str() | None as now] if (
            type(offset) is int and offset > 0
        ):
            return Continuation(found, state, offset, reranked, _moment(now))
    raise InvalidInput("continuation", "the token of an earlier result", "something else")


def _moment(now: str | None) -> datetime | None:
    try:
        found = None if now is None else datetime.fromisoformat(now)
    except ValueError:
        found = datetime.min
    if found is not None and found.tzinfo is None:
        raise InvalidInput("continuation", "the token of an earlier result", "a time that is none")
    return found


def check_order(continuation: Continuation, reranked: bool | None) -> None:
    """Refuse to go on in another order than that of the pages before."""
    if continuation.reranked != reranked:
        raise StaleContinuation(
            "the reranker was done in time for one page and not for the other, so their orders differ;"
            " search again from the start, with a larger rerank_seconds"
        )


def check_state(continuation: Continuation, state: str) -> None:
    """Refuse to go on when the data has changed: hits could repeat or be passed over."""
    if continuation.state != state:
        raise StaleContinuation(
            f"the collection has changed since this result (it was at {continuation.state}, now {state});"
            " search again from the start"
        )
