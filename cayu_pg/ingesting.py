"""The ingest pipeline: cut, compare, embed what is new with no connection held, write a batch in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from cayu_pg.embedding import Embedder, check_vectors
from cayu_pg.errors import CayuPgError, Conflict, InvalidInput, QueryCanceled
from cayu_pg.fitting_embedder import active_embedder, embedder_of, maker_of
from cayu_pg.records import Document, PreparedDocument, as_document, content_hash, prepare
from cayu_pg.splitting import split_spans
from cayu_pg.sql import statistics
from cayu_pg.sql.batches import BatchCounts, write_batch
from cayu_pg.sql.collections import CollectionRow, with_spaces
from cayu_pg.sql.embeddings import MissingVectors, embedded_hashes
from cayu_pg.sql.indexes import analyze_tables
from cayu_pg.sql.records import known_records
from cayu_pg.sql.spaces import Maker, Space
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, compute, maintain, read, write_repeatable

BATCH_DOCUMENTS = 500
BATCH_CHUNKS = 500
BATCH_CHARACTERS = 4_000_000
ANALYZED_FROM = 1_000  # chunks; plans for fewer are good without
MAX_CHUNKS = 200_000  # of one document, which is written in one transaction


class Refusal(BaseModel):
    """A document that was not ingested: its id if it has one, its place in the input, and why."""

    model_config = ConfigDict(frozen=True)

    id: str | None
    reason: str
    offset: int


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
    """How far an ingest is, given to `progress` after each batch."""

    documents: int
    chunks: int
    embeddings_computed: int
    seconds: float


Progress = Callable[[IngestProgress], object]


@dataclass(frozen=True)
class Cutting:
    """How documents are cut into chunks; the parameters of `split_text`."""

    chunk_size: int = 1000
    chunk_overlap: int = 200
    separators: list[str] | None = None
    length_function: Callable[[str], int] = len


@dataclass(slots=True)
class PreparedBatch:
    """Documents that are written together, and what was refused among them."""

    documents: list[PreparedDocument] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


@dataclass(slots=True)
class _Tally:
    counts: BatchCounts = field(default_factory=BatchCounts)
    refused: list[Refusal] = field(default_factory=list)
    documents: int = 0
    chunks: int = 0

    def add(self, counts: BatchCounts) -> None:
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
) -> Steps[IngestReport]:
    """The steps of an ingest. Without `refresh` the word statistics stay as they are (a caller's transaction)."""
    if on_error not in ("raise", "skip"):
        raise InvalidInput("on_error", "'raise' or 'skip'", repr(on_error)[:40])
    split_spans("x", **vars(cutting))  # bad settings show before the first document
    began = time.perf_counter()
    tally = _Tally()
    batches = prepared_batches(iterate(documents), cutting, on_error)
    while (batch := (yield from compute(next, batches, None))) is not None:
        tally.refused += batch.refused
        tally.add((yield from ingest_batch(t, collection, embedders, batch.documents)))
        tally.documents += len(batch.documents) + len(batch.refused)
        tally.chunks += sum(len(each.pieces) for each in batch.documents)
        if progress is not None:
            seconds = time.perf_counter() - began
            progress(IngestProgress(tally.documents, tally.chunks, tally.counts.embeddings_computed, seconds))
    if refresh and (tally.counts.chunks_added or tally.counts.chunks_removed):
        yield from refresh_if_due(t, collection)
    counts = {each.name: getattr(tally.counts, each.name) for each in fields(tally.counts)}
    return IngestReport(**counts, refused=tally.refused, seconds=time.perf_counter() - began)


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
    if isinstance(documents, str | Document):
        return iter([documents])
    if not isinstance(documents, Iterable):
        raise InvalidInput("documents", "documents or texts", f"a value of type {type(documents).__name__}")
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


def ingest_batch(
    t: Tables,
    collection: CollectionRow,
    embedders: Sequence[Embedder],
    documents: Sequence[PreparedDocument],
) -> Steps[BatchCounts]:
    """Compare, embed and write one batch; while the model is changed, with the new one too where it is at hand."""
    vectors: dict[Maker, dict[bytes, NDArray[np.float32]]] = {}
    missed: frozenset[bytes] = frozenset()
    while True:
        seen = yield from read(look_up, t, collection, documents)
        if seen.added + seen.changed == 0:
            unchanged = BatchCounts(records_unchanged=len(documents))
            unchanged.chunks_kept = sum(len({piece.hash for piece in each.pieces}) for each in documents)
            return unchanged
        for embedder, lacking in _embedders_wanted(seen, embedders, missed):
            made = vectors.setdefault(maker_of(embedder), {})
            wanted = {hashed: text for hashed, text in lacking.items() if hashed not in made}
            if wanted:
                made |= yield from compute(embed, embedder, wanted)
        try:
            return (yield from write_repeatable(write_batch, t, seen.collection, documents, vectors))
        except MissingVectors as missing:
            missed |= missing.hashes


@dataclass(frozen=True)
class LookUp:
    """How many documents are new or differ from what is stored, and which of their `texts` lack a vector.

    `collection` has the embedding spaces that were seen; `lacking` and `lacking_in_building` are of these.
    """

    collection: CollectionRow
    added: int
    changed: int
    texts: dict[bytes, str]
    lacking: frozenset[bytes]
    lacking_in_building: frozenset[bytes]


def look_up(
    conn: sa.Connection, t: Tables, collection: CollectionRow, documents: Sequence[PreparedDocument]
) -> LookUp:
    """Which documents differ from what is stored, and which of their texts have no vector yet."""
    collection = with_spaces(conn, t, collection)
    known = known_records(conn, t, collection.collection_id, [each.record_id for each in documents])
    changed = [
        each
        for each in documents
        if each.record_id not in known or known[each.record_id].digest != each.digest
    ]
    texts = {piece.hash: piece.text for each in changed for piece in each.pieces}
    added = sum(each.record_id not in known or known[each.record_id].digest is None for each in changed)
    return LookUp(
        collection,
        added,
        len(changed) - added,
        texts,
        lacking=_without_vector(conn, t, collection, collection.space, texts),
        lacking_in_building=_without_vector(conn, t, collection, collection.building, texts),
    )


def _without_vector(
    conn: sa.Connection, t: Tables, collection: CollectionRow, space: Space | None, texts: dict[bytes, str]
) -> frozenset[bytes]:
    if space is None or not texts:
        return frozenset(texts)
    found = embedded_hashes(conn, t, collection.collection_id, space.space_id, list(texts))
    return frozenset(texts).difference(found)


def _embedders_wanted(
    seen: LookUp, embedders: Sequence[Embedder], missed: frozenset[bytes]
) -> Iterator[tuple[Embedder, dict[bytes, str]]]:
    """Who has to embed which texts, `missed` among them; DimensionMismatch when nobody can."""
    lacking = _those(seen.texts, seen.lacking | missed)
    if lacking:
        yield active_embedder(seen.collection, embedders), lacking
    building = seen.collection.building
    following = None if building is None else embedder_of(building, embedders)
    if following is not None:
        yield following, _those(seen.texts, seen.lacking_in_building)


def _those(texts: dict[bytes, str], hashes: frozenset[bytes]) -> dict[bytes, str]:
    return {hashed: text for hashed, text in texts.items() if hashed in hashes}


def embed(embedder: Embedder, texts: dict[bytes, str]) -> dict[bytes, NDArray[np.float32]]:
    """The vectors of texts by hash, checked."""
    vectors = check_vectors(
        embedder.encode_documents(list(texts.values())),
        count=len(texts),
        dimensions=embedder.dimensions,
        field="document vectors",
    )
    return dict(zip(texts, vectors, strict=True))
