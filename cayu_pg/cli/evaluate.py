"""`cayu-pg evaluate`: a test collection ingested and asked, its channels and fusions measured and compared."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cayu_pg.beir import BeirQuery, read_corpus, read_qrels, read_queries
from cayu_pg.cli import printing
from cayu_pg.cli.commands import open_embedder, open_store
from cayu_pg.cli.evaluation_svg import comparison_svg
from cayu_pg.collection import Collection
from cayu_pg.defaults import TEXT_CONFIG
from cayu_pg.errors import InvalidInput
from cayu_pg.evaluating import EQUAL, EvaluationReport, JudgedQuery, judged_queries
from cayu_pg.tuning import TuningReport

SUMMARY = "measure channels and fusions on a folder of documents, queries and judgements"
WHOLE = 50_000_000  # characters a chunk: one chunk a document


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `evaluate`, save those that all commands have."""
    command.add_argument(
        "folder", type=Path, metavar="FOLDER", help="corpus, queries and qrels as BEIR has them"
    )
    command.add_argument("--split", help="judgements in qrels/SPLIT.tsv (test, dev, train, or qrels.tsv)")
    command.add_argument(
        "--scope-key",
        metavar="KEY",
        help="search only documents with the query's own value, as in meta.scope",
    )
    command.add_argument("-c", "--collection", help="collection to ingest into (the name of the folder)")
    command.add_argument("--text-config", default=TEXT_CONFIG, help="text search configuration (%(default)s)")
    command.add_argument("--analyzer", help="standard, or ngram for scripts without spaces")
    command.add_argument(
        "--model",
        default="sentence-transformers/all-MiniLM-L6-v2",
        help="embedding model by name or path; hash-64 needs no model (%(default)s)",
    )
    command.add_argument(
        "--fusion", action="append", default=[], metavar="NAME", help="measure this saved configuration, too"
    )
    command.add_argument(
        "--tune", metavar="NAME", help="tune on every other query, save as NAME, and measure on the rest"
    )
    command.add_argument("-k", type=int, default=10, help="depth of nDCG (%(default)s)")
    command.add_argument("--recall-k", type=int, default=100, help="depth of recall (%(default)s)")
    command.add_argument("--svg", type=Path, metavar="FILE", help="write a picture that compares them")


def run_evaluate(options: Namespace) -> int:
    """`cayu-pg evaluate`."""
    qrels: Mapping[str, Mapping[str, int]] = read_qrels(options.folder, options.split)
    queries = judged_queries(
        [_query(each, options.scope_key) for each in read_queries(options.folder) if each.id in qrels], qrels
    )
    tuned = None
    with open_store(options) as store:
        collection = store.collection(
            options.collection or options.folder.resolve().name,
            text_config=options.text_config,
            analyzer=options.analyzer,
            embedder=open_embedder(options.model),
        )
        _ingest(collection, options)
        if options.tune is not None:
            held_out = [query.id for query in queries[1::2]]
            tuned = collection.tune(
                queries,
                qrels,
                name=options.tune,
                held_out=held_out,
                k=options.k,
                progress=printing.counter("tuning"),
            )
            qrels = {query: qrels[query] for query in held_out}
        report = collection.evaluate(
            queries,
            qrels,
            fusions=[*options.fusion, *([options.tune] if options.tune is not None else [])],
            k=options.k,
            recall_k=options.recall_k,
            progress=printing.counter("searching"),
        )
    _write_picture(options.svg, report)
    _print(report, tuned, options.json)
    return 0


def _query(query: BeirQuery, scope_key: str | None) -> JudgedQuery:
    if scope_key is None:
        return JudgedQuery(query.id, query.text)
    key = scope_key.removeprefix("metadata.").removeprefix("meta.")
    if key not in query.metadata:
        raise InvalidInput("--scope-key", f"{key} in the metadata of every query", f"none in {query.id}")
    return JudgedQuery(query.id, query.text, {key: query.metadata[key]})


def _ingest(collection: Collection, options: Namespace) -> None:
    with printing.progress_bar("ingesting", shown=not options.json) as progress:
        report = collection.ingest(
            read_corpus(options.folder), chunk_size=WHOLE, chunk_overlap=0, on_error="skip", progress=progress
        )
    for refusal in report.refused:
        print(f"cayu-pg: {refusal.id or refusal.offset}: {refusal.reason}", file=sys.stderr)
    if report.chunks_added or report.chunks_removed:
        collection.refresh_statistics()
        collection.reindex()


def _write_picture(path: Path | None, report: EvaluationReport) -> None:
    if path is None:
        return
    try:
        path.write_text(comparison_svg(report), encoding="utf-8")
    except OSError as error:
        raise InvalidInput("--svg", "a file that can be written", f"{path}: {error.strerror}") from error


def _print(report: EvaluationReport, tuned: TuningReport | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_facts(report, tuned)))
        return
    first = report.measured[EQUAL].evaluation
    embedding = report.embedding
    print(f"{report.collection}: {len(first.queries)} queries, embedded in {embedding.p50:.1f} ms (p50) each")
    printing.print_table(
        ["", f"nDCG@{first.k}", f"recall@{first.recall_k}", "MRR", "MAP", "p50 ms", "p95 ms", "p99 ms"],
        [
            [
                name,
                *(f"{value:.4f}" for value in (e.ndcg, e.recall, e.mrr, e.map)),
                *(f"{value:.1f}" for value in (each.latency.p50, each.latency.p95, each.latency.p99)),
            ]
            for name, each in report.measured.items()
            for e in [each.evaluation]
        ],
    )
    for name, difference in report.differences.items():
        verdict = ", within noise" if difference.within_noise else ""
        print(f"{name} - {EQUAL}: nDCG@{first.k} {difference}{verdict}")
    if tuned is not None:
        print(f"tuned on {tuned.training.queries} other queries: {tuned}")


def _facts(report: EvaluationReport, tuned: TuningReport | None) -> dict[str, Any]:
    facts = report.model_dump(mode="json")
    if tuned is not None:
        facts["tuned"] = tuned.model_dump(mode="json")
    return facts
