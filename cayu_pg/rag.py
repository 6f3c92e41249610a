"""The two verbs of retrieval-augmented generation, for any store: put texts in, get passages out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from cayu_pg.query import SearchResult
from cayu_pg.splitting import split_text


class Storing(Protocol):
    """What keeps one passage at a time."""

    def store(self, content: str) -> object:
        """Keep a passage."""


class Searching(Protocol):
    """What finds passages."""

    def search(self, query: str, *, n_results: int) -> Any:
        """The passages that fit a query."""


class Report(Protocol):
    """What an ingest of many documents did."""

    @property
    def chunks_added(self) -> int:
        """How many chunks are new."""

    @property
    def chunks_kept(self) -> int:
        """How many chunks were there already."""


@runtime_checkable
class Ingesting(Protocol):
    """What cuts and keeps many documents at once, as a Collection does."""

    def ingest(
        self,
        documents: str | Iterable[str],
        *,
        chunk_size: int,
        chunk_overlap: int,
        separators: list[str] | None,
        length_function: Callable[[str], int],
    ) -> Report:
        """Cut the documents and keep their chunks."""


def ingest(
    store: Storing | Ingesting,
    documents: str | Iterable[str],
    *,
    chunk_size: int = 1000,
    chunk_overlap: int = 200,
    separators: list[str] | None = None,
    length_function: Callable[[str], int] = len,
) -> int:
    """Cut the documents into chunks as `split_text` does and store them; how many chunks the store now has of them.

    A store with a method `ingest` of its own, such as a Collection, gets all documents at once and cuts them
    itself; any other gets chunk by chunk, so that an error leaves the earlier chunks stored.
    """
    cutting: dict[str, Any] = {
        "chunk_size": chunk_size,
        "chunk_overlap": chunk_overlap,
        "separators": separators,
        "length_function": length_function,
    }
    if isinstance(store, Ingesting):
        report = store.ingest(documents, **cutting)
        return report.chunks_added + report.chunks_kept
    stored = 0
    for document in [documents] if isinstance(documents, str) else documents:
        for chunk in split_text(document, **cutting):
            store.store(chunk)
            stored += 1
    return stored


def retrieve(store: Searching, query: str, *, n_results: int = 5, **search_kwargs: Any) -> list[str]:
    """The passages that `store` finds for the query, best first; further keywords go to its `search`.

    A Collection answers with a SearchResult, of which these are the texts; any other answer is returned as it is.
    """
    answer = store.search(query, n_results=n_results, **search_kwargs)
    passages: list[str] = answer.texts if isinstance(answer, SearchResult) else answer
    return passages
