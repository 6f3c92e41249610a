"""What it is worth that one batch is embedded while the last is written: the same ingest with and without.

    python -m benchmarks.overlap PASSAGES.jsonl [--chunks 5000] [--rounds 3]

The embedder takes a fixed time a text without using the processor, as one behind a network or on a GPU does. "In turn"
is what a pool of one connection gets. Rounds take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from benchmarks.bm25_scale import texts as joined
from cayu_pg import Document, HashEmbedder, Store, migrate
from cayu_pg.embedded import EmbeddedServer


class Remote(HashEmbedder):
    """A HashEmbedder that lets one wait."""

    def __init__(self, microseconds: int) -> None:
        super().__init__(64)
        self.seconds = microseconds / 1e6

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        time.sleep(self.seconds * len(texts))
        return super().encode_documents(texts)


def ingested(engine: sa.Engine, documents: list[Document], microseconds: int) -> float:
    store = Store(engine, embedder=Remote(microseconds))
    collection = store.collection("overlap")
    began = time.perf_counter()
    collection.ingest(documents, chunk_size=100_000, chunk_overlap=0)
    spent = time.perf_counter() - began
    store.drop_collection("overlap")
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages", type=Path)
    parser.add_argument("--chunks", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    passages = [json.loads(line)["text"] for line in options.passages.open()]
    texts = list(joined(passages, options.chunks))
    documents = [Document(text, id=f"{number:07}") for number, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as temporary, EmbeddedServer.start(Path(temporary) / "data") as server:
        migrate(server.url)
        engines = {
            "in turn": sa.create_engine(server.url, pool_size=1),
            "beside": sa.create_engine(server.url),
        }
        print("| µs a text | in turn, chunks/s | beside, chunks/s | times |\n|---|---|---|---|")
        for microseconds in (0, 200, 500, 2_000):
            spent: dict[str, list[float]] = {name: [] for name in engines}
            for _ in range(options.rounds):
                for name, engine in engines.items():
                    spent[name].append(ingested(engine, documents, microseconds))
            median = {name: statistics.median(each) for name, each in spent.items()}
            rates = " | ".join(f"{len(texts) / seconds:,.0f}" for seconds in median.values())
            print(f"| {microseconds} | {rates} | {median['in turn'] / median['beside']:.2f} |", flush=True)
        for engine in engines.values():
            engine.dispose()


if __name__ == "__main__":
    main()
