"""The keyword channel at 100,000 and 1,000,000 chunks of real text, beside what plain SQL does.

    python benchmarks/bm25_scale.py PASSAGES.jsonl --data DIRECTORY [--sizes 100000,1000000] [--questions 60]

PASSAGES has rows with "text"; a chunk joins 4 to 8 neighbouring passages from a random place (fixed seed). Each size
is a collection of its own in the embedded server at DIRECTORY, ingested with HashEmbedder(8) unless it is there.
Questions are eight different words of a random chunk. For each: the text channel (candidates 10), the same unbounded
(every word chooses candidates), and `any word + ts_rank_cd` in plain SQL over the same tsvectors and index.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cayu_pg import Collection, Document, HashEmbedder, Store, asking

PLAIN = """
SELECT l.chunk_id, ts_rank_cd(l.tsv, q.words) AS rank
FROM cayu.chunk_lexemes l,
     (SELECT (SELECT string_agg(quote_literal(lexeme), ' | ')
              FROM unnest(to_tsvector('english', :question)))::tsquery AS words) q
WHERE l.collection_id = {collection_id} AND l.current AND l.tsv @@ q.words
ORDER BY rank DESC, l.chunk_id LIMIT 10"""


def texts(passages: list[str], count: int) -> Iterator[str]:
    rng = random.Random(11)
    for _ in range(count):
        start = rng.randrange(len(passages) - 8)
        yield " ".join(passages[start : start + rng.randint(4, 8)])


def load(store: Store, passages: list[str], size: int) -> Collection:
    collection = store.collection(f"large-{size}")
    if collection.count() < size * 0.99:
        began = time.perf_counter()
        documents = (Document(text, id=f"{place:07}") for place, text in enumerate(texts(passages, size)))
        report = collection.ingest(documents, chunk_size=100_000, chunk_overlap=0)
        spent = time.perf_counter() - began
        print(
            f"{size:,} chunks ingested in {spent:.0f} s, {size / spent:,.0f} a second, {report.advice}",
            flush=True,
        )
        began = time.perf_counter()
        collection.refresh_statistics()
        print(f"statistics in {time.perf_counter() - began:.0f} s", flush=True)
        with store.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("VACUUM ANALYZE"))
    return collection


def questions(passages: list[str], count: int) -> list[str]:
    rng = random.Random(5)
    found = []
    while len(found) < count:
        start = rng.randrange(len(passages) - 8)
        words = sorted({word for word in " ".join(passages[start : start + 6]).split() if word.isalpha()})
        if len(words) >= 8:
            found.append(" ".join(rng.sample(words, 8)))
    return found


def ask(collection: Collection, question: str, budget: int | None = None) -> tuple[list[str], float, Any]:
    kept = asking.POSTING_BUDGET
    if budget is not None:
        asking.POSTING_BUDGET = budget  # type: ignore[misc]
    try:
        began = time.perf_counter()
        result = collection.search(question, channels="text", candidates=10, limit=10)
        spent = (time.perf_counter() - began) * 1000
    finally:
        asking.POSTING_BUDGET = kept  # type: ignore[misc]
    return [hit.record_id for hit in result.hits], spent, result.diagnostics.channels["text"]


def measure(store: Store, collection: Collection, asked: list[str]) -> None:
    ours, whole, plain, same, certain, differing = [], [], [], 0, 0, 0
    statement = sa.text(PLAIN.format(collection_id=collection._state.row.collection_id))
    for question in asked:
        found, spent, channel = ask(collection, question)
        everything, spent_whole, _ = ask(collection, question, budget=10**12)
        with store.engine.connect() as connection:
            began = time.perf_counter()
            connection.execute(statement, {"question": question}).all()
            plain.append((time.perf_counter() - began) * 1000)
        ours.append(spent)
        whole.append(spent_whole)
        same += found == everything
        certain += not channel.truncated
        differing += not channel.truncated and found != everything
    ratios = [slow / fast for slow, fast in zip(plain, ours, strict=True)]
    print(
        f"| {collection.name} | {statistics.median(ours):.1f} | {statistics.median(whole):.1f}"
        f" | {statistics.median(plain):.1f} | {statistics.median(ratios):.1f} | {same / len(asked):.0%}"
        f" | {certain / len(asked):.0%} | {differing} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sizes", default="100000,1000000")
    parser.add_argument("--questions", type=int, default=60)
    options = parser.parse_args()
    passages = [json.loads(line)["text"] for line in options.passages.open()]
    asked = questions(passages, options.questions)
    with Store.embedded(options.data, embedder=HashEmbedder(8)) as store:
        collections = [load(store, passages, int(size)) for size in options.sizes.split(",")]
        print(
            "| collection | ms | unbounded ms | ts_rank_cd ms | times faster | same top ten | certified | wrong |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for collection in collections:
            ask(collection, asked[0])
            measure(store, collection, asked)


if __name__ == "__main__":
    main()
