"""Embedding throughput: what an ingest gets, beside sentence-transformers alone on the same texts.

    python -m benchmarks.embedding PASSAGES.jsonl [--texts 1500] [--rounds 4]

PASSAGES has rows with "text"; a text joins 1 to 8 neighbouring passages, so that lengths differ. Alone: one call of
`encode` for all texts, which sorts them by length. By batches: `SentenceTransformerEmbedder` called as an ingest calls
it, with batches of BATCH_CHUNKS (500) texts, each sorted for itself, and with smaller ones. Rounds take turns, with
other texts each; seconds of the clock, and of the processor, which tell more on a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from cayu_pg.embedding import SentenceTransformerEmbedder, Vectors, find_model
from cayu_pg.ingesting import BATCH_CHUNKS


def mixed(passages: list[str], count: int, rng: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        start = rng.randrange(len(passages) - 8)
        found[" ".join(passages[start : start + rng.randint(1, 8)])] = None
    return list(found)


def by_batches(embedder: SentenceTransformerEmbedder, texts: Sequence[str], size: int) -> Vectors:
    return np.concatenate(
        [embedder.encode_documents(texts[start : start + size]) for start in range(0, len(texts), size)]
    )


def seconds(call: Callable[[], Vectors]) -> tuple[float, float, Vectors]:
    began, processor = time.perf_counter(), time.process_time()
    vectors = call()
    return time.perf_counter() - began, time.process_time() - processor, vectors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages", type=Path)
    parser.add_argument("--texts", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    passages = [json.loads(line)["text"] for line in options.passages.open()]
    embedder = SentenceTransformerEmbedder()
    embedder.encode_documents(["warm"])
    alone = SentenceTransformer(find_model(embedder.model), local_files_only=True)
    rng = random.Random(3)
    spent: dict[str, list[tuple[float, float]]] = {}
    for turn in range(options.rounds):
        texts = mixed(passages, options.texts, rng)
        ways: dict[str, Callable[[], Vectors]] = {
            "alone": lambda given=texts: alone.encode(
                given, normalize_embeddings=True, show_progress_bar=False
            )
        }
        for size in (BATCH_CHUNKS, 100):
            ways[f"batches of {size}"] = lambda given=texts, size=size: by_batches(embedder, given, size)
        order = list(ways) if turn % 2 == 0 else list(reversed(ways))
        made = {}
        for name in order:
            clock, processor, made[name] = seconds(ways[name])
            spent.setdefault(name, []).append((clock, processor))
        for vectors in made.values():
            assert np.allclose(vectors, made["alone"], atol=1e-5)
    print("| | texts/s | of alone | of alone, by processor time |\n|---|---|---|---|")
    for name, found in spent.items():
        ratios = [
            statistics.median(
                one[kind] / other[kind] for one, other in zip(spent["alone"], found, strict=True)
            )
            for kind in (0, 1)
        ]
        rate = options.texts / statistics.median(clock for clock, _ in found)
        print(f"| {name} | {rate:.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
