"""nDCG@10 of the keyword channel on every test collection of a folder, beside the exact BM25 baseline.

    python benchmarks/text_quality.py DATASETS

DATASETS holds one BEIR-style folder a collection (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv). Text is title + " "
+ text, one chunk a document; queries of qmsum see only documents of their own scope, through a filter. nDCG has
linear gain. Prints a Markdown table. The baselines are those of bm25s (lucene, k1 1.2, b 0.75) with the language's
Snowball stemmer, measured elsewhere.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cayu_pg import Collection, Document, HashEmbedder, Store

SETTINGS = {
    "scifact": ("english", "standard", 0.686),
    "cranfield": ("english", "standard", 0.424),
    "cosqa": ("english", "standard", 0.338),
    "qmsum": ("english", "standard", 0.471),
    "xquad-en": ("english", "standard", 0.965),
    "xquad-es": ("spanish", "standard", 0.961),
    "xquad-de": ("german", "standard", 0.940),
    "xquad-ru": ("russian", "standard", 0.952),
    "xquad-ar": ("arabic", "standard", 0.934),
    "xquad-th": ("simple", "ngram", 0.943),
    "xquad-zh": ("simple", "ngram", 0.965),
}


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def judgements(path: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    with path.open() as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            found.setdefault(row["query_id"], {})[row["doc_id"]] = int(row["grade"])
    return found


def ndcg(ranked: list[str], grades: dict[str, int]) -> float:
    def gain(values: list[int]) -> float:
        return sum(value / math.log2(place + 2) for place, value in enumerate(values[:10]))

    return gain([grades.get(each, 0) for each in ranked]) / gain(sorted(grades.values(), reverse=True))


def measure(collection: Collection, folder: Path) -> tuple[float, float, float]:
    """Mean nDCG@10, share of queries certified exact, median milliseconds of the statement."""
    grades = judgements(folder / "qrels.tsv")
    scores, certain, times = [], 0, []
    for query in rows(folder / "queries.jsonl.gz"):
        if query["id"] not in grades:
            continue
        scope = (query.get("meta") or {}).get("scope")
        where = None if scope is None else {"scope": scope}
        result = collection.search(query["text"], channels="text", limit=10, where=where)
        channel = result.diagnostics.channels["text"]
        certain += not channel.truncated
        times.append(channel.milliseconds)
        scores.append(ndcg([hit.record_id for hit in result.hits], grades[query["id"]]))
    return statistics.fmean(scores), certain / len(scores), statistics.median(times)


def main(datasets: Path) -> None:
    print(
        "| collection | configuration | analyzer | nDCG@10 | BM25 baseline | difference | exact | median ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with (
        tempfile.TemporaryDirectory() as temporary,
        Store.embedded(Path(temporary) / "data", embedder=HashEmbedder(8)) as store,
    ):
        for name, (config, analyzer, baseline) in SETTINGS.items():
            collection = store.collection(name, text_config=config, analyzer=analyzer)
            collection.ingest(
                (
                    Document(
                        f"{row.get('title') or ''} {row['text']}".strip(),
                        id=row["id"],
                        metadata={"scope": (row.get("meta") or {}).get("scope")},
                    )
                    for row in rows(datasets / name / "corpus.jsonl.gz")
                ),
                chunk_size=1_000_000,
                chunk_overlap=0,
            )
            collection.refresh_statistics()
            score, certain, median = measure(collection, datasets / name)
            print(
                f"| {name} | {config} | {analyzer} | {score:.3f} | {baseline:.3f} | {score - baseline:+.3f}"
                f" | {certain:.0%} | {median:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
