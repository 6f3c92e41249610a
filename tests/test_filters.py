"""What a `where` may say, and which place an error names when it says something else."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import FrozenInstanceError
from datetime import date
from typing import Any

import pytest

from cayu_pg.errors import InvalidFilter
from cayu_pg.filters import (
    MAX_CONDITIONS,
    MAX_DEPTH,
    And,
    Compares,
    Contains,
    Equals,
    Exists,
    Not,
    OneOf,
    Or,
    from_mongo,
    parse_filter,
)


def refused(where: Any) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        parse_filter(where)
    return caught.value


def nested(levels: int) -> dict[str, Any]:
    where: dict[str, Any] = {"a": 1}
    for _ in range(levels):
        where = {"not": where}
    return where


@pytest.mark.parametrize("value", ["en", "", 7, 2**63 - 1, -0.5, True, None, [], ["a", 1]])
def test_bare_value_means_equality(value: object) -> None:
    assert parse_filter({"lang": value}) == Equals("lang", value)  # type: ignore[arg-type]  # JSON, all of them


@pytest.mark.parametrize(
    ("condition", "tree"),
    [
        ({"eq": {"a": [1]}}, Equals("k", {"a": [1]})),
        ({"ne": 1}, Not(Equals("k", 1))),
        ({"in": ["a", None]}, OneOf("k", ("a", None))),
        ({"nin": ("a",)}, Not(OneOf("k", ("a",)))),
        ({"in": {"a"}}, OneOf("k", ("a",))),
        ({"gt": 1}, Compares("k", "gt", 1)),
        ({"gte": 0.5}, Compares("k", "gte", 0.5)),
        ({"lt": "2024-01-01"}, Compares("k", "lt", "2024-01-01")),
        ({"lte": ""}, Compares("k", "lte", "")),
        ({"exists": True}, Exists("k")),
        ({"exists": False}, Not(Exists("k"))),
        ({"contains": ["a"]}, Contains("k", ["a"])),
        ({"gte": 1, "lt": 9}, And((Compares("k", "gte", 1), Compares("k", "lt", 9)))),
    ],
)
def test_each_operator_has_its_meaning(condition: dict[str, Any], tree: object) -> None:
    assert parse_filter({"k": condition}) == tree


def test_several_keys_mean_and() -> None:
    assert parse_filter({"a": 1, "b": 2}) == And((Equals("a", 1), Equals("b", 2)))


def test_combinators_hold_filters() -> None:
    where = {"or": [{"a": 1}, {"and": [{"b": 2}, {"not": {"c": 3}}]}]}
    assert parse_filter(where) == Or((Equals("a", 1), And((Equals("b", 2), Not(Equals("c", 3))))))


def test_nothing_to_meet_is_everything_and_nothing_to_choose_from_is_nothing() -> None:
    assert parse_filter({}) == parse_filter({"and": []}) == And(())
    assert parse_filter({"or": []}) == Or(())


def test_any_mapping_will_do() -> None:
    assert parse_filter(OrderedDict(a=OrderedDict(gt=1))) == Compares("a", "gt", 1)


def test_tree_is_a_copy_that_does_not_change() -> None:
    tags = ["a"]
    tree = parse_filter({"tags": tags})
    tags.append("b")
    assert tree == Equals("tags", ["a"])
    with pytest.raises(FrozenInstanceError):
        tree.key = "other"  # type: ignore[misc]  # what must not work


@pytest.mark.parametrize("key", ["and", "or", "not", "$and", "$or", "$nor", "$not"])
def test_key_called_like_a_combinator_is_reached_by_operators(key: str) -> None:
    assert parse_filter({key: {"eq": "x"}}) == Equals(key, "x")
    error = refused({key: "x"})
    assert error.field.startswith("where")
    assert f'{{"{key}": {{"eq": ...}}}}' in error.expected


@pytest.mark.parametrize("key", ["eq", "in", "exists", "$eq", "a.b", "", "where", "a b", "%", ":x", "'"])
def test_other_keys_are_literal(key: str) -> None:
    assert parse_filter({key: 1}) == Equals(key, 1)


def test_key_called_like_an_operator_is_negated_inside_a_list() -> None:
    assert parse_filter({"not": {"and": [{"eq": 5}]}}) == Not(Equals("eq", 5))
    assert parse_filter({"not": {"eq": 5}}) == Equals("not", 5)


@pytest.mark.parametrize("operator", ["like", "EQ", "gte ", "", "city"])
def test_unknown_operator_is_answered_with_the_known_ones(operator: str) -> None:
    error = refused({"year": {operator: 1}})
    assert error.expected.startswith("one of eq, ne, in, nin, gt, gte, lt, lte, exists, contains")
    assert 'an object to equal is written {"eq": {...}}' in error.expected
    assert error.found == repr(operator)


@pytest.mark.parametrize(
    "where", [{"year": {"$gte": 1}}, {"$and": [{"a": 1}]}, {"$not": {"a": 1}}, {"$or": []}]
)
def test_mongo_spelling_is_pointed_to_its_converter(where: dict[str, Any]) -> None:
    assert "from_mongo" in refused(where).expected


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("lang = 'en'", "where"),
        (None, "where"),
        ([{"a": 1}], "where"),
        ({1: "a"}, "where"),
        ({"a": {}}, "where.a"),
        ({"and": {"a": 1}}, "where.and"),
        ({"or": "a"}, "where.or"),
        ({"not": [{"a": 1}]}, "where.not"),
        ({"and": [{"a": 1}, "b"]}, "where.and[1]"),
        ({"or": [{"not": {"year": {"gte": None}}}]}, "where.or[0].not.year.gte"),
        ({"year": {"gte": True}}, "where.year.gte"),
        ({"year": {"gt": [1]}}, "where.year.gt"),
        ({"year": {"lt": float("nan")}}, "where.year.lt"),
        ({"year": {"lte": float("inf")}}, "where.year.lte"),
        ({"year": 2**63}, "where.year"),
        ({"year": date(2024, 1, 1)}, "where.year"),
        ({"year": {1: 2}}, "where.year"),
        ({"a": {"in": "abc"}}, "where.a.in"),
        ({"a": {"nin": {"b": 1}}}, "where.a.nin"),
        ({"a": {"in": [1, {"b": [b""]}]}}, "where.a.in[1].b[0]"),
        ({"a": {"exists": 1}}, "where.a.exists"),
        ({"a": {"exists": None}}, "where.a.exists"),
        ({"a": {"contains": {1}}}, "where.a.contains"),
        ({"a": "\x00"}, "where.a"),
        ({"a": {"eq": {"\x00": 1}}}, "where.a.eq"),
        ({"a": {"gt": "\ud800"}}, "where.a.gt"),
        ({"a b": {"like": 1}}, "where['a b'].like"),
        ({"ü\n'": {"gt": None}}, 'where["\\xfc\\n\'"].gt'),
    ],
)
def test_error_names_the_place(where: Any, place: str) -> None:
    assert refused(where).field == place


@pytest.mark.parametrize("key", ["\x00", "a\x00b", "\ud800", "x\udfff"])
def test_key_that_cannot_be_stored_is_refused(key: str) -> None:
    error = refused({"not": {key: {"exists": True}}})
    assert (error.field, error.found) == ("where.not", ascii(key))
    assert "no stored key has them" in error.expected


def test_error_shows_no_more_than_the_beginning_of_a_long_key() -> None:
    assert len(str(refused({"k" * 10_000: {"o" * 10_000: 1}}))) < 600
    assert len(str(refused({"k\x00" * 10_000: 1}))) < 600


def test_depth_is_bounded() -> None:
    assert parse_filter(nested(MAX_DEPTH - 1))
    assert refused(nested(MAX_DEPTH)).expected == "at most 64 filters inside each other"
    endless: dict[str, Any] = {}
    endless["not"] = {"or": [endless]}
    assert "at most 64" in str(refused(endless))


def test_conditions_are_bounded() -> None:
    most = [{"a": {"gt": n, "lt": n}} for n in range(MAX_CONDITIONS // 2)]
    assert parse_filter({"or": most})
    assert refused({"or": [*most, {"a": 1}]}).expected == "at most 10000 conditions in all"
    assert "10000" in str(refused({"and": [{"or": []}] * (MAX_CONDITIONS + 1)}))
    assert "10000" in str(refused({"and": [{}] * (MAX_CONDITIONS + 1)}))


def test_values_of_in_count_as_one_condition() -> None:
    tree = parse_filter({"id": {"in": list(range(70_000))}})
    assert isinstance(tree, OneOf)
    assert len(tree.values) == 70_000


@pytest.mark.parametrize(
    ("mongo", "ours"),
    [
        ({}, {"and": []}),
        ({"lang": "en"}, {"lang": {"eq": "en"}}),
        ({"lang": None}, {"lang": {"eq": None}}),
        ({"lang": {"$eq": "en"}}, {"lang": {"eq": "en"}}),
        ({"lang": {"$ne": "en"}}, {"lang": {"ne": "en"}}),
        ({"a": {"$in": [1]}, "b": {"$nin": [2]}}, {"and": [{"a": {"in": [1]}}, {"b": {"nin": [2]}}]}),
        ({"a": {"$gt": 1, "$lte": 5}}, {"and": [{"a": {"gt": 1}}, {"a": {"lte": 5}}]}),
        ({"a": {"$gte": 1, "$lt": 5}}, {"and": [{"a": {"gte": 1}}, {"a": {"lt": 5}}]}),
        ({"a": {"$exists": False}}, {"a": {"exists": False}}),
        ({"a": {"b": 1}}, {"a": {"eq": {"b": 1}}}),
        ({"a": {}}, {"a": {"eq": {}}}),
        ({"a.b": 1}, {"a.b": {"eq": 1}}),
        ({"$and": [{"a": 1}, {"b": 2}]}, {"and": [{"a": {"eq": 1}}, {"b": {"eq": 2}}]}),
        ({"$or": [{"a": 1}]}, {"or": [{"a": {"eq": 1}}]}),
        ({"$nor": [{"a": 1}, {"b": 2}]}, {"not": {"or": [{"a": {"eq": 1}}, {"b": {"eq": 2}}]}}),
        ({"$not": {"a": 1}}, {"not": {"a": {"eq": 1}}}),
        ({"a": {"$not": {"$gt": 1}}}, {"not": {"a": {"gt": 1}}}),
        ({"and": 1, "not": {"$gt": 2}}, {"and": [{"and": {"eq": 1}}, {"not": {"gt": 2}}]}),
        ({"$not": {"eq": 1}}, {"not": {"and": [{"eq": {"eq": 1}}]}}),
    ],
)
def test_mongo_spelling_is_converted(mongo: dict[str, Any], ours: dict[str, Any]) -> None:
    assert from_mongo(mongo) == ours
    assert parse_filter(ours)


@pytest.mark.parametrize(
    ("mongo", "place"),
    [
        ("a", "where"),
        ({"a": {"$regex": "x"}}, "where.a['$regex']"),
        ({"a": {"$gt": 1, "lt": 2}}, "where.a.lt"),
        ({"$or": {"a": 1}}, "where['$or']"),
        ({"$and": [{"a": 1}, 2]}, "where['$and'][1]"),
        ({"$not": 5}, "where['$not']"),
        ({"\x00": 5}, "where"),
    ],
)
def test_mongo_filter_that_has_no_counterpart_is_refused(mongo: Any, place: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        from_mongo(mongo)
    assert caught.value.field == place


def test_mongo_filter_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["$nor"] = [endless]
    with pytest.raises(InvalidFilter, match="at most 64"):
        from_mongo(endless)
