"""Batches of documents are looked up, embedded and written; while one is written, the next is made ready.

No connection is held while a model runs. Each batch is one transaction, and at most one is ahead of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from cayu_pg.embedding import Embedder, check_vectors
from cayu_pg.fitting_embedder import active_embedder, embedder_of, maker_of
from cayu_pg.records import PreparedDocument
from cayu_pg.sql.batches import BatchCounts, write_batch
from cayu_pg.sql.collections import CollectionRow, with_spaces
from cayu_pg.sql.embeddings import MissingVectors, embedded_hashes
from cayu_pg.sql.records import known_records
from cayu_pg.sql.spaces import Maker, Space
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, compute, read, write_beside, write_repeatable
from cayu_pg.tracing import span

Vectors = dict[Maker, dict[bytes, NDArray[np.float32]]]


class Refusal(BaseModel):
    """A document that was not ingested: its id if it has one, its place in the input, and why."""

    model_config = ConfigDict(frozen=True)

    id: str | None
    reason: str
    offset: int


@dataclass(slots=True)
class PreparedBatch:
    """Documents that are written together, and what was refused among them."""

    documents: list[PreparedDocument] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A batch that was looked up (unless it waits for the one before it), and embedded if it differs."""

    batch: PreparedBatch
    seen: LookUp | None
    vectors: Vectors

    def shares_records_with(self, batch: PreparedBatch) -> bool:
        ids = {each.record_id for each in self.batch.documents}
        return any(each.record_id in ids for each in batch.documents)


def write_batches(
    t: Tables,
    collection: CollectionRow,
    embedders: Sequence[Embedder],
    batches: Iterator[PreparedBatch],
    told: Callable[[PreparedBatch, BatchCounts], None],
    before_writing: Callable[[], Steps[None]] | None = None,
) -> Steps[None]:
    """Write the batches one after the other, calling `told` after each; an error leaves those before it written.

    The steps of `before_writing` come before the first write; none come when nothing has to be written.
    """
    ready = yield from _make_ready(t, collection, embedders, batches, None)
    while ready is not None:
        documents = ready.batch.documents
        if ready.seen is None or ready.seen.nothing_new:
            if ready.seen is None:
                counts = yield from ingest_batch(t, collection, embedders, documents)
            else:
                counts = _unchanged(documents)
            told(ready.batch, counts)
            ready = yield from _make_ready(t, collection, embedders, batches, None)
            continue
        if before_writing is not None:
            yield from before_writing()
            before_writing = None
        written, following = yield from write_beside(
            _make_ready(t, collection, embedders, batches, ready),
            _write_batch,
            t,
            ready.seen.collection,
            documents,
            ready.vectors,
        )
        try:
            counts = written.get()
        except MissingVectors as missing:
            counts = yield from ingest_batch(
                t, collection, embedders, documents, ready.vectors, missing.hashes
            )
        told(ready.batch, counts)
        ready = following.get()


def _make_ready(
    t: Tables,
    collection: CollectionRow,
    embedders: Sequence[Embedder],
    batches: Iterator[PreparedBatch],
    before: _Ready | None,
) -> Steps[_Ready | None]:
    """The next batch, made ready while `before` is being written; None after the last.

    What `before` brings counts as being there: equal texts will find its vectors. One that writes the same records
    again has to wait, for it cannot be compared with what nobody sees yet.
    """
    batch = yield from compute(next, batches, None)
    if batch is None:
        return None
    if before is not None and before.shares_records_with(batch):
        return _Ready(batch, None, {})
    seen = yield from read(look_up, t, collection, batch.documents)
    if before is not None and before.seen is not None:
        seen = replace(seen, lacking=seen.lacking.difference(before.seen.texts))
    vectors: Vectors = {}
    yield from _embed_lacking(seen, embedders, frozenset(), vectors)
    return _Ready(batch, seen, vectors)


def ingest_batch(
    t: Tables,
    collection: CollectionRow,
    embedders: Sequence[Embedder],
    documents: Sequence[PreparedDocument],
    vectors: Vectors | None = None,
    missed: frozenset[bytes] = frozenset(),
) -> Steps[BatchCounts]:
    """Compare, embed and write one batch; while the model is changed, with the new one too where it is at hand.

    `vectors` are those made already; `missed` are hashes of texts that were thought to have one.
    """
    vectors = {} if vectors is None else vectors
    while True:
        seen = yield from read(look_up, t, collection, documents)
        if seen.nothing_new:
            return _unchanged(documents)
        yield from _embed_lacking(seen, embedders, missed, vectors)
        try:
            return (yield from write_repeatable(_write_batch, t, seen.collection, documents, vectors))
        except MissingVectors as missing:
            missed |= missing.hashes


def _write_batch(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    documents: Sequence[PreparedDocument],
    vectors: Vectors,
) -> BatchCounts:
    """Write one batch under a span of its own, which does not see the commit."""
    with span("ingest.batch", collection=collection.name, documents=len(documents)) as note:
        counts = write_batch(conn, t, collection, documents, vectors)
        note(**asdict(counts))
    return counts


def _unchanged(documents: Sequence[PreparedDocument]) -> BatchCounts:
    kept = sum(len({piece.hash for piece in each.pieces}) for each in documents)
    return BatchCounts(records_unchanged=len(documents), chunks_kept=kept)


def _embed_lacking(
    seen: LookUp, embedders: Sequence[Embedder], missed: frozenset[bytes], vectors: Vectors
) -> Steps[None]:
    """Add to `vectors` those that the batch lacks."""
    for embedder, lacking in _embedders_wanted(seen, embedders, missed):
        made = vectors.setdefault(maker_of(embedder), {})
        wanted = {hashed: text for hashed, text in lacking.items() if hashed not in made}
        if wanted:
            made |= yield from compute(embed, embedder, wanted)


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

    @property
    def nothing_new(self) -> bool:
        """Whether every document is stored as it is."""
        return self.added + self.changed == 0


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
    count, dimensions = len(texts), embedder.dimensions
    with span("embed", kind="documents", count=count, model=embedder.model, dimensions=dimensions):
        given = embedder.encode_documents(list(texts.values()))
        vectors = check_vectors(given, count=count, dimensions=dimensions, field="document vectors")
    return dict(zip(texts, vectors, strict=True))
