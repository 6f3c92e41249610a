"""A filter as a condition on a JSONB column, for whatever the column holds.

Nothing is cast that could fail, for SQL promises no order of evaluation: jsonb is compared with jsonb. Every
condition is true or false and never NULL, so that NOT means not. Keys and values are bound, and one shape of filter
is one compiled statement.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import JsonValue
from sqlalchemy.dialects.postgresql import JSONB

from cayu_pg.filters import And, Compares, Contains, Equals, Exists, Filter, Not, OneOf, Or, parse_filter

Condition = sa.ColumnElement[bool]
Where = Mapping[str, Any] | Filter | Condition

_ORDERS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


def compile_filter(where: Where, metadata: sa.ColumnElement[Any]) -> Condition:
    """The condition that `where` puts on `metadata`, a JSONB column that is never NULL.

    A SQLAlchemy expression is the condition already. `eq` and `contains` can use a GIN index with jsonb_path_ops.
    """
    if isinstance(where, sa.ColumnElement):
        return where
    return _condition(where if isinstance(where, Filter) else parse_filter(where), metadata)


def _condition(part: Filter, metadata: sa.ColumnElement[Any]) -> Condition:
    match part:
        case Equals(key, value):
            return _equals(metadata, key, value)
        case OneOf(key, values):
            return _one_of(_at(metadata, key), values)
        case Compares():
            return _compares(metadata, part)
        case Exists(key):
            return _at(metadata, key).is_not(None)
        case Contains(key, value):
            return _contains(metadata, key, value)
        case And(parts):
            return sa.and_(sa.true(), *(_condition(each, metadata) for each in parts))
        case Or(parts):
            return sa.or_(sa.false(), *(_condition(each, metadata) for each in parts))
        case Not(negated):
            return sa.not_(_condition(negated, metadata))


def _equals(metadata: sa.ColumnElement[Any], key: str, value: JsonValue) -> Condition:
    holds = _holds(metadata, key, value)
    if not isinstance(value, list | dict):
        return holds
    # Containment finds {"a": 1, "b": 2} for {"a": 1}, and [1, 2] for [2].
    return holds & (_at(metadata, key) == _jsonb(value))


def _contains(metadata: sa.ColumnElement[Any], key: str, value: JsonValue) -> Condition:
    holds = _holds(metadata, key, [value])
    if not isinstance(value, list | dict):
        return holds
    found = _at(metadata, key)
    array = sa.case((_is(found, "array"), found), else_=sa.literal_column("CAST('[]' AS jsonb)"))
    element = sa.func.jsonb_array_elements(array).table_valued(sa.column("value", JSONB)).c.value
    return holds & sa.exists().where(element == _jsonb(value))


def _one_of(found: sa.ColumnElement[Any], values: tuple[JsonValue, ...]) -> Condition:
    # One bind, and a hash table for any number of values: 70,000 against 10,000 rows take 21 ms, under a generic
    # plan 46 ms. Hashed = ANY(array) takes 333 ms, and under a generic plan it is not hashed.
    values_of = sa.func.jsonb_array_elements(_jsonb(list(values))).table_valued(sa.column("value", JSONB))
    return sa.func.coalesce(found.in_(sa.select(values_of.c.value)), sa.false())


def _compares(metadata: sa.ColumnElement[Any], part: Compares) -> Condition:
    found = _at(metadata, part.key)
    compare = _ORDERS[part.order]
    if isinstance(part.bound, str):
        # jsonb compares strings by the collation of the database.
        text = found.op("#>>", return_type=sa.Text())(sa.literal_column("'{}'")).collate("C")
        kind, compared = "string", compare(text, _text(part.bound))
    else:
        kind, compared = "number", compare(found, _jsonb(part.bound))
    return sa.case((_is(found, kind), compared), else_=sa.false())


def _holds(metadata: sa.ColumnElement[Any], key: str, value: JsonValue) -> Condition:
    return metadata.bool_op("@>")(_jsonb({key: value}))


def _at(metadata: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
    return metadata.op("->", return_type=JSONB())(_text(key))


def _is(found: sa.ColumnElement[Any], kind: str) -> Condition:
    return sa.func.jsonb_typeof(found) == sa.literal_column(f"'{kind}'")


def _jsonb(value: JsonValue) -> sa.ColumnElement[Any]:
    # As text, which Postgres reads exactly, whatever serializer the caller's engine was given.
    return sa.cast(_text(json.dumps(value, ensure_ascii=False)), JSONB)


def _text(value: str) -> sa.BindParameter[str]:
    return sa.bindparam(None, value, type_=sa.Text, unique=True)
