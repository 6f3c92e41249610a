"""What each command does."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cayu_pg import embedded
from cayu_pg.cli import printing
from cayu_pg.cli.reading import find_files, read_file
from cayu_pg.collection import Collection
from cayu_pg.embedding import DEFAULT_MODEL, Embedder, HashEmbedder, SentenceTransformerEmbedder
from cayu_pg.errors import CayuPgError, InvalidInput, NotFound
from cayu_pg.ingesting import IngestReport
from cayu_pg.migrating import migrate
from cayu_pg.query import SearchResult
from cayu_pg.records import Document
from cayu_pg.sql.indexes import MIN_CHUNKS
from cayu_pg.store import Store


@contextmanager
def open_store(options: Namespace) -> Iterator[Store]:
    """The store that --url names, or the embedded one, for the tenant; closed at the end."""
    if options.url:
        store = Store(options.url, schema=options.schema)
    else:
        store = Store.embedded(options.data, schema=options.schema)
    with store:  # what `for_tenant` gives would close nothing
        yield store.for_tenant(options.tenant)


def open_embedder(model: str) -> Embedder:
    """The embedder of that name: hash-N, or a sentence-transformers model."""
    if model.startswith("hash-") and model[5:].isdigit():
        return HashEmbedder(int(model[5:]))
    return SentenceTransformerEmbedder(model)


def open_existing(store: Store, options: Namespace) -> Collection:
    """The collection that --collection names, with the embedder of --model or of its own model."""
    model = options.model or _model_of(store, options.collection)
    return store.collection(options.collection, embedder=open_embedder(model), create=False)


def run_migrate(options: Namespace) -> int:
    """`cayu-pg migrate`."""
    if options.url:
        migrate(options.url, schema=options.schema, revision=options.revision)
    else:
        server = embedded.EmbeddedServer.start(options.data)
        try:
            migrate(server.url, schema=options.schema, revision=options.revision)
        finally:
            server.close()
    print(f"schema {options.schema} is at {options.revision}")
    return 0


def run_ingest(options: Namespace) -> int:
    """`cayu-pg ingest`."""
    unread: list[tuple[Path, str]] = []
    files = list(find_files(options.paths))
    with open_store(options) as store:
        collection = store.collection(
            options.collection,
            text_config=options.text_config,
            analyzer=options.analyzer,
            embedder=open_embedder(options.model or _model_of(store, options.collection)),
        )
        with printing.progress_bar("ingesting", shown=not options.json, total=len(files)) as progress:
            report = collection.ingest(
                _documents(files, unread),
                chunk_size=options.chunk_size,
                chunk_overlap=options.chunk_overlap,
                on_error="skip",
                progress=progress,
                defer_indexes=options.defer_indexes,
            )
        built = collection.reindex() if report.chunks_added else []
    for path, reason in unread:
        print(f"cayu-pg: {path}: {reason}", file=sys.stderr)
    for refusal in report.refused:
        print(f"cayu-pg: {refusal.id or refusal.offset}: {refusal.reason}", file=sys.stderr)
    _print_report(report.model_copy(update={"advice": []}), unread, options.json)
    if built and not options.json:
        print(f"indexes: built {', '.join(built)}")
    named = {path for path in options.paths if not path.is_dir()}
    failed = any(path in named for path, _ in unread) or any(
        Path(each.id or "") in named for each in report.refused
    )
    return 1 if failed else 0


def _model_of(store: Store, name: str) -> str:
    """The model of a collection that has vectors, else the default one."""
    try:  # to look at it no model is needed, and none is loaded
        return store.collection(name, embedder=HashEmbedder(), create=False).model or DEFAULT_MODEL
    except NotFound:
        return DEFAULT_MODEL


def _documents(files: list[Path], unread: list[tuple[Path, str]]) -> Iterator[Document]:
    """Every readable file; what cannot be read is noted and passed over."""
    for path in files:
        try:
            read = read_file(path)
            yield Document(read.text, id=path.as_posix(), title=read.title, source=path.as_posix())
        except (CayuPgError, OSError) as error:
            unread.append((path, str(error)))


def _print_report(report: IngestReport, unread: list[tuple[Path, str]], as_json: bool) -> None:
    if as_json:
        facts = report.model_dump(mode="json")
        facts["refused"] += [{"id": path.as_posix(), "reason": reason} for path, reason in unread]
        print(json.dumps(facts))
        return
    printing.print_report(report, len(unread))


def run_search(options: Namespace) -> int:
    """`cayu-pg search`."""
    result = _search(options)
    if options.json:
        print(result.model_dump_json())
    else:
        printing.print_hits(result)
    return 0


def run_explain(options: Namespace) -> int:
    """`cayu-pg explain`."""
    result = _search(options)
    print(json.dumps({"explanation": result.explain()}) if options.json else result.explain())
    return 0


def _search(options: Namespace) -> SearchResult:
    with open_store(options) as store:
        return open_existing(store, options).search(
            options.query,
            limit=options.limit,
            channels=options.channel or ("vector", "text"),
            where=options.where,
            mode=options.mode,
            fuzzy=options.fuzzy,
            per_record=options.per_record,
            exact=options.exact,
            fusion=options.fusion,
        )


def run_collections(options: Namespace) -> int:
    """`cayu-pg collections`."""
    with open_store(options) as store:
        found = store.collections()
    if options.json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        printing.print_collections(found)
    return 0


def run_reindex(options: Namespace) -> int:
    """`cayu-pg reindex`."""
    min_chunks = MIN_CHUNKS if options.min_chunks is None else options.min_chunks
    if min_chunks < 1:
        raise InvalidInput("--min-chunks", "a number from 1", str(min_chunks))
    with open_store(options) as store:
        collection = open_existing(store, options)
        with printing.build_bar(collection.index_progress, shown=not options.json):
            built = collection.reindex(min_chunks=min_chunks, timeout=options.timeout)
    if options.json:
        print(json.dumps({"built": built}))
    else:
        print(f"built {', '.join(built)}" if built else "nothing to build")
    return 0


def run_doctor(options: Namespace) -> int:
    """`cayu-pg doctor`."""
    with open_store(options) as store:
        report = store.doctor(timeout=options.timeout)
    print(report.model_dump_json() if options.json else report)
    return 1 if report.level == "error" else 0


def run_embedded(options: Namespace) -> int:
    """`cayu-pg embedded start|stop|status`."""
    facts: dict[str, Any]
    if options.action == "start":
        server = embedded.EmbeddedServer.start(options.data, keep=True)
        facts = {"running": True, "url": server.url}
        server.close()
    elif options.action == "stop":
        facts = {"stopped": embedded.stop(options.data)}
    else:
        facts = asdict(embedded.status(options.data))
    if options.json:
        print(json.dumps(facts, default=str))
    else:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    return 0
