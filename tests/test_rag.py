"""`ingest` and `retrieve` with any store; recorded cases in tests/data."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from cayu_pg.errors import InvalidInput
from cayu_pg.query import SearchResult
from cayu_pg.rag import ingest, retrieve
from tests.golden import Case, decode, each, read

CASES = read("pipeline.jsonl")
ERRORS = {"ValueError": ValueError, "TypeError": TypeError}


class ListStore:
    """The smallest store there is; it can be full."""

    def __init__(self, found: Any = None, room: int | None = None) -> None:
        self.stored: list[str] = []
        self.searches: list[dict[str, Any]] = []
        self.found = found
        self.room = room

    def store(self, content: str) -> None:
        if len(self.stored) == self.room:
            raise ValueError("the store is full")
        self.stored.append(content)

    def search(self, *args: Any, **kwargs: Any) -> Any:
        self.searches.append({"args": list(args), "kwargs": kwargs})
        return self.found


class BatchedStore(ListStore):
    """A store that takes all documents at once."""

    def ingest(self, documents: str | Iterable[str], **cutting: Any) -> SimpleNamespace:
        self.given = (documents, cutting)
        return SimpleNamespace(chunks_added=3, chunks_kept=4)


def of(call: str, outcome: str) -> list[Case]:
    return [case for case in CASES if case["call"] == call and outcome in case and "quirk" not in case]


def settings(case: Case) -> dict[str, Any]:
    decoded: dict[str, Any] = decode(case["kwargs"], {})
    if decoded.get("length_function") == "words":
        decoded["length_function"] = lambda text: len(text.split())
    return decoded


@each(of("ingest", "result"))
def test_ingest_stores_chunks_as_recorded(case: Case) -> None:
    store = ListStore()
    assert ingest(store, decode(case["documents"], {}), **settings(case)) == case["result"]
    assert store.stored == case["stored"]


@each(of("ingest", "error"))
def test_error_leaves_the_earlier_chunks_stored(case: Case) -> None:
    store = ListStore(room=case.get("fail_after"))
    with pytest.raises(ERRORS[case["error"]]):
        ingest(store, decode(case["documents"], {}), **settings(case))
    assert store.stored == case["stored"]


@each(of("retrieve", "result"))
def test_answer_of_a_store_is_returned_untouched(case: Case) -> None:
    store = ListStore(case["store_returns"])
    assert retrieve(store, case["query"], **case["kwargs"]) is store.found
    assert store.searches == case["searches"]


def test_query_is_given_once() -> None:
    store = ListStore()
    with pytest.raises(TypeError):
        retrieve(store, "q", **{"query": "x"})
    assert store.searches == []


def test_replayed_data_is_complete() -> None:
    assert sum(case["call"] in ("ingest", "retrieve") for case in CASES) == 30


def test_document_that_is_not_text_is_refused_after_those_before_it() -> None:
    store = ListStore()
    documents: Any = ["ok", 5, "never"]
    with pytest.raises(InvalidInput, match="text: expected a text, found a value of type int"):
        ingest(store, documents)
    assert store.stored == ["ok"]


def test_ingest_without_separators_is_refused() -> None:
    with pytest.raises(InvalidInput, match="separators"):
        ingest(ListStore(), "some text", separators=[])


def test_store_with_its_own_ingest_gets_all_documents_at_once() -> None:
    store = BatchedStore()
    documents = iter(["one", "two"])
    assert ingest(store, documents, chunk_size=50, chunk_overlap=5) == 7
    cutting = {"chunk_size": 50, "chunk_overlap": 5, "separators": None, "length_function": len}
    assert store.given == (documents, cutting)
    assert store.stored == []


def test_search_result_becomes_its_texts() -> None:
    hits = (SimpleNamespace(text="first"), SimpleNamespace(text="second"))
    store = ListStore(SearchResult.model_construct(hits=hits))
    assert retrieve(store, "q", n_results=2, where={"lang": "en"}) == ["first", "second"]
    assert store.searches == [{"args": ["q"], "kwargs": {"n_results": 2, "where": {"lang": "en"}}}]
