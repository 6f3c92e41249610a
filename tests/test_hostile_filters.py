"""Whatever keys and values a filter of a search holds: no error of the database, and no wrong hit."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.records import Document
from cayu_pg.store import Store
from tests.test_filters_sql import hostile_texts

COUNT, AT_ONCE = 2_000, 20
OPERATORS = ("contains", "eq", "gte", "in", "lte")

Case = tuple[str, str]  # a key and its value


@pytest.fixture
def cases() -> list[Case]:
    texts = hostile_texts(COUNT)
    return list(zip(texts, reversed(texts), strict=True))


@pytest.fixture
def collection(engine: sa.Engine, cases: list[Case]) -> Collection:
    """One record for each case; the value of every fifth is in an array."""
    collection = Store(engine, embedder=HashEmbedder(8)).collection("hostile")
    collection.ingest(
        Document(f"Passage {number}.", id=f"{number}", metadata={key: [value] if number % 5 == 0 else value})
        for number, (key, value) in enumerate(cases)
    )
    return collection


def condition(number: int, case: Case) -> dict[str, Any]:
    key, value = case
    name = OPERATORS[number % 5]
    return {key: {name: [value] if name == "in" else value}}


def found(collection: Collection, where: dict[str, Any]) -> list[int]:
    result = collection.search("passage", where=where, limit=50)
    return sorted(int(hit.record_id) for hit in result.hits)


def test_two_thousand_hostile_keys_and_values_find_their_records_and_no_others(
    collection: Collection, cases: list[Case]
) -> None:
    assert len(dict(cases)) == COUNT
    for start in range(0, COUNT, AT_ONCE):
        numbers = range(start, start + AT_ONCE)
        where = {"or": [condition(number, cases[number]) for number in numbers]}
        assert found(collection, where) == list(numbers)
    for number in range(0, COUNT, 25):
        assert found(collection, condition(number, cases[number])) == [number]


def test_hostile_filters_mean_the_same_where_indexes_answer(
    collection: Collection, cases: list[Case]
) -> None:
    collection.reindex(min_chunks=COUNT)
    for number in range(0, COUNT, 19):
        assert found(collection, condition(number, cases[number])) == [number]
    key = cases[77][0]
    others = {"not": {key: {"exists": True}}}
    result = collection.search("passage", where=others, candidates=COUNT, limit=COUNT)
    assert {hit.record_id for hit in result.hits} == {f"{number}" for number in range(COUNT)} - {"77"}
