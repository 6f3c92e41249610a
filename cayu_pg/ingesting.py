"""The ingest pipeline: documents are cut into batches, batches written, and what was done is reported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

from pydantic import BaseModel, ConfigDict

from cayu_pg.arguments import check_callable, kind_of
from cayu_pg.embedding import Embedder
from cayu_pg.errors import CayuPgError, Conflict, InvalidInput, QueryCanceled
from cayu_pg.records import Document, PreparedDocument, as_document, content_hash, prepare
from cayu_pg.splitting import split_spans
from cayu_pg.sql import statistics
from cayu_pg.sql.batches import BatchCounts
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.indexes import analyze_tables
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, maintain, read, write_repeatable
from cayu_pg.tracing import span
from cayu_pg.writing import PreparedBatch, Refusal, write_batches

BATCH_DOCUMENTS = 500
BATCH_CHUNKS = 500
BATCH_CHARACTERS = 4_000_000
ANALYZED_FROM = 1_000  # chunks; plans for fewer are good without
MAX_CHUNKS = 200_000  # of one document, which is written in one transaction

log = logging.getLogger(__name__)


class IngestReport(BaseModel):
    """What an ingest did. Every document is added, changed, unchanged or refused.

    `words_skipped` counts words too long for Postgres (over 2,046 bytes), `chunks_cut` chunks of which only the first
    100,000 characters are searched by words; both are stored and embedded whole. `advice` says what would make
    searches faster, such as an index that a collection of this size wants.
    """

    model_config = ConfigDict(frozen=True)

    records_added: int = 0
    records_changed: int = 0
    records_unchanged: int = 0
    chunks_added: int = 0
    chunks_kept: int = 0
    chunks_removed: int = 0
    embeddings_computed: int = 0
    embeddings_reused: int = 0
    words_skipped: int = 0
    chunks_cut: int = 0
    refused: list[Refusal] = []
    advice: list[str] = []
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """How far an ingest is, given to `progress` after each batch, and before each `index` that is built at the end."""

    documents: int
    chunks: int
    embeddings_computed: int
    seconds: float
    index: str | None = None


Progress = Callable[[IngestProgress], object]


@dataclass(frozen=True)
class Cutting:
    """How documents are cut into chunks; the parameters of `split_text`."""

    chunk_size: int = 1000
    chunk_overlap: int = 200
    separators: list[str] | None = None
    length_function: Callable[[str], int] = len


@dataclass(slots=True)
class _Tally:
    counts: BatchCounts = field(default_factory=BatchCounts)
    refused: list[Refusal] = field(default_factory=list)
    documents: int = 0
    chunks: int = 0

    def add(self, batch: PreparedBatch, counts: BatchCounts) -> None:
        self.refused += batch.refused
        self.documents += len(batch.documents) + len(batch.refused)
        self.chunks += sum(len(each.pieces) for each in batch.documents)
        for each in fields(counts):
            setattr(self.counts, each.name, getattr(self.counts, each.name) + getattr(counts, each.name))


def ingest(
    t: Tables,
    collection: CollectionRow,
    embedders: Sequence[Embedder],
    documents: object,
    *,
    cutting: Cutting,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Progress | None = None,
    refresh: bool = True,
    before_writing: Callable[[], Steps[None]] | None = None,
) -> Steps[IngestReport]:
    """The steps of an ingest; `before_writing` gives those that come before its first write, if it writes anything.

    Without `refresh` the word statistics stay as they are (a caller's transaction).
    """
    if on_error not in ("raise", "skip"):
        raise InvalidInput("on_error", "'raise' or 'skip'", repr(on_error)[:40])
    if progress is not None:
        check_callable("progress", progress)
    split_spans("x", **vars(cutting))  # bad settings show before the first document
    began = time.perf_counter()
    tally = _Tally()

    def told(batch: PreparedBatch, counts: BatchCounts) -> None:
        tally.add(batch, counts)
        if progress is not None:
            seconds = time.perf_counter() - began
            progress(IngestProgress(tally.documents, tally.chunks, tally.counts.embeddings_computed, seconds))

    with span("ingest", collection=collection.name) as note:
        yield from write_batches(
            t,
            collection,
            embedders,
            prepared_batches(iterate(documents), cutting, on_error),
            told,
            before_writing,
        )
        if refresh and (tally.counts.chunks_added or tally.counts.chunks_removed):
            yield from refresh_if_due(t, collection)
        counts = asdict(tally.counts)
        note(documents=tally.documents, refused=len(tally.refused), **counts)
    seconds = time.perf_counter() - began
    log.info(
        "ingested into %s: %d documents, %d refused, %d chunks added, %d removed, %d embedded, %.1f s",
        collection.name,
        tally.documents,
        len(tally.refused),
        tally.counts.chunks_added,
        tally.counts.chunks_removed,
        tally.counts.embeddings_computed,
        seconds,
    )
    return IngestReport(**counts, refused=tally.refused, seconds=seconds)


def refresh_if_due(t: Tables, collection: CollectionRow) -> Steps[bool]:
    """Refresh the word statistics when enough has changed; whether it was done.

    Writers or a timeout may be in the way. What was written before stays so, and later writes see that it is due.
    """
    try:
        if not (yield from read(statistics.refresh_is_due, t, collection.collection_id)):
            return False
        refreshed = yield from write_repeatable(statistics.refresh, t, collection)
        if refreshed is not None and refreshed.chunks >= ANALYZED_FROM:
            yield from maintain(analyze_tables, t)
    except (Conflict, QueryCanceled):
        return False
    return refreshed is not None


def iterate(documents: object) -> Iterator[object]:
    """The documents one by one; a single one is itself. InvalidInput for what has none."""
    if isinstance(documents, str | Document | Mapping):
        return iter([documents])
    if isinstance(documents, bytes | bytearray) or not isinstance(documents, Iterable):
        raise InvalidInput("documents", "documents or texts", kind_of(documents))
    return iter(documents)


def prepared_batches(
    documents: Iterator[object], cutting: Cutting, on_error: Literal["raise", "skip"]
) -> Iterator[PreparedBatch]:
    """Batches of bounded size in which no record comes twice."""
    batch, ids, chunks, characters = PreparedBatch(), set[str](), 0, 0
    for offset, each in enumerate(documents):
        try:
            prepared = _prepared(as_document(each), cutting)
        except CayuPgError as error:
            if on_error == "raise":
                raise
            batch.refused.append(Refusal(id=_id_of(each), reason=str(error), offset=offset))
            continue
        full = chunks + len(prepared.pieces) > BATCH_CHUNKS or len(ids) >= BATCH_DOCUMENTS
        if ids and (full or prepared.record_id in ids or characters > BATCH_CHARACTERS):
            yield batch
            batch, ids, chunks, characters = PreparedBatch(), set(), 0, 0
        batch.documents.append(prepared)
        ids.add(prepared.record_id)
        chunks += len(prepared.pieces)
        characters += len(prepared.text)
    if batch.documents or batch.refused:
        yield batch


def _prepared(document: Document, cutting: Cutting) -> PreparedDocument:
    spans = split_spans(document.text, **vars(cutting))
    if len(spans) > MAX_CHUNKS:
        raise InvalidInput(
            "document", f"at most {MAX_CHUNKS} chunks", f"{len(spans)}; use a larger chunk_size"
        )
    return prepare(document, [(span.start, span.end) for span in spans])


def _id_of(value: object) -> str | None:
    found = value.get("id") if isinstance(value, dict) else getattr(value, "id", None)
    if isinstance(found, str):
        return found
    return content_hash(value).hex() if isinstance(value, str) and _encodes(value) else None


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
