"""Tokens that lead from one page of a result to the next, and notice when there is no next page to be had."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from cayu_pg.errors import InvalidInput, StaleContinuation


@dataclass(frozen=True)
class Continuation:
    """Where a result goes on: the digest of the request, the state of the data, and the hits already shown.

    `reranked` says whether the reranker was done in time, None that there was none.
    """

    digest: str
    state: str
    offset: int
    reranked: bool | None = None

    def token(self) -> str:
        """The continuation as text for a client to send back."""
        facts = json.dumps([self.digest, self.state, self.offset, self.reranked], separators=(",", ":"))
        return base64.urlsafe_b64encode(facts.encode()).decode().rstrip("=")


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
        case [str(found), str(state), int(offset), bool() | None as reranked] if (
            type(offset) is int and offset > 0
        ):
            return Continuation(found, state, offset, reranked)
    raise InvalidInput("continuation", "the token of an earlier result", "something else")


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
