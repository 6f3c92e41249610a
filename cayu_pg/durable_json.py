"""The one place that says which JSON values can be stored in jsonb and read back unchanged.

Python's `json` takes more than Postgres keeps: NaN, U+0000, lone surrogates, tuples (which come back as
lists), keys that are numbers (which come back as text). Here only what survives the way there and back
passes, and what passes is copied, so that nobody else can change it afterwards.

jsonb writes 1.0 and 1 differently but compares them as equal; a float with an integral value becomes an
int, so that equal values also look equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from types import NoneType
from typing import Annotated, Any

from pydantic import JsonValue, PlainValidator, ValidationInfo

from cayu_pg.errors import InvalidInput
from cayu_pg.texts import storable

MAX_DEPTH = 64
MAX_VALUES = 250_000
MAX_BYTES = 16_777_216
MAX_INTEGER = 2**63 - 1

# What a value can add to compact JSON beside the characters of its text and key: the longest float has
# 24, the quotes and colon of a key 3, a comma 1. No character becomes longer than \u001f.
_BYTES_PER_VALUE = 28
_BYTES_PER_CHARACTER = 6

_SHOWN_STEPS = 8


def durable(
    value: object,
    *,
    field: str = "value",
    depth: int = MAX_DEPTH,
    values: int = MAX_VALUES,
    size: int = MAX_BYTES,
) -> JsonValue:
    """An own copy of a JSON value that Postgres returns unchanged, or InvalidInput naming the bad place.

    `depth` counts nested containers, `values` containers and scalars but not keys, `size` the bytes of
    compact UTF-8 JSON. `field` is how the error calls the value. The error never shows a value.
    """
    tally = _Tally(values, values)
    try:
        tally.take(1)
        copy = _copied(value, depth, tally)
        _check_size(copy, tally, size)
    except _Refused as refused:
        raise InvalidInput(field + refused.place(), refused.expected, refused.found) from None
    return copy


def durable_object(
    value: object,
    *,
    field: str = "value",
    depth: int = MAX_DEPTH,
    values: int = MAX_VALUES,
    size: int = MAX_BYTES,
) -> dict[str, JsonValue]:
    """`durable` for a value that has to be an object."""
    copy = durable(value, field=field, depth=depth, values=values, size=size)
    if not isinstance(copy, dict):
        raise InvalidInput(field, "a JSON object", _kind(value))
    return copy


def compact_bytes(value: JsonValue) -> int:
    """How many bytes the value takes as UTF-8 JSON without spaces."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _object_field(value: object, info: ValidationInfo) -> dict[str, JsonValue]:
    return durable_object(value, field=info.field_name or "value")


JsonObject = Annotated[dict[str, Any], PlainValidator(_object_field, json_schema_input_type=dict[str, Any])]
"""A pydantic field that holds its own copy of a durable JSON object."""


@dataclass(slots=True)
class _Tally:
    """What one pass has met so far."""

    limit: int
    left: int
    characters: int = 0

    def take(self, values: int) -> None:
        self.left -= values
        if self.left < 0:
            raise _Refused(f"at most {self.limit} values", "more")


class _Refused(Exception):
    """A value that is not durable; each container on the way out adds a step to the path."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
        self.path: list[str | int] = []

    def place(self) -> str:
        steps = [_step(step) for step in reversed(self.path[-_SHOWN_STEPS:])]
        return "".join(steps) + ("..." if len(self.path) > _SHOWN_STEPS else "")


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() and len(step) <= 80 else f"[{step[:80]!a}]"


def _copied(value: object, depth: int, tally: _Tally) -> JsonValue:
    # The exact type decides: a subclass of str or dict may not come back as what it was.
    copier = _COPIERS.get(type(value))
    if copier is None:
        raise _Refused("plain JSON data (dict, list, str, int, float, bool, None)", _kind(value))
    return copier(value, depth, tally)


def _object(value: dict[object, object], depth: int, tally: _Tally) -> JsonValue:
    if depth == 0:
        raise _too_deep()
    tally.take(len(value))
    copy: dict[str, JsonValue] = {}
    for key, item in value.items():
        name = _key(key, tally)
        try:
            copy[name] = _copied(item, depth - 1, tally)
        except _Refused as refused:
            refused.path.append(name)
            raise
    return copy


def _array(value: list[object], depth: int, tally: _Tally) -> JsonValue:
    if depth == 0:
        raise _too_deep()
    tally.take(len(value))
    copy: list[JsonValue] = []
    for item in value:
        try:
            copy.append(_copied(item, depth - 1, tally))
        except _Refused as refused:
            refused.path.append(len(copy))
            raise
    return copy


def _too_deep() -> _Refused:
    return _Refused("fewer nested containers", "too many, or a container that holds itself")


def _key(key: object, tally: _Tally) -> str:
    if type(key) is not str:
        raise _Refused("keys of type str", f"a key of type {type(key).__name__}")
    return _text(key, 0, tally)


def _text(value: str, _depth: int, tally: _Tally) -> str:
    tally.characters += len(value)
    if value.isascii() and "\x00" not in value:
        return value
    try:
        return storable(value)
    except ValueError:
        raise _Refused("text without U+0000 and surrogates", "text that Postgres cannot hold") from None


def _integer(value: int, _depth: int, _tally: _Tally) -> int:
    if -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        return value
    raise _Refused("a signed 64-bit integer", "a larger number")


def _float(value: float, depth: int, tally: _Tally) -> float | int:
    if value.is_integer():
        return _integer(int(value), depth, tally)
    if isfinite(value):
        return value
    raise _Refused("a finite number", "NaN or infinity")


def _same(value: JsonValue, _depth: int, _tally: _Tally) -> JsonValue:
    return value


_COPIERS: dict[type, Callable[[Any, int, _Tally], JsonValue]] = {
    str: _text,
    int: _integer,
    float: _float,
    bool: _same,
    NoneType: _same,
    list: _array,
    dict: _object,
}


def _check_size(copy: JsonValue, tally: _Tally, size: int) -> None:
    at_most = _BYTES_PER_CHARACTER * tally.characters + _BYTES_PER_VALUE * (tally.limit - tally.left)
    if at_most <= size:
        return
    # One text held a thousand times costs nothing until it is written out, so the cheap bound comes first.
    if tally.characters > size or compact_bytes(copy) > size:
        raise _Refused(f"at most {size} bytes of JSON", "more")


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"
