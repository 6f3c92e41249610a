"""Results for people: tables and a progress bar, by rich where it is installed, as plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from cayu_pg.errors import CayuPgError, MissingDependency
from cayu_pg.ingesting import IngestProgress, IngestReport
from cayu_pg.query import SearchResult
from cayu_pg.sql.collections import CollectionSummary, IndexHealth
from cayu_pg.sql.indexes import IndexProgress


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
    """The collections of a tenant, with the size of their indexes and what is wrong with them."""
    if not found:
        print("no collections")
        return
    print_table(
        ["collection", "records", "chunks", "configuration", "analyzer", "model", "features", "indexes"],
        [
            [
                each.name,
                str(each.records),
                str(each.chunks),
                each.text_config,
                each.analyzer,
                each.model or "-",
                ", ".join(each.features) or "-",
                ", ".join(map(_index, each.indexes)) or "-",
            ]
            for each in found
        ],
    )
    for each in found:
        if any(index.state in ("missing", "invalid") for index in each.indexes):
            print(f"{each.name} lacks an index; build it with: cayu-pg reindex -c {each.name}")


def _index(index: IndexHealth) -> str:
    return f"{index.kind} {_size(index.bytes) if index.state == 'valid' else index.state}"


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}"


@contextmanager
def progress_bar(
    title: str, *, shown: bool, total: int | None = None
) -> Iterator[Callable[[IngestProgress], None] | None]:
    """A callback that keeps a progress line current on a terminal; None where there is none.

    `total` is how many documents there are, for the time left.
    """
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    with _line(title) as show:
        yield lambda state: show(f"{title}: {describe_ingest(state, total)}")


def describe_ingest(state: IngestProgress, total: int | None = None) -> str:
    """How much is done, how fast, and of `total` documents how long the rest will take at that rate."""
    if state.index is not None:
        return f"building {state.index}"
    of = "" if total is None else f" of {total}"
    rate = state.chunks / state.seconds if state.seconds else 0.0
    done = (
        f"{state.documents}{of} documents, {state.chunks} chunks ({rate:.0f}/s),"
        f" {state.embeddings_computed} embedded"
    )
    if total is None or not state.documents:
        return done
    left = timedelta(seconds=round(state.seconds / state.documents * max(0, total - state.documents)))
    return f"{done}, {left} left"


def counter(title: str) -> Callable[[int, int], None] | None:
    """A callback that keeps a count current on a terminal; None where there is none."""
    if not sys.stderr.isatty():
        return None

    def update(done: int, total: int) -> None:
        print(f"\r{title}: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return update


@contextmanager
def build_bar(ask: Callable[[], IndexProgress | None], *, shown: bool) -> Iterator[None]:
    """Keep a line about the index that is being built current on a terminal, meanwhile."""
    if not (shown and sys.stderr.isatty()):
        yield
        return
    with _line("looking at the indexes") as show, watching(ask, lambda state: show(describe(state))):
        yield


def describe(state: IndexProgress) -> str:
    """The name of an index, what is done to it, and how much of that."""
    return f"{state.name}: {state.phase}" + ("" if state.share is None else f", {state.share:.0%}")


@contextmanager
def watching(
    ask: Callable[[], IndexProgress | None], show: Callable[[IndexProgress], None], *, every: float = 0.5
) -> Iterator[None]:
    """Meanwhile show in a thread of its own what `ask` tells, every so many seconds."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every):
            try:
                state = ask()
            except CayuPgError:  # whoever builds will say what is wrong
                return
            if state is not None:
                show(state)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def _line(title: str) -> Iterator[Callable[[str], None]]:
    """A callback that writes a line with a spinner and the time, which goes at the end."""
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError as error:
        raise MissingDependency("rich", "cli") from error
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title)
        yield lambda text: progress.update(task, description=text)


def _rank(result: SearchResult, place: int, channel: str) -> str:
    matches = result.hits[place].matches
    return next((str(match.rank) for match in matches if match.channel == channel), "-")


def _shortened(text: str, length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
