"""Retrieval quality on a BEIR-style folder: nDCG@10 and recall@100 of each channel and of their fusion.

    python benchmarks/quality.py FOLDER [--url URL] [--text-config english] [--analyzer standard]

FOLDER holds corpus.jsonl[.gz] (id, title, text), queries.jsonl[.gz] (id, text) and qrels.tsv (query_id, doc_id,
grade). Text is title + " " + text, one chunk a document. nDCG has linear gain, as trec_eval's ndcg_cut. Run again
on the same --url, nothing is embedded twice. Without --url a temporary embedded server is used.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cayu_pg import Collection, Document, Store

CHANNELS = {"text": ("text",), "vector": ("vector",), "hybrid": ("vector", "text")}


def rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    path = folder / f"{name}.jsonl.gz"
    if not path.exists():
        path = folder / f"{name}.jsonl"
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from map(json.loads, lines)


def judgements(folder: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    with (folder / "qrels.tsv").open() as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            found.setdefault(row["query_id"], {})[row["doc_id"]] = int(row["grade"])
    return found


def ndcg(ranked: list[str], grades: dict[str, int], depth: int = 10) -> float:
    def gain(values: list[int]) -> float:
        return sum(value / math.log2(place + 2) for place, value in enumerate(values[:depth]))

    return gain([grades.get(each, 0) for each in ranked]) / gain(sorted(grades.values(), reverse=True))


def recall(ranked: list[str], grades: dict[str, int], depth: int = 100) -> float:
    relevant = {each for each, grade in grades.items() if grade > 0}
    return len(relevant.intersection(ranked[:depth])) / len(relevant)


def measure(collection: Collection, folder: Path) -> None:
    grades = judgements(folder)
    queries = [row for row in rows(folder, "queries") if row["id"] in grades]
    for name, channels in CHANNELS.items():
        scores, recalls, times = [], [], []
        for query in queries:
            began = time.perf_counter()
            result = collection.search(query["text"], channels=channels, limit=100)
            times.append(time.perf_counter() - began)
            ranked = [hit.record_id for hit in result.hits]
            scores.append(ndcg(ranked, grades[query["id"]]))
            recalls.append(recall(ranked, grades[query["id"]]))
        print(
            f"{folder.name:12} {name:7} nDCG@10 {statistics.fmean(scores):.4f}"
            f"  recall@100 {statistics.fmean(recalls):.4f}  median {statistics.median(times) * 1000:.1f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--text-config", default="english")
    parser.add_argument("--analyzer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = Store(options.url) if options.url else Store.embedded(Path(temporary) / "data")
        with store:
            collection = store.collection(
                options.folder.name, text_config=options.text_config, analyzer=options.analyzer
            )
            documents = (
                Document(f"{row.get('title') or ''} {row['text']}".strip(), id=row["id"])
                for row in rows(options.folder, "corpus")
            )
            report = collection.ingest(documents, chunk_size=1_000_000, chunk_overlap=0)
            print(f"{report.embeddings_computed} embedded in {report.seconds:.1f} s")
            measure(collection, options.folder)


if __name__ == "__main__":
    main()
