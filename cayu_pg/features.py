"""Features of a collection: what speaks for a hit beside its words and meaning, as numbers from 0 to 1.

A collection declares features by name, every hit of a search carries their values, and a fusion adds them to the score
by its `feature_weights`. A weight below 0 speaks against a hit. A feature that a configuration does not weigh only
shows in the explanation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite, log1p
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from cayu_pg.errors import Conflict, InvalidInput
from cayu_pg.frozen_maps import Feature as Value
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.texts import CleanText, Text, clean

MAX_FEATURES = 32
MAX_HALF_LIFE = timedelta(days=365_000)
# Of a value: mathematics libraries differ in the last ones, and equal data is to fuse alike everywhere.
DIGITS = 9


def _days(value: object) -> object:
    if not isinstance(value, int | float):
        return value
    if isinstance(value, bool):
        raise ValueError("must be a timedelta or a number of days")
    try:
        return timedelta(days=value)
    except OverflowError:
        raise ValueError("must be a number of days that a timedelta can hold") from None


HalfLife = Annotated[timedelta, BeforeValidator(_days), Field(gt=timedelta(0), le=MAX_HALF_LIFE)]
MetadataKey = Annotated[Text, Field(strict=True)]
Bound = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Recency(BaseModel):
    """How new a hit is: 1 now, 0.5 one half-life ago, 0.25 two half-lives ago.

    `half_life` is a timedelta or a number of days. The time is when the record was last changed, or what its metadata
    say under `field`: text in ISO 8601, in UTC where it names no zone. A time to come counts as now. `missing` is the
    value of a hit whose metadata say no time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["recency"] = "recency"
    half_life: HalfLife
    field: MetadataKey | None = None
    missing: Value = 0.0

    def value(self, signals: Signals, now: datetime) -> float:
        """What the feature is worth for a hit with these signals."""
        told = signals.changed_at if self.field is None else _time(signals.metadata.get(self.field))
        if told is None:
            return self.missing
        half_lives = max(now - told, timedelta(0)) / self.half_life
        return float(0.5**half_lives)


class NumericField(BaseModel):
    """A number of the metadata, scaled: `lowest` and below is 0, `highest` and above is 1.

    The scale is linear, or logarithmic for counts that differ by orders of magnitude: log(1 + number - lowest).
    `missing` is the value of a hit whose metadata hold no number there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["number"] = "number"
    field: MetadataKey
    lowest: Bound
    highest: Bound
    scale: Literal["linear", "logarithmic"] = "linear"
    missing: Value = 0.0

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not (self.lowest < self.highest and isfinite(self.highest - self.lowest)):
            raise ValueError(
                f"lowest must be below highest, at a finite distance: {self.lowest}, {self.highest}"
            )
        return self

    def value(self, signals: Signals, now: datetime) -> float:
        """What the feature is worth for a hit with these signals."""
        number = signals.metadata.get(self.field)
        if not isinstance(number, int | float) or isinstance(number, bool):
            return self.missing
        above = min(max(number, self.lowest), self.highest) - self.lowest
        span = self.highest - self.lowest
        return above / span if self.scale == "linear" else log1p(above) / log1p(span)


CollectionFeature: TypeAlias = Recency | NumericField
_DECLARED: TypeAdapter[dict[CleanText, CollectionFeature]] = TypeAdapter(
    dict[CleanText, Annotated[CollectionFeature, Field(discriminator="kind")]]
)


class Signals(NamedTuple):
    """What is read with a hit for its features: when its record was last changed, and the metadata they name."""

    changed_at: datetime | None
    metadata: Mapping[str, Any]


def signals(changed_at: datetime | None, metadata: str) -> Signals:
    """The signals of a hit, its metadata given as JSON."""
    return Signals(changed_at, json.loads(metadata))


class Measure(NamedTuple):
    """The features of a collection, and the moment that they are measured at."""

    features: Mapping[str, CollectionFeature]
    now: datetime

    def values(self, found: Signals) -> dict[str, float]:
        """What each feature is worth for a hit."""
        return {name: round(each.value(found, self.now), DIGITS) for name, each in self.features.items()}


def metadata_fields(features: Mapping[str, CollectionFeature]) -> list[str]:
    """The keys of the metadata that the features are made of."""
    return sorted({each.field for each in features.values() if each.field is not None})


def checked_features(features: object) -> dict[str, CollectionFeature]:
    """Features as a collection can declare them; InvalidInput names the one that is wrong."""
    if not isinstance(features, Mapping):
        raise InvalidInput("features", "a mapping of names to features", type(features).__name__)
    if len(features) > MAX_FEATURES:
        raise InvalidInput("features", f"at most {MAX_FEATURES}", str(len(features)))
    for name, each in features.items():
        _check_feature_name(name)
        if not isinstance(each, CollectionFeature):
            raise InvalidInput(f"features[{name!r}]", "a Recency or NumericField", type(each).__name__)
    return dict(features)


def stored_features(features: Mapping[str, CollectionFeature]) -> dict[str, Any]:
    """The features as the JSON that `parse_features` reads."""
    return {name: each.model_dump(mode="json") for name, each in features.items()}


def parse_features(stored: Mapping[str, Any], collection: str) -> dict[str, CollectionFeature]:
    """The features that a row holds; Conflict when somebody has changed it by hand."""
    if not stored:
        return {}
    try:
        return _DECLARED.validate_python(stored)
    except ValidationError as error:
        raise Conflict(
            f"the row of collection {collection!r} holds features that are none; declare them again"
        ) from error


def undeclared(
    config: WeightedReciprocalRankFusionConfig | None, declared: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The features that a configuration weighs and none of the collections declares."""
    known = {name for each in declared for name in each}
    return [] if config is None else sorted(config.feature_weights.keys() - known)


def check_declared(
    config: WeightedReciprocalRankFusionConfig | None, declared: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse a configuration with a weight for what no hit can have: it would be worth nothing, unnoticed."""
    unknown = undeclared(config, declared)
    if unknown:
        known = sorted({name for each in declared for name in each})
        expected = f"weights of declared features ({', '.join(known) or 'there are none'})"
        raise InvalidInput("fusion", expected, f"feature_weights for {', '.join(unknown)}")


def _check_feature_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidInput("features", "names that are text", type(name).__name__)
    try:
        clean(name)
    except ValueError as error:
        raise InvalidInput("features", "a name", f"text that {error}") from None


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        told = datetime.fromisoformat(value)
    except ValueError:
        return None
    return told if told.tzinfo is not None else told.replace(tzinfo=UTC)
