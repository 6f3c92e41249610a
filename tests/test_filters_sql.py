"""Filters on real Postgres: the rows that a plain evaluator picks, whatever keys and values hold."""

from __future__ import annotations

import json
import operator
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects.postgresql import JSONB

from cayu_pg.filters import MAX_CONDITIONS, from_mongo, parse_filter
from cayu_pg.sql.filters import Where, compile_filter

DOCS = sa.Table(
    "docs", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("metadata", JSONB, nullable=False)
)
ORDERS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
MISSING = object()


def elements_of(text: sa.BindParameter[str]) -> sa.TableValuedAlias:
    """The elements of a JSON array as rows of `metadata`, with their `number` from 1."""
    elements = sa.func.jsonb_array_elements(sa.cast(text, JSONB))
    columns = elements.table_valued(sa.column("metadata", JSONB), with_ordinality="number", name="given")
    return columns.render_derived()


GIVEN = elements_of(sa.bindparam("documents", type_=sa.Text))


@pytest.fixture
def conn(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect() as connection:
        yield connection


# The documented rules once more, as plainly as possible.


def same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def meets(value: Any, name: str, operand: Any) -> bool:
    match name:
        case "eq":
            return same(value, operand)
        case "in":
            return any(same(value, each) for each in operand)
        case "exists":
            return operand is (value is not MISSING)
        case "contains":
            return isinstance(value, list) and any(same(each, operand) for each in value)
        case "ne" | "nin":
            return not meets(value, {"ne": "eq", "nin": "in"}[name], operand)
        case _:
            types = str if isinstance(operand, str) else (int, float)
            comparable = isinstance(value, types) and not isinstance(value, bool)
            return comparable and bool(ORDERS[name](value, operand))


def matches(document: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    for key, value in where.items():
        if key in ("and", "or") and isinstance(value, list):
            fits = (all if key == "and" else any)(matches(document, part) for part in value)
        elif key == "not":
            fits = not matches(document, value)
        else:
            conditions = value if isinstance(value, dict) else {"eq": value}
            fits = all(meets(document.get(key, MISSING), *each) for each in conditions.items())
        if not fits:
            return False
    return True


def found(conn: sa.Connection, where: Where, documents: list[dict[str, Any]]) -> list[int]:
    """The places of the documents that Postgres picks."""
    query = sa.select(GIVEN.c.number).where(compile_filter(where, GIVEN.c.metadata)).order_by(GIVEN.c.number)
    rows = conn.scalars(query, {"documents": json.dumps(documents)})
    return [number - 1 for number in rows]


KEYS = st.sampled_from(["a", "b", "and", "a.b", ""])
SCALARS = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2, 10, 9, 0.1, 0.5, 1e-7, -2.5, 2**53, 2**53 + 1, 2**63 - 1]
    ),
    st.sampled_from(
        ["", "a", "b", "B", "10", "9", "1", "true", "null", "ä", "z", "\U0001f600", "\uffee", "a b"]
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(-1e15, 1e15),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=3),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=5,
)
DOCUMENTS = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=15, max_size=30)


@st.composite
def documents_and_filters(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Documents, and a filter that mostly speaks of values which they hold."""
    documents = draw(DOCUMENTS)
    held = [value for document in documents for value in document.values()]
    held += [element for value in held if isinstance(value, list) for element in value]
    value = st.sampled_from(held) | VALUES if held else VALUES
    bound = st.sampled_from(bounds) if (bounds := [v for v in held if orders(v)]) else SCALARS.filter(orders)
    operators: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("eq", "ne", "contains"), value),
        **dict.fromkeys(("in", "nin"), st.lists(value, max_size=4)),
        **dict.fromkeys(("gt", "gte", "lt", "lte"), bound | SCALARS.filter(orders)),
        "exists": st.booleans(),
    }
    one = st.sampled_from(list(operators)).flatmap(
        lambda name: st.fixed_dictionaries({name: operators[name]})
    )
    two = st.tuples(one, one).map(lambda pair: pair[0] | pair[1])
    bare = st.tuples(KEYS.filter(lambda key: key != "and"), value.filter(lambda v: not isinstance(v, dict)))
    leaf = st.dictionaries(KEYS, one | two, min_size=1, max_size=2) | bare.map(lambda pair: dict([pair]))
    where = st.recursive(
        leaf,
        lambda inner: (
            st.dictionaries(st.sampled_from(["and", "or"]), st.lists(inner, max_size=3), max_size=2)
            | st.fixed_dictionaries({"not": inner})
        ),
        max_leaves=6,
    )
    return documents, draw(where)


def orders(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def test_random_filters_pick_the_documents_that_the_rules_pick(conn: sa.Connection) -> None:
    pairs = picked = 0

    @settings(max_examples=340, deadline=None)
    @given(documents_and_filters())
    def agrees(case: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
        nonlocal pairs, picked
        documents, where = case
        expected = [n for n, document in enumerate(documents) if matches(document, where)]
        assert found(conn, where, documents) == expected
        pairs += len(documents)
        picked += len(expected)

    agrees()
    assert pairs >= 5_000
    assert 0.1 < picked / pairs < 0.9


@pytest.mark.parametrize(
    ("where", "documents", "picked"),
    [
        ({"k": 1}, [{"k": 1}, {"k": 1.0}, {"k": "1"}, {"k": True}, {"k": [1]}, {}], [0, 1]),
        ({"k": {"ne": 1}}, [{"k": 1}, {"k": "1"}, {"k": None}, {}], [1, 2, 3]),
        ({"k": None}, [{"k": None}, {"k": False}, {"k": ""}, {}], [0]),
        ({"k": {"ne": None}}, [{"k": None}, {"k": 0}, {}], [1, 2]),
        ({"k": True}, [{"k": True}, {"k": 1}, {"k": "true"}], [0]),
        ({"k": 0.1}, [{"k": 0.1}, {"k": 0.10000000000000002}], [0]),
        ({"k": {"gte": 2**53 + 1}}, [{"k": 2**53}, {"k": 2**53 + 1}, {"k": 2**63 - 1}], [1, 2]),
        (
            {"k": {"gt": 9}},
            [{"k": 10}, {"k": "10"}, {"k": 9}, {"k": None}, {"k": [10]}, {"k": True}, {}],
            [0],
        ),
        ({"k": {"gt": "9"}}, [{"k": "10"}, {"k": "90"}, {"k": 10}, {}], [1]),
        ({"k": {"lt": "a"}}, [{"k": "B"}, {"k": "b"}, {"k": "ä"}, {"k": ""}], [0, 3]),
        (
            {"k": {"gte": "2024-01-01", "lt": "2025"}},
            [{"k": "2023-12-31"}, {"k": "2024-02-29T10:00:00Z"}, {"k": "2025-01-01"}],
            [1],
        ),
        ({"not": {"k": {"gt": 1}}}, [{"k": 1}, {"k": 2}, {"k": "a"}, {}], [0, 2, 3]),
        ({"k": [1, 2]}, [{"k": [1, 2]}, {"k": [2, 1]}, {"k": [1, 2, 3]}, {"k": [1, 2, 2]}], [0]),
        ({"k": {"eq": {"a": 1}}}, [{"k": {"a": 1}}, {"k": {"a": 1, "b": 2}}, {"k": {}}], [0]),
        ({"k": {"eq": {}}}, [{"k": {"a": 1}}, {"k": {}}, {"k": []}, {}], [1]),
        (
            {"k": {"contains": 1}},
            [{"k": [2, 1.0]}, {"k": 1}, {"k": "1"}, {"k": [[1]]}, {"k": {"1": 1}}, {}],
            [0],
        ),
        ({"k": {"contains": "a"}}, [{"k": "abc"}, {"k": ["a"]}, {"k": "a"}, {"k": ["ab"]}], [1]),
        (
            {"k": {"contains": {"a": 1}}},
            [{"k": [{"a": 1, "b": 2}]}, {"k": [0, {"a": 1}]}, {"k": {"a": 1}}],
            [1],
        ),
        ({"k": {"contains": [1]}}, [{"k": [1]}, {"k": [[1]]}, {"k": [[1, 2]]}, {"k": [[]]}], [1]),
        ({"k": {"contains": None}}, [{"k": [None]}, {"k": []}, {"k": None}], [0]),
        ({"k": {"in": []}}, [{"k": 1}, {}], []),
        ({"k": {"nin": []}}, [{"k": 1}, {}], [0, 1]),
        ({"k": {"in": [1, None, [2]]}}, [{"k": 1.0}, {"k": None}, {"k": [2]}, {"k": 2}, {}], [0, 1, 2]),
        ({"k": {"nin": [1, None]}}, [{"k": 1}, {"k": None}, {"k": "1"}, {}], [2, 3]),
        ({"k": {"exists": True}}, [{"k": None}, {"k": 0}, {}, {"j": 1}], [0, 1]),
        ({"k": {"exists": False}}, [{"k": None}, {}, {"j": 1}], [1, 2]),
        ({"a.b": 1}, [{"a.b": 1}, {"a": {"b": 1}}], [0]),
        ({}, [{}, {"k": 1}], [0, 1]),
        ({"or": []}, [{}, {"k": 1}], []),
    ],
)
def test_rule_by_example(conn: sa.Connection, where: Any, documents: Any, picked: Any) -> None:
    assert found(conn, where, documents) == picked
    assert [n for n, document in enumerate(documents) if matches(document, where)] == picked


FRAGMENTS = [
    *"'\"`\\%:?{}[]()<>|&!*$@#;,./~ \t\n\r-+=^_", "", "a", "%s", "%(x)s", "%%", ":name", "::jsonb", "\\:", "{}", "{0}",
    "'; DROP TABLE docs; --", "$1", "$.a", "$$", "a.b", "a->b", "a,b", "null", "true", "0", "-1", "1e400", "NaN",
    "and", "or", "not", "$and", "$or", "eq", "in", "$eq", "__class__", "\x01", "\x7f", "\u2028", "\ufeff", "\ufffe",
    "ü", "u\u0308", "\u202e", "\U0001f600", "中文", "\\u0000", "\\x00", "E'\\''", "/*", "*/", "--", "U&'\\0041'",
]  # fmt: skip


def hostile_texts(count: int) -> list[str]:
    chance = random.Random(4)
    texts = dict.fromkeys(FRAGMENTS)
    while len(texts) < count:
        texts["".join(chance.choices(FRAGMENTS, k=chance.randint(2, 6)))] = None
    return [text * (10_240 // max(len(text), 1)) if n % 100 == 99 else text for n, text in enumerate(texts)][
        :count
    ]


@pytest.fixture
def hostile(conn: sa.Connection) -> list[dict[str, Any]]:
    """2,000 documents, each with a key and a value of its own; the value of every fifth is in an array."""
    keys = hostile_texts(2_000)
    documents = [
        {key: [value] if n % 5 == 0 else value}
        for n, (key, value) in enumerate(zip(keys, reversed(keys), strict=True))
    ]
    fill(conn, documents)
    return documents


def fill(conn: sa.Connection, documents: list[dict[str, Any]]) -> None:
    DOCS.create(conn)
    rows = sa.select(GIVEN.c.number - 1, GIVEN.c.metadata)
    conn.execute(DOCS.insert().from_select(["id", "metadata"], rows), {"documents": json.dumps(documents)})


def ids(conn: sa.Connection, where: Where) -> list[int]:
    return list(
        conn.scalars(sa.select(DOCS.c.id).where(compile_filter(where, DOCS.c.metadata)).order_by(DOCS.c.id))
    )


def test_hostile_keys_and_values_find_their_row_and_no_other(
    conn: sa.Connection, hostile: list[dict[str, Any]]
) -> None:
    assert len({next(iter(document)) for document in hostile}) == 2_000
    names = ["contains", "eq", "gte", "in", "lte"]
    for number, document in enumerate(hostile):
        (key, value), name = next(iter(document.items())), names[number % 5]
        operand = value[0] if name == "contains" else [value] if name == "in" else value
        assert ids(conn, {key: {name: operand}}) == [number]


def test_hostile_keys_exist_once_and_foreign_values_match_nothing(
    conn: sa.Connection, hostile: list[dict[str, Any]]
) -> None:
    for number in range(0, 2_000, 10):
        key = next(iter(hostile[number]))
        assert ids(conn, {key: {"exists": True}}) == [number]
        assert ids(conn, {key: {"ne": "other", "exists": True}}) == [number]
        assert ids(conn, {key: {"in": ["other", key + "x"]}}) == []


def test_seventy_thousand_values_are_one_bind_and_fast(conn: sa.Connection) -> None:
    fill(conn, [{"n": n, "s": f"v{n}"} for n in range(10_000)])
    values = [f"v{n}" for n in range(5_000, 75_000)]
    began = time.perf_counter()
    assert ids(conn, {"s": {"in": values}}) == list(range(5_000, 10_000))
    assert ids(conn, {"s": {"nin": values}}) == list(range(5_000))
    # 0.1 s here; were each row compared with each value it would take minutes.
    assert time.perf_counter() - began < 5
    assert len(compile_filter({"s": {"in": values}}, DOCS.c.metadata).compile().params) == 2


def test_as_many_conditions_as_are_allowed_fit_in_one_statement(conn: sa.Connection) -> None:
    fill(conn, [{"n": [n]} for n in range(3)])
    condition = compile_filter({"or": [{"n": [n]} for n in range(1, MAX_CONDITIONS + 1)]}, DOCS.c.metadata)
    assert ids(conn, condition) == [1, 2]


def test_strings_are_compared_by_code_point_whatever_the_collation_of_the_database(
    conn: sa.Connection,
) -> None:
    # No server of these tests knows a collation that orders differently, so the rows cannot show it.
    compiled = compile_filter({"s": {"lt": "a"}}, DOCS.c.metadata).compile(dialect=conn.dialect)
    assert """#>> '{}') COLLATE "C") < """ in str(compiled)


def test_expression_and_tree_are_taken_as_they_are(conn: sa.Connection) -> None:
    fill(conn, [{"n": n} for n in range(5)])
    expression = DOCS.c.id > 2
    assert compile_filter(expression, DOCS.c.metadata) is expression
    assert ids(conn, parse_filter({"n": {"gt": 2}})) == ids(conn, expression) == [3, 4]


def test_mongo_spelling_finds_the_same(conn: sa.Connection) -> None:
    mongo = {"$or": [{"n": {"$gte": 3, "$ne": 4}}, {"$nor": [{"n": {"$gt": 0}}]}], "m": {"$exists": False}}
    fill(conn, [{"n": n} for n in range(6)])
    assert ids(conn, from_mongo(mongo)) == [0, 3, 5]


def test_statement_holds_neither_keys_nor_values(conn: sa.Connection) -> None:
    where = {
        "kkk": {"eq": "vvv", "in": ["vvv"], "gt": "vvv", "lt": 12345, "contains": {"vvv": 1}, "exists": True}
    }
    compiled = compile_filter(where, DOCS.c.metadata).compile(dialect=conn.dialect)
    assert not any(given in str(compiled) for given in ("kkk", "vvv", "12345"))


def test_filters_of_one_shape_are_compiled_once(engine: sa.Engine) -> None:
    cache: dict[Any, Any] = {}
    with engine.connect().execution_options(compiled_cache=cache) as conn:
        fill(conn, [{"n": n, "s": "a", "tags": [n]} for n in range(9)])
        ids(conn, where(1))
        before = len(cache)
        assert [ids(conn, where(n)) for n in range(9)] == [[n] for n in range(9)]
        assert len(cache) == before


def where(n: int) -> dict[str, Any]:
    return {
        "n": {"eq": n, "in": [n, "x"], "lte": n},
        "s": {"lt": f"b{n}"},
        "tags": {"contains": n},
        f"k{n}": {"ne": n},
    }


@pytest.fixture
def indexed(conn: sa.Connection) -> sa.Connection:
    """50,000 documents under a GIN index."""
    DOCS.create(conn)
    tags = "jsonb_build_array('t' || i, jsonb_build_object('a', i))"
    document = f"jsonb_build_object('n', i, 's', 'v' || i, 'tags', {tags})"
    conn.execute(sa.text(f"INSERT INTO docs SELECT i, {document} FROM generate_series(1, 50000) i"))
    conn.execute(sa.text("CREATE INDEX docs_metadata ON docs USING gin (metadata jsonb_path_ops)"))
    conn.execute(sa.text("ANALYZE docs"))
    return conn


def plan_of(conn: sa.Connection, where: Where) -> str:
    query = sa.select(DOCS.c.id).where(compile_filter(where, DOCS.c.metadata)).compile(dialect=conn.dialect)
    return "\n".join(conn.exec_driver_sql(f"EXPLAIN {query}", query.params).scalars())


def test_equality_and_contains_use_the_gin_index(indexed: sa.Connection) -> None:
    selective: list[dict[str, Any]] = [
        {"n": 777},
        {"n": 777.0},
        {"s": {"eq": "v777"}},
        {"tags": ["t777", {"a": 777}]},
        {"tags": {"contains": "t777"}},
        {"tags": {"contains": {"a": 777}}},
        {"s": "v777", "n": {"gt": 7}},
        {"or": [{"s": "v777"}, {"tags": {"contains": "t777"}}]},
    ]
    for where in selective:
        plan = plan_of(indexed, where)
        assert "Bitmap Index Scan on docs_metadata" in plan
        assert "Seq Scan" not in plan
        assert ids(indexed, where) == [777]
    assert "Seq Scan" in plan_of(indexed, {"n": {"gt": 7}})
