"""The arguments of a search, checked before anything else happens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, TypedDict

import sqlalchemy as sa

from cayu_pg.arguments import check_flag, several
from cayu_pg.continuation import read_token
from cayu_pg.errors import InvalidInput
from cayu_pg.filters import Filter, parse_filter
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.reranking import Reranker
from cayu_pg.text_query import Mode, TextQuery, text_query
from cayu_pg.texts import storable

CHANNELS = ("vector", "text")
MAX_LIMIT = 10_000
MAX_CANDIDATES = 100_000
MAX_QUERY = 1_000_000  # characters
HEAD = 50  # fused candidates that are kept beyond what is shown, for near misses, pages and reranking

Where = Mapping[str, Any] | Filter | sa.ColumnElement[bool]


class SearchOptions(TypedDict, total=False):
    """The options of a search, with the defaults of `Collection.search`."""

    limit: int
    where: Where | None
    channels: Sequence[str]
    candidates: int
    mode: Mode
    fuzzy: bool
    fusion: WeightedReciprocalRankFusionConfig | None
    rerank: bool | Reranker
    rerank_seconds: float | None
    per_record: bool
    exact: bool
    max_distance: float | None
    as_of: int | datetime | None
    continuation: str | None
    timeout: float | None


@dataclass(frozen=True)
class SearchRequest:
    """A search whose arguments have been checked."""

    query: str
    limit: int
    channels: tuple[str, ...]
    candidates: int
    fusion: WeightedReciprocalRankFusionConfig | None
    where: Filter | sa.ColumnElement[bool] | None
    words: TextQuery
    mode: Mode
    fuzzy: bool
    reranker: Reranker | None
    rerank_seconds: float | None
    exact: bool
    per_record: bool
    max_distance: float | None
    timeout_ms: int | None
    as_of: int | datetime | None
    continuation: str | None

    def fusion_of(self, channels: tuple[str, ...]) -> WeightedReciprocalRankFusionConfig:
        """The fusion of these channels: the given one if it fits them, else equal weights."""
        if self.fusion is None:
            return equal_fusion(channels, self.limit, self.candidates)
        if set(self.fusion.channel_weights) != set(channels):
            expected = f"weights for exactly {', '.join(channels)}"
            raise InvalidInput("fusion", expected, f"weights for {', '.join(self.fusion.channel_weights)}")
        return self.fusion

    def digest(self, collections: Sequence[str]) -> str:
        """What the order of the results depends on, beside the data, as a hash."""
        facts = (
            self.query,
            self.channels,
            self.candidates,
            None if self.fusion is None else self.fusion.fingerprint(),
            self.limit if self.fusion is None else None,  # decides how many fused candidates are kept
            _where_text(self.where),
            None if self.reranker is None else self.reranker.model,
            self.mode,
            self.fuzzy,
            self.exact,
            self.per_record,
            self.max_distance,
            self.as_of,
            tuple(collections),
        )
        return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def search_request(
    query: str,
    *,
    limit: int = 10,
    where: Where | None = None,
    channels: Sequence[str] = CHANNELS,
    candidates: int = 100,
    mode: Mode = "any",
    fuzzy: bool = False,
    fusion: WeightedReciprocalRankFusionConfig | None = None,
    reranker: Reranker | None = None,
    rerank_seconds: float | None = None,
    per_record: bool = False,
    exact: bool = False,
    max_distance: float | None = None,
    as_of: int | datetime | None = None,
    continuation: str | None = None,
    timeout: float | None = None,
) -> SearchRequest:
    """Check the arguments of a search; InvalidInput names the first that is wrong."""
    _check_query(query)
    _check_int("limit", limit, MAX_LIMIT)
    _check_int("candidates", candidates, MAX_CANDIDATES)
    for name, flag in (("fuzzy", fuzzy), ("exact", exact), ("per_record", per_record)):
        check_flag(name, flag)
    candidates = max(limit, candidates)
    if fusion is not None:
        _check_fusion(fusion, limit, candidates)
    if max_distance is not None and not _is_number(max_distance):
        raise InvalidInput("max_distance", "a number", type(max_distance).__name__)
    for name, seconds in (("timeout", timeout), ("rerank_seconds", rerank_seconds)):
        if seconds is not None and not (_is_number(seconds) and 0.001 <= seconds < 2_000_000):
            raise InvalidInput(name, "seconds from 0.001", repr(seconds)[:80])
    if continuation is not None:
        read_token(continuation)
    return SearchRequest(
        query=query,
        limit=limit,
        channels=_checked_channels(channels),
        candidates=candidates,
        fusion=fusion,
        where=check_where(where),
        words=text_query(query, mode),
        mode=mode,
        fuzzy=fuzzy,
        reranker=reranker,
        rerank_seconds=rerank_seconds,
        exact=exact,
        per_record=per_record,
        max_distance=None if max_distance is None else float(max_distance),
        as_of=_checked_as_of(as_of, where),
        timeout_ms=None if timeout is None else int(timeout * 1000),
        continuation=continuation,
    )


@lru_cache(maxsize=256)
def equal_fusion(
    channels: tuple[str, ...], limit: int, candidates: int
) -> WeightedReciprocalRankFusionConfig:
    """The default fusion: every channel weighs the same."""
    return WeightedReciprocalRankFusionConfig(
        configuration_version="default",
        channel_weights=dict.fromkeys(channels, 1.0),
        max_candidates_per_channel=candidates,
        fused_head_limit=max(limit, HEAD),
    )


def check_where(where: Where | None) -> Filter | sa.ColumnElement[bool] | None:
    """The filter as a tree, or the expression; InvalidFilter for what is neither."""
    if where is None or isinstance(where, sa.ColumnElement | Filter):
        return where
    return parse_filter(where)


def _checked_as_of(as_of: int | datetime | None, where: object) -> int | datetime | None:
    if as_of is None:
        return None
    if isinstance(where, sa.ColumnElement):
        raise InvalidInput("where", "a mapping, for columns of `chunks` say what is current", "an expression")
    if isinstance(as_of, datetime) and as_of.tzinfo is not None:
        return as_of
    if type(as_of) is int and 0 <= as_of < 2**63:
        return as_of
    raise InvalidInput("as_of", "a time with a zone, or a sequence from 0", repr(as_of)[:60])


def _where_text(where: Filter | sa.ColumnElement[bool] | None) -> str:
    if not isinstance(where, sa.ColumnElement):
        return repr(where)
    compiled = where.compile()
    return f"{compiled} {sorted(compiled.params.items())}"


def _check_query(query: str) -> None:
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


def _check_int(field: str, value: int, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        found = repr(value)[:40] if isinstance(value, int | float) else type(value).__name__
        raise InvalidInput(field, f"an int from 1 to {most}", found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _checked_channels(channels: Sequence[str]) -> tuple[str, ...]:
    expected = "one or both of vector and text"
    given = [channels] if isinstance(channels, str) else several("channels", channels, expected)
    names = tuple(name for name in given if isinstance(name, str) and name in CHANNELS)
    if not names or len(set(names)) != len(given):
        raise InvalidInput("channels", expected, repr(given)[:80])
    return names


def _check_fusion(config: WeightedReciprocalRankFusionConfig, limit: int, candidates: int) -> None:
    if not isinstance(config, WeightedReciprocalRankFusionConfig):
        raise InvalidInput("fusion", "a WeightedReciprocalRankFusionConfig", type(config).__name__)
    if config.fused_head_limit < limit:
        raise InvalidInput(
            "fusion", f"fused_head_limit of at least limit {limit}", str(config.fused_head_limit)
        )
    if config.max_candidates_per_channel < candidates:
        found = str(config.max_candidates_per_channel)
        raise InvalidInput("fusion", f"max_candidates_per_channel of at least {candidates}", found)
