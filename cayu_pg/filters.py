"""What a `where` means: checked once, and turned into a small tree that SQL and evaluation can share.

A mapping names top-level keys of the metadata; several keys, and several operators of a key, mean and.

```python
{"lang": "en"}                                       # short for {"lang": {"eq": "en"}}
{"year": {"gte": 2019, "lt": 2024}, "tags": {"contains": "sql"}}
{"or": [{"lang": {"in": ["en", "de"]}}, {"not": {"draft": True}}]}
```

* Values are equal when they are the same JSON: 1 is 1.0, but not true and not "1"; arrays and objects as wholes.
* `gt gte lt lte` compare numbers with numbers and strings with strings, by code point (so ISO dates sort);
  a value of another type does not match. `contains` matches an array with an element equal to the value.
* A missing key matches `ne`, `nin` and `exists: False`, and no other operator; null is a value, equal to null.
* `not` is the complement of what it holds. An empty mapping, `and` or `nin` matches everything, an empty `or` or
  `in` nothing.
* `{key: {operator: value}}` reaches every key, also one called "and", "or" or "not": a mapping of nothing but
  operators is never read as a combinator. So to negate a key that is itself called like an operator, write
  `{"not": {"and": [{"eq": 1}]}}`.
* Keys are literal: dots, dollars and the empty key have no meaning of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import JsonValue

from cayu_pg.durable_json import durable
from cayu_pg.errors import InvalidFilter, InvalidInput
from cayu_pg.texts import storable

MAX_DEPTH = 64
MAX_CONDITIONS = 10_000

Order = Literal["gt", "gte", "lt", "lte"]
OPERATORS = ("eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "exists", "contains")

_SHAPES = {
    "and": "a list of filters",
    "or": "a list of filters",
    "not": "a filter",
    **dict.fromkeys(
        ("$and", "$or", "$nor", "$not"), "another key, or from_mongo(...) around MongoDB spellings"
    ),
}
_MONGO = {f"${name}": name for name in OPERATORS if name != "contains"}
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Equals:
    """The key holds this very value."""

    key: str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class OneOf:
    """The key holds one of these values."""

    key: str
    values: tuple[JsonValue, ...]


@dataclass(frozen=True, slots=True)
class Compares:
    """The key holds a value of the bound's type that stands in this order to it."""

    key: str
    order: Order
    bound: int | float | str


@dataclass(frozen=True, slots=True)
class Exists:
    """The key is there, whatever it holds."""

    key: str


@dataclass(frozen=True, slots=True)
class Contains:
    """The key holds an array with an element equal to this value."""

    key: str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class And:
    """All of the parts; true when there are none."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of the parts; false when there are none."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """What the part does not match."""

    part: Filter


Filter = Equals | OneOf | Compares | Exists | Contains | And | Or | Not


def parse_filter(where: Mapping[str, Any]) -> Filter:
    """The tree of a `where`; InvalidFilter names the place that breaks a rule, such as `where.year.gte`.

    At most 64 filters deep and 10,000 conditions in all; the values of an `in` count as one.
    """
    return _filter(where, "where", MAX_DEPTH, iter(range(MAX_CONDITIONS)))


def from_mongo(where: Mapping[str, Any]) -> dict[str, Any]:
    """A `where` with MongoDB's spellings (`$eq $in $gte $exists $and $or $not $nor` and so on) in ours.

    Only the spelling is converted: keys stay literal (`a.b` is no path), and equality, missing keys and null mean
    what they mean here. A mapping without `$` is a whole object to equal, as in MongoDB.
    """
    return _converted(where, "where", MAX_DEPTH)


def _filter(where: object, place: str, depth: int, budget: Iterator[int]) -> Filter:
    entries = _entries(where, place, depth)
    return _all([_entry(key, value, place, depth, budget) for key, value in entries], budget, place)


def _entries(where: object, place: str, depth: int) -> list[tuple[str, object]]:
    if not isinstance(where, Mapping):
        raise InvalidFilter(place, "a mapping of keys to values or operators", _kind(where))
    if depth == 0:
        raise InvalidFilter(place[:_SHOWN], f"at most {MAX_DEPTH} filters inside each other", "more")
    return [(_key(key, place), value) for key, value in where.items()]


def _key(key: object, place: str) -> str:
    if type(key) is not str:
        raise InvalidFilter(place, "keys of type str", f"a key of type {type(key).__name__}")
    try:
        return storable(key)
    except ValueError:
        expected = "a key without U+0000 and surrogates, for no stored key has them"
        raise InvalidFilter(place, expected, f"{key[:_SHOWN]!a}") from None


def _entry(key: str, value: object, place: str, depth: int, budget: Iterator[int]) -> Filter:
    here = place + _step(key)
    if key not in _SHAPES or (isinstance(value, Mapping) and value and value.keys() <= set(OPERATORS)):
        return _conditions(key, value, here, budget)
    if key == "not" and isinstance(value, Mapping):
        return Not(_filter(value, here, depth - 1, budget))
    if key in ("and", "or") and isinstance(value, list | tuple):
        parts = [_filter(part, f"{here}[{nth}]", depth - 1, budget) for nth, part in enumerate(value)]
        return _all(parts, budget, here) if key == "and" else Or(tuple(parts) or _counted(budget, here))
    hint = f'{_SHAPES[key]} (a metadata key of this name is written {{"{key}": {{"eq": ...}}}})'
    raise InvalidFilter(here, hint, _kind(value))


def _conditions(key: str, value: object, place: str, budget: Iterator[int]) -> Filter:
    if not isinstance(value, Mapping):
        return _condition(key, "eq", value, place, budget)
    if not value:
        raise InvalidFilter(place, 'operators, or {"eq": {}} for the empty object', "an empty mapping")
    parts = [
        _condition(key, name, operand, place + _step(name), budget)
        for name, operand in ((_key(name, place), operand) for name, operand in value.items())
    ]
    return _all(parts, budget, place)


def _condition(key: str, operator: str, operand: object, place: str, budget: Iterator[int]) -> Filter:
    _counted(budget, place)
    match operator:
        case "eq" | "ne":
            found: Filter = Equals(key, _json(operand, place))
        case "in" | "nin":
            found = OneOf(key, _values(operand, place))
        case "gt" | "gte" | "lt" | "lte":
            return Compares(key, operator, _bound(operand, place))
        case "exists":
            return Exists(key) if _flag(operand, place) else Not(Exists(key))
        case "contains":
            return Contains(key, _json(operand, place))
        case _:
            raise _unknown(operator, place)
    return found if operator in ("eq", "in") else Not(found)


def _all(parts: list[Filter], budget: Iterator[int], place: str) -> Filter:
    return parts[0] if len(parts) == 1 else And(tuple(parts) or _counted(budget, place))


def _counted(budget: Iterator[int], place: str) -> tuple[()]:
    """Nothing, for which there has to be room; what holds no condition counts too, else it had no bound."""
    if next(budget, None) is None:
        raise InvalidFilter(place[:_SHOWN], f"at most {MAX_CONDITIONS} conditions in all", "more")
    return ()


def _json(value: object, place: str) -> JsonValue:
    try:
        return durable(value, field=place)
    except InvalidInput as error:
        raise InvalidFilter(error.field, error.expected, error.found) from None


def _values(operand: object, place: str) -> tuple[JsonValue, ...]:
    if not isinstance(operand, list | tuple | set | frozenset):
        raise InvalidFilter(place, "a list of values", _kind(operand))
    return tuple(cast(list[JsonValue], _json(list(operand), place)))


def _bound(operand: object, place: str) -> int | float | str:
    bound = _json(operand, place)
    if isinstance(bound, bool) or not isinstance(bound, int | float | str):
        raise InvalidFilter(place, "a number or a string", _kind(operand))
    return bound


def _flag(operand: object, place: str) -> bool:
    if not isinstance(operand, bool):
        raise InvalidFilter(place, "True or False", _kind(operand))
    return operand


def _unknown(operator: str, place: str) -> InvalidFilter:
    hint = 'an object to equal is written {"eq": {...}}'
    if operator.startswith("$"):
        hint = "convert MongoDB spellings with from_mongo"
    return InvalidFilter(place, f"one of {', '.join(OPERATORS)} ({hint})", f"{operator[:_SHOWN]!a}")


def _converted(where: object, place: str, depth: int) -> dict[str, Any]:
    entries = _entries(where, place, depth)
    return _joined([_converted_entry(key, value, place + _step(key), depth) for key, value in entries])


def _converted_entry(key: str, value: object, place: str, depth: int) -> dict[str, Any]:
    match key:
        case "$and":
            return {"and": _converted_list(value, place, depth)}
        case "$or":
            return {"or": _converted_list(value, place, depth)}
        case "$nor":
            return {"not": {"or": _converted_list(value, place, depth)}}
        case "$not":
            return _negated(_converted(value, place, depth - 1))
    if not isinstance(value, Mapping) or not any(str(name).startswith("$") for name in value):
        return {key: {"eq": value}}
    entries = _entries(value, place, depth)
    return _joined([_converted_operator(key, name, v, place + _step(name), depth) for name, v in entries])


def _converted_operator(key: str, name: str, operand: object, place: str, depth: int) -> dict[str, Any]:
    if name == "$not":
        return _negated(_converted({key: operand}, place, depth - 1))
    if name not in _MONGO:
        raise InvalidFilter(place, f"one of {', '.join(_MONGO)}, $not", f"{name[:_SHOWN]!a}")
    return {key: {_MONGO[name]: operand}}


def _converted_list(value: object, place: str, depth: int) -> list[dict[str, Any]]:
    if not isinstance(value, list | tuple):
        raise InvalidFilter(place, "a list of filters", _kind(value))
    return [_converted(part, f"{place}[{nth}]", depth - 1) for nth, part in enumerate(value)]


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return parts[0] if len(parts) == 1 else {"and": parts}


def _negated(part: dict[str, Any]) -> dict[str, Any]:
    return {"not": {"and": [part]} if part.keys() <= set(OPERATORS) else part}


def _step(key: str) -> str:
    return f".{key}" if key.isidentifier() and len(key) <= _SHOWN else f"[{key[:_SHOWN]!a}]"


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"
