"""Writing a batch of documents: locked, compared again, and only what differs is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from cayu_pg.analysis import MAX_ANALYZED, analyze, overlong_words
from cayu_pg.records import PreparedDocument
from cayu_pg.sql.chunks import new_chunk_ids, refresh_metadata, retire_chunks, revive_chunks, stored_chunks
from cayu_pg.sql.collections import CollectionRow, lock_collection
from cayu_pg.sql.copy import Kind, copy_rows
from cayu_pg.sql.embeddings import Vectors, chunks_without_vector, put_vectors, write_vectors
from cayu_pg.sql.lexemes import insert_lexemes
from cayu_pg.sql.locks import lock_weights_shared
from cayu_pg.sql.records import (
    KnownRecord,
    finish_batch,
    known_records,
    lock_records,
    move_pointers,
    next_batch,
    write_tombstones,
)
from cayu_pg.sql.spaces import Maker
from cayu_pg.sql.statistics import version_to_write
from cayu_pg.sql.tables import Tables

_REVISION_COLUMNS: dict[str, Kind] = {
    "collection_id": "bigint",
    "record_id": "text",
    "revision": "integer",
    "tenant": "text",
    "batch_id": "bigint",
    "record_type": "text",
    "title": "text",
    "content": "text",
    "content_hash": "bytea",
    "digest": "bytea",
    "metadata": "jsonb",
    "source": "text",
}
_CHUNK_COLUMNS: dict[str, Kind] = {
    "collection_id": "bigint",
    "chunk_id": "bigint",
    "tenant": "text",
    "record_id": "text",
    "content_hash": "bytea",
    "current": "boolean",
    "metadata": "jsonb",
    "text": "text",
}
_PLACEMENT_COLUMNS: dict[str, Kind] = {
    "collection_id": "bigint",
    "record_id": "text",
    "revision": "integer",
    "ordinal": "integer",
    "tenant": "text",
    "chunk_id": "bigint",
    "start_offset": "integer",
    "end_offset": "integer",
}


@dataclass(slots=True)
class BatchCounts:
    """What one batch did."""

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


@dataclass(slots=True)
class _Change:
    """The documents that differ from what is stored, and their chunks by what has to happen to them."""

    documents: list[PreparedDocument] = field(default_factory=list)
    revisions: dict[str, int] = field(default_factory=dict)
    chunk_ids: dict[tuple[str, bytes], int] = field(default_factory=dict)
    new: list[tuple[str, bytes]] = field(default_factory=list)
    revived: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


def write_batch(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    documents: Sequence[PreparedDocument],
    vectors: Mapping[Maker, Vectors],
) -> BatchCounts:
    """Write the documents, no two of one record, in the caller's transaction.

    `vectors` holds, by what made them, those of texts that had none when the caller looked. Raises MissingVectors
    when one to be reused is gone, or another model became the active one.
    """
    lock_weights_shared(conn, collection.collection_id)
    collection = lock_collection(conn, t, collection)
    known = lock_records(conn, t, collection, {each.record_id: each.record_type for each in documents})
    counts = BatchCounts()
    change = _compare(conn, t, collection, documents, known, counts)
    if not change.documents:
        return counts
    batch_id = next_batch(conn, t)
    _write_texts(conn, t, collection, change, batch_id)
    _write_words(conn, t, collection, change, counts)
    _write_vectors(conn, t, collection, change, vectors, counts)
    _replace_chunks(conn, t, collection, change, known, counts)
    pointers = [
        (each.record_id, change.revisions[each.record_id], each.record_type) for each in change.documents
    ]
    move_pointers(conn, t, collection, pointers)
    finish_batch(conn, t, collection, batch_id, added=counts.chunks_added, removed=counts.chunks_removed)
    return counts


def _compare(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    documents: Sequence[PreparedDocument],
    known: dict[str, KnownRecord],
    counts: BatchCounts,
) -> _Change:
    change = _Change()
    for document in documents:
        stored = known[document.record_id]
        if stored.digest == document.digest:
            counts.records_unchanged += 1
            counts.chunks_kept += len({piece.hash for piece in document.pieces})
            continue
        counts.records_added += stored.digest is None
        counts.records_changed += stored.digest is not None
        change.documents.append(document)
        change.revisions[document.record_id] = stored.revision + 1
    wanted = dict.fromkeys((each.record_id, piece.hash) for each in change.documents for piece in each.pieces)
    found = stored_chunks(conn, t, collection.collection_id, list(wanted))
    change.new = [key for key in wanted if key not in found]
    change.chunk_ids = dict(zip(change.new, new_chunk_ids(conn, t, len(change.new)), strict=True))
    for key, (chunk_id, current) in found.items():
        change.chunk_ids[key] = chunk_id
        (change.kept if current else change.revived).append(chunk_id)
    counts.chunks_added += len(change.new) + len(change.revived)
    counts.chunks_kept += len(change.kept)
    return change


def _write_texts(
    conn: sa.Connection, t: Tables, collection: CollectionRow, change: _Change, batch_id: int
) -> None:
    number, tenant = collection.collection_id, collection.tenant
    revisions = (
        (
            number,
            each.record_id,
            change.revisions[each.record_id],
            tenant,
            batch_id,
            each.record_type,
            each.title,
            each.text,
            each.content_hash,
            each.digest,
            each.metadata,
            each.source,
        )
        for each in change.documents
    )
    copy_rows(conn, t.revisions, _REVISION_COLUMNS, revisions)
    metadata, texts = _metadata_by_id(change), _texts(change)
    chunks = (
        (number, change.chunk_ids[key], tenant, key[0], key[1], True, metadata[key[0]], texts[key])
        for key in change.new
    )
    copy_rows(conn, t.chunks, _CHUNK_COLUMNS, chunks)
    placements = (
        (
            number,
            each.record_id,
            change.revisions[each.record_id],
            ordinal,
            tenant,
            change.chunk_ids[each.record_id, piece.hash],
            piece.start,
            piece.end,
        )
        for each in change.documents
        for ordinal, piece in enumerate(each.pieces)
    )
    copy_rows(conn, t.revision_chunks, _PLACEMENT_COLUMNS, placements)


def _texts(change: _Change) -> dict[tuple[str, bytes], str]:
    return {(each.record_id, piece.hash): piece.text for each in change.documents for piece in each.pieces}


def _metadata_by_id(change: _Change) -> dict[str, dict[str, Any]]:
    return {each.record_id: each.metadata for each in change.documents}


def _write_words(
    conn: sa.Connection, t: Tables, collection: CollectionRow, change: _Change, counts: BatchCounts
) -> None:
    if not change.new:
        return
    texts = _texts(change)
    analyzed = [analyze(collection.analyzer, texts[key]) for key in change.new]
    counts.words_skipped += sum(map(overlong_words, analyzed))
    counts.chunks_cut += sum(len(texts[key]) > MAX_ANALYZED for key in change.new)
    version = version_to_write(conn, t, collection, analyzed)
    insert_lexemes(
        conn,
        t,
        collection,
        version=version.weights_version,
        average=version.average_length,
        chunk_ids=[change.chunk_ids[key] for key in change.new],
        texts=analyzed,
    )


def _write_vectors(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    change: _Change,
    vectors: Mapping[Maker, Vectors],
    counts: BatchCounts,
) -> None:
    new = [(change.chunk_ids[key], key[1]) for key in change.new]
    wanting = list(new)
    if change.revived:
        number = collection.collection_id
        lacking = chunks_without_vector(conn, t, number, collection.space, change.revived)
        wanting += [(chunk_id, key[1]) for key, chunk_id in change.chunk_ids.items() if chunk_id in lacking]
    computed = write_vectors(conn, t, collection, wanting, vectors)
    counts.embeddings_computed += computed
    counts.embeddings_reused += len(wanting) - computed
    if collection.building is not None:
        # Only of new chunks, which nobody else sees: the filling of the space writes all others.
        given = vectors.get(collection.building.maker, {})
        put_vectors(conn, t, collection, collection.building, new, given)


def _replace_chunks(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    change: _Change,
    known: dict[str, KnownRecord],
    counts: BatchCounts,
) -> None:
    before = {
        each.record_id: known[each.record_id].revision
        for each in change.documents
        if known[each.record_id].digest is not None
    }
    counts.chunks_removed += retire_chunks(conn, t, collection, before, kept=change.kept)
    if change.revived:
        revive_chunks(conn, t, collection, change.revived)
    refresh_metadata(conn, t, collection, _metadata_by_id(change), [*change.kept, *change.revived])


def delete_records(
    conn: sa.Connection, t: Tables, collection: CollectionRow, record_ids: Sequence[str]
) -> int:
    """Take records out of search and write that down as a revision without text; how many there were."""
    lock_weights_shared(conn, collection.collection_id)
    lock_collection(conn, t, collection)
    known = known_records(conn, t, collection.collection_id, record_ids, lock=True)
    present = {record_id: each for record_id, each in known.items() if each.digest is not None}
    if not present:
        return 0
    batch_id = next_batch(conn, t)
    write_tombstones(conn, t, collection, list(present), batch_id)
    revisions = {record_id: each.revision for record_id, each in present.items()}
    removed = retire_chunks(conn, t, collection, revisions)
    finish_batch(conn, t, collection, batch_id, added=0, removed=removed)
    return len(present)
