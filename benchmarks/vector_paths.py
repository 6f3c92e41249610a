"""Every path of the vector channel: what comes back, how much of the exact answer it is, and how long it takes.

    python benchmarks/vector_paths.py --data DIRECTORY [--rows 60000] [--dimensions 64] [--questions 20]

Random unit vectors, the worst case for HNSW, in a collection with its indexes in the embedded server at DIRECTORY,
ingested unless it is there. A filter lets a share of the rows pass, picked at random: by `contains`, which the index
on metadata answers, and by `lt`, which no index does; the last one lets only those pass that are farthest from the
question. Recall is that of the first ten against an exact search with the same filter.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cayu_pg import Collection, Document, SearchResult, Store

ELIGIBLE = (6, 20, 60, 200, 600, 2_000, 6_000, 20_000, 60_000)  # of 60,000: 0.01 % to 100 %
WANTED = (40, 60, 100)


class UnitVectors:
    """Random unit vectors that depend on the text alone."""

    def __init__(self, dimensions: int) -> None:
        self.model = f"unit-{dimensions}"
        self.dimensions = dimensions

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.encode_query(text) for text in texts])

    def encode_query(self, text: str) -> NDArray[np.float32]:
        vector = np.random.default_rng(list(text.encode())).standard_normal(self.dimensions)
        return (vector / np.linalg.norm(vector)).astype(np.float32)


class Measured(NamedTuple):
    """What one filter gave, over all questions."""

    returned: int
    recall: float
    milliseconds: float
    exact_milliseconds: float
    path: str


def documents(rows: int, embedder: UnitVectors) -> Iterator[Document]:
    """Rows in the order of `place`, a random one, with the shares that they belong to."""
    texts = [f"Row {number}." for number in range(rows)]
    nearness = embedder.encode_documents(texts) @ embedder.encode_query(question(0))
    far = set(np.argsort(nearness)[: rows // 10].tolist())
    places = list(range(rows))
    random.Random(7).shuffle(places)
    for number, place in enumerate(places):
        passes = [f"{eligible}" for eligible in shares(rows) if place < eligible]
        metadata = {"place": place, "passes": passes, "far": number in far}
        yield Document(texts[number], id=f"{number:06}", metadata=metadata)


def shares(rows: int) -> list[int]:
    return [max(1, eligible * rows // 60_000) for eligible in ELIGIBLE]


def question(number: int) -> str:
    return f"Question {number}?"


def open_rows(store: Store, rows: int, embedder: UnitVectors) -> Collection:
    collection = store.collection(f"rows-{rows}", embedder=embedder)
    if collection.count() < rows:
        began = time.perf_counter()
        collection.ingest(documents(rows, embedder))  # the embedded store builds the indexes by itself
        print(f"{rows:,} rows ingested and indexed in {time.perf_counter() - began:.0f} s", flush=True)
    return collection


def timed(collection: Collection, query: str, **options: Any) -> tuple[SearchResult, float]:
    began = time.perf_counter()
    result = collection.search(query, channels="vector", **options)
    return result, (time.perf_counter() - began) * 1000


def measure(collection: Collection, where: Any, wanted: int, queries: Sequence[str]) -> Measured:
    options: dict[str, Any] = {"where": where, "candidates": wanted, "limit": wanted}
    returned, recalls, spent, spent_exactly, paths = [], [], [], [], []
    for query in queries:
        result, milliseconds = timed(collection, query, **options)
        exact, exact_milliseconds = timed(collection, query, exact=True, **options)
        distances = [hit.matches[0].raw_score or 0.0 for hit in result.hits]
        assert distances == sorted(distances)
        best = {hit.record_id for hit in exact.hits[:10]}
        recalls.append(len(best & {hit.record_id for hit in result.hits[:10]}) / len(best))
        returned.append(len(result.hits))
        paths.append(result.diagnostics.channels["vector"].path)
        spent.append(milliseconds)
        spent_exactly.append(exact_milliseconds)
    return Measured(
        returned=min(returned),
        recall=statistics.fmean(recalls),
        milliseconds=statistics.median(spent),
        exact_milliseconds=statistics.median(spent_exactly),
        path=", ".join(sorted(set(paths))),
    )


def show(collection: Collection, rows: int, eligible: int, wanted: int, queries: Sequence[str]) -> None:
    everything = eligible == rows
    found = measure(
        collection, None if everything else {"passes": {"contains": f"{eligible}"}}, wanted, queries
    )
    ranged = (
        None if everything else measure(collection, {"place": {"lt": eligible}}, wanted, queries).milliseconds
    )
    cells(f"{eligible / rows:.2%}", eligible, wanted, found, "" if ranged is None else f"{ranged:.1f}")


def cells(share: str, eligible: int, wanted: int, found: Measured, ranged: str) -> None:
    print(
        f"| {share} | {eligible:,} | {wanted} | {found.returned}/{min(wanted, eligible)} | {found.recall:.3f}"
        f" | {found.milliseconds:.1f} | {found.exact_milliseconds:.1f} | {ranged} | {found.path} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--questions", type=int, default=20)
    options = parser.parse_args()
    embedder = UnitVectors(options.dimensions)
    queries = [question(number) for number in range(options.questions)]
    with Store.embedded(options.data) as store:
        collection = open_rows(store, options.rows, embedder)
        print("| pass | rows | wanted | returned | recall@10 | ms | ms, exact | ms, by `lt` | path |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for eligible in shares(options.rows):
            for wanted in WANTED:
                show(collection, options.rows, eligible, wanted, queries)
        for wanted in WANTED:
            found = measure(collection, {"far": True}, wanted, queries[:1] * options.questions)
            cells("10.00%, the farthest", options.rows // 10, wanted, found, "")


if __name__ == "__main__":
    main()
