"""What a retrieval channel hands to fusion: hits in ranked order, each naming a revision of a record.

The models agree with cayu 0.15.0 on what they accept and refuse.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from cayu_pg.frozen_maps import Feature, Features, FrozenMap
from cayu_pg.texts import CleanText, clean


def _exactly_int(value: object) -> object:
    # A strict int still takes subclasses of int, such as an IntEnum, whose meaning is not a number.
    if type(value) is not int:
        raise ValueError("must be an int")
    return value


def _list_or_tuple(value: object) -> object:
    # Sets have no order, and a text would be taken apart into characters.
    if type(value) is not list and type(value) is not tuple:
        raise ValueError("must be a list or a tuple")
    return value


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values)) if len(values) > 1 else values


Count = Annotated[int, BeforeValidator(_exactly_int), Field(ge=1)]
RawScore = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Explanations = Annotated[
    tuple[Annotated[str, Field(strict=True), AfterValidator(clean)], ...],
    BeforeValidator(_list_or_tuple),
    AfterValidator(_distinct),
]


class RetrievalCandidateIdentity(BaseModel):
    """Which revision of which record a hit is; hits that share it are one candidate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record_type: CleanText
    record_id: CleanText
    revision: CleanText

    def sort_key(self) -> tuple[str, str, str]:
        """The fields in order, compared by code point."""
        return (self.record_type, self.record_id, self.revision)


class RankedRetrievalHit(BaseModel):
    """One hit of one channel; the rank counts, the raw score is only shown.

    Features are numbers from 0 to 1 that belong to the candidate, so all its hits must carry the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: RetrievalCandidateIdentity
    rank: Count
    representation: CleanText
    content_hash: CleanText
    explanations: Explanations = ()
    raw_score: RawScore | None = None
    features: Features = Field(default_factory=FrozenMap)
    continuation: CleanText | None = None


class RankedRetrievalChannel(BaseModel):
    """The hits of one channel, at most `candidate_limit`, in any order.

    Ranks and identities are unique and no rank exceeds the limit, but ranks may leave gaps. `truncated` says
    that the channel had more to give; only then it may name a `continuation`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    channel: CleanText
    index_version: CleanText
    candidate_limit: Count
    hits: tuple[RankedRetrievalHit, ...] = ()
    truncated: Annotated[bool, Field(strict=True)] = False
    continuation: CleanText | None = None

    @model_validator(mode="after")
    def _is_a_ranking(self) -> Self:
        _check_ranking(self)
        return self


def _check_ranking(channel: RankedRetrievalChannel) -> None:
    hits, limit = channel.hits, channel.candidate_limit
    ranks = {hit.rank for hit in hits}
    if len(hits) > limit or max(ranks, default=0) > limit:
        raise ValueError(f"hits and ranks must not exceed candidate_limit {limit}")
    if len(ranks) < len(hits):
        raise ValueError("ranks must be unique")
    if len({hit.identity.sort_key() for hit in hits}) < len(hits):
        raise ValueError("identities must be unique")
    if channel.continuation is not None and not channel.truncated:
        raise ValueError("a continuation needs truncated=True")


def checked(channel: RankedRetrievalChannel) -> RankedRetrievalChannel:
    """The channel with all it holds valid, whoever built it.

    `model_construct`, `model_copy(update=...)` and `object.__setattr__` make instances that nobody has checked,
    and a mark of trust on an instance would not notice the last. So every value is looked at again, each time.
    Raises TypeError for what is not exactly of its class, as a subclass may answer anything, and ValidationError
    by the innermost model that has a bad value.
    """
    _check_class("channel", channel, RankedRetrievalChannel)
    hits = tuple(channel.hits)
    for hit in hits:
        _check_class("hit", hit, RankedRetrievalHit)
        _check_class("identity", vars(hit).get("identity"), RetrievalCandidateIdentity)
    return channel if _is_sound(channel) else _rebuilt(channel, hits)


def _check_class(name: str, value: object, expected: type) -> None:
    if type(value) is not expected:
        raise TypeError(f"{name}: expected {expected.__name__}, found {type(value).__name__}")


# One list for each kind of value: so 100 hits are checked in 0.10 ms; building them anew takes 0.32 ms.
_Columns = tuple[list[CleanText], list[Count], list[RawScore | None], list[Explanations], list[Feature]]
_COLUMNS: TypeAdapter[_Columns] = TypeAdapter(_Columns)


def _is_sound(channel: RankedRetrievalChannel) -> bool:
    """Whether validation would accept the channel and change nothing."""
    if type(channel.hits) is not tuple or type(channel.truncated) is not bool:
        return False
    try:
        columns = _columns(channel)
        _check_ranking(channel)
        return _COLUMNS.validate_python(columns) == columns
    except (KeyError, TypeError, ValueError):  # a field is missing, of the wrong type, or refused
        return False


def _columns(channel: RankedRetrievalChannel) -> tuple[list[Any], ...]:
    hits = [vars(hit) for hit in channel.hits]
    identities = [vars(hit["identity"]) for hit in hits]
    features = [hit["features"] for hit in hits]
    if set(map(type, features)) - {FrozenMap}:
        raise TypeError("features must be a FrozenMap")
    texts = {channel.channel, channel.index_version}
    for name in ("record_type", "record_id", "revision"):
        texts.update([identity[name] for identity in identities])
    for name in ("representation", "content_hash"):
        texts.update([hit[name] for hit in hits])
    optional = [channel.continuation, *[hit["continuation"] for hit in hits]]
    texts.update([text for text in optional if text is not None])
    texts.update([name for each in features if each for name in each])
    return (
        list(texts),
        [channel.candidate_limit, *[hit["rank"] for hit in hits]],
        [hit["raw_score"] for hit in hits],
        [hit["explanations"] for hit in hits if hit["explanations"] != ()],
        [value for each in features if each for value in each.values()],
    )


def _rebuilt(channel: RankedRetrievalChannel, hits: tuple[RankedRetrievalHit, ...]) -> RankedRetrievalChannel:
    bare = [{**vars(hit), "identity": vars(hit.identity)} for hit in hits]
    try:
        return RankedRetrievalChannel.model_validate({**vars(channel), "hits": bare})
    except ValidationError:
        for hit in hits:
            RetrievalCandidateIdentity.model_validate(vars(hit.identity))
            RankedRetrievalHit.model_validate(vars(hit))
        raise
