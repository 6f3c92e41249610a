"""A large load by one command: rows a second, memory of the client along the way, index builds, and the same again.

    python -m benchmarks.load PASSAGES.jsonl [--chunks 1000000] [--again 10000]

PASSAGES has rows with "text"; a chunk joins 4 to 8 neighbouring passages from a random place (fixed seed) and is a
document of its own, made as it is asked for. HashEmbedder(64), an embedded server of its own with default settings,
`defer_indexes=True`. Then word statistics, and the first `--again` documents a second time, unchanged: texts
embedded, rows written (`pg_stat_user_tables`), and the time of a document beside that of the first run. Last come a
few searches, to show that the indexes serve.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import sqlalchemy as sa

from benchmarks.bm25_scale import questions, texts
from cayu_pg import Collection, Document, HashEmbedder, IngestProgress, Store

STEPS = 10
WRITTEN = """
SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables WHERE schemaname = 'cayu'"""
SIZES = """
SELECT x.relname, pg_size_pretty(pg_relation_size(x.oid)) FROM pg_class x
JOIN pg_namespace n ON n.oid = x.relnamespace
WHERE n.nspname = 'cayu' AND x.relname ~ '^(hnsw|gin_words|gin_metadata)_[0-9]' ORDER BY 1"""


class Along:
    """Notes the rate and the memory at every tenth of the load, and how long each index took to build."""

    def __init__(self, chunks: int) -> None:
        self.process = psutil.Process()
        self.step = max(1, chunks // STEPS)
        self.due = self.step
        self.before = (0, 0.0)
        self.began: tuple[str, float] | None = None

    def __call__(self, state: IngestProgress) -> None:
        if state.index is not None:
            self.end_build()
            self.began = (state.index, time.perf_counter())
        elif state.chunks >= self.due:
            chunks, seconds = state.chunks - self.before[0], state.seconds - self.before[1]
            memory = self.process.memory_info().rss / 1e6
            print(f"{state.chunks:,} chunks: {chunks / seconds:,.0f}/s, client {memory:,.0f} MB", flush=True)
            self.before, self.due = (state.chunks, state.seconds), self.due + self.step

    def end_build(self) -> None:
        if self.began is not None:
            print(f"{self.began[0]} built in {time.perf_counter() - self.began[1]:.0f} s", flush=True)
        self.began = None


def documents(passages: list[str], count: int) -> Iterator[Document]:
    for number, text in enumerate(texts(passages, count)):
        yield Document(text, id=f"{number:08}")


def load(collection: Collection, passages: list[str], chunks: int) -> float:
    """Seconds a document of the load, without its indexes."""
    along = Along(chunks)
    began = time.perf_counter()
    report = collection.ingest(
        documents(passages, chunks),
        chunk_size=100_000,
        chunk_overlap=0,
        progress=along,
        defer_indexes=True,
    )
    along.end_build()
    print(
        f"{report.chunks_added:,} chunks in {report.seconds:,.0f} s, {report.chunks_added / report.seconds:,.0f}/s,"
        f" with indexes {time.perf_counter() - began:,.0f} s; {report.embeddings_computed:,} embedded"
    )
    return report.seconds / chunks


def again(
    store: Store, collection: Collection, passages: list[str], count: int, chunks: int, first: float
) -> None:
    def written() -> int:
        with store.engine.connect() as connection:
            connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
            connection.rollback()
            return int(connection.scalar(sa.text(WRITTEN)) or 0)

    before = written()
    report = collection.ingest(
        islice(documents(passages, chunks), count), chunk_size=100_000, chunk_overlap=0
    )
    each = report.seconds / count
    print(
        f"{report.records_unchanged:,} unchanged documents again: {report.embeddings_computed} embedded,"
        f" {written() - before} rows written, {each * 1e6:.0f} µs a document, {each / first:.2f} of the first run"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages", type=Path)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--again", type=int, default=10_000)
    options = parser.parse_args()
    passages = [json.loads(line)["text"] for line in options.passages.open()]
    with (
        tempfile.TemporaryDirectory() as temporary,
        Store.embedded(Path(temporary) / "data", embedder=HashEmbedder(64)) as store,
    ):
        collection = store.collection("load")
        first = load(collection, passages, options.chunks)
        with store.engine.connect() as connection:
            print(", ".join(f"{name} {size}" for name, size in connection.execute(sa.text(SIZES))))
        again(store, collection, passages, options.again, options.chunks, first)
        spent = []
        for question in questions(passages, 20):
            began = time.perf_counter()
            paths = collection.search(question).diagnostics.channels
            spent.append((time.perf_counter() - began) * 1000)
        print(
            f"20 searches: median {statistics.median(spent):.0f} ms,"
            f" {', '.join(f'{name} {each.path}' for name, each in paths.items())}"
        )


if __name__ == "__main__":
    main()
