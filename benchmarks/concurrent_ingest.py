"""Two ingests of 50,000 chunks each into one collection at once: deadlocks, waits, and the statistics afterwards.

    python -m benchmarks.concurrent_ingest PASSAGES.jsonl [CHUNKS]

A third connection samples pg_stat_activity for backends that wait for a lock. After `refresh_statistics()` the
statistics are compared with those of one ingest of the same documents into another collection.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sqlalchemy as sa

from benchmarks.bm25_scale import texts
from cayu_pg import Document, HashEmbedder, Store

WAITING = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - l.waitstart)), 0)
FROM pg_locks l WHERE NOT l.granted"""
STATISTICS = """
SELECT s.lexeme, s.document_frequency FROM cayu.lexeme_statistics s
JOIN cayu.collections c ON c.id = s.collection_id WHERE c.name = :name ORDER BY 1"""


def main(path: Path, chunks: int) -> None:
    passages = [json.loads(line)["text"] for line in path.open()]
    documents = [Document(text, id=f"{place:07}") for place, text in enumerate(texts(passages, 2 * chunks))]
    with (
        tempfile.TemporaryDirectory() as temporary,
        Store.embedded(Path(temporary) / "data", embedder=HashEmbedder(8)) as store,
    ):
        longest, done = [0.0], threading.Event()

        def watch() -> None:
            with store.engine.connect() as connection:
                while not done.wait(0.05):
                    longest[0] = max(longest[0], float(connection.scalar(sa.text(WAITING)) or 0))
                    connection.rollback()

        def ingest(part: list[Document]) -> float:
            began = time.perf_counter()
            store.collection("both").ingest(part, chunk_size=100_000, chunk_overlap=0)
            return time.perf_counter() - began

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(2) as pool:
            seconds = list(pool.map(ingest, [documents[:chunks], documents[chunks:]]))
        done.set()
        watcher.join()
        single = store.collection("single")
        single.ingest(documents, chunk_size=100_000, chunk_overlap=0)
        store.collection("both").refresh_statistics()
        single.refresh_statistics()
        with store.engine.connect() as connection:
            both, one = (
                connection.execute(sa.text(STATISTICS), {"name": name}).all() for name in ("both", "single")
            )
        print(
            f"two ingests of {chunks:,}: {max(seconds):.0f} s, longest lock wait seen {longest[0] * 1000:.0f} ms,"
            f" no deadlock; {len(one):,} words, statistics equal: {both == one}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 50_000)
