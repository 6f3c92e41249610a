"""Results for people: tables and a progress bar, by rich where it is installed, as plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cayu_pg.errors import MissingDependency
from cayu_pg.ingesting import IngestProgress, IngestReport
from cayu_pg.query import SearchResult
from cayu_pg.sql.collections import CollectionSummary


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; the last column takes the room that is left."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingDependency("rich", "cli") from error
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = 160
    console.print(table)


def print_hits(result: SearchResult) -> None:
    """The hits of a search with their ranks in both channels."""
    if not result.hits:
        print("nothing found")
    else:
        print_table(
            ["", "score", "vector", "text", "record", "passage"],
            [
                [
                    str(place),
                    f"{hit.score:.4f}",
                    _rank(result, place - 1, "vector"),
                    _rank(result, place - 1, "text"),
                    f"{hit.record_id}#{hit.ordinal}",
                    _shortened(hit.text),
                ]
                for place, hit in enumerate(result.hits, start=1)
            ],
        )
    for name, channel in result.diagnostics.channels.items():
        if channel.reason:
            print(f"{name}: {channel.reason}")


def print_report(report: IngestReport, unread: int) -> None:
    """What an ingest did, in a few lines."""
    print(
        f"records: {report.records_added} added, {report.records_changed} changed,"
        f" {report.records_unchanged} unchanged, {len(report.refused) + unread} refused"
    )
    print(f"chunks: {report.chunks_added} added, {report.chunks_kept} kept, {report.chunks_removed} removed")
    print(f"embeddings: {report.embeddings_computed} computed, {report.embeddings_reused} reused")
    print(f"seconds: {report.seconds:.1f}")


def print_collections(found: Sequence[CollectionSummary]) -> None:
    """The collections of a tenant."""
    if not found:
        print("no collections")
        return
    print_table(
        ["collection", "records", "chunks", "configuration", "analyzer", "model"],
        [
            [
                each.name,
                str(each.records),
                str(each.chunks),
                each.text_config,
                each.analyzer,
                each.model or "-",
            ]
            for each in found
        ],
    )


@contextmanager
def progress_bar(title: str, *, shown: bool) -> Iterator[Callable[[IngestProgress], None] | None]:
    """A callback that keeps a progress line current on a terminal; None where there is none."""
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError as error:
        raise MissingDependency("rich", "cli") from error
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title)

        def update(state: IngestProgress) -> None:
            rate = state.chunks / state.seconds if state.seconds else 0.0
            progress.update(
                task,
                description=f"{title}: {state.documents} documents, {state.chunks} chunks"
                f" ({rate:.0f}/s), {state.embeddings_computed} embedded",
            )

        yield update


def _rank(result: SearchResult, place: int, channel: str) -> str:
    matches = result.hits[place].matches
    return next((str(match.rank) for match in matches if match.channel == channel), "-")


def _shortened(text: str, length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
