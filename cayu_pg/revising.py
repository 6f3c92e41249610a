"""Keeping a collection in step with its source, and working on its past: sync, restore, prune, erase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict

from cayu_pg.arguments import check_flag
from cayu_pg.embedding import Embedder
from cayu_pg.errors import Conflict, InvalidInput, NotFound, TooManyDeletions
from cayu_pg.ingesting import (
    Cutting,
    IngestReport,
    ingest,
    iterate,
    prepared_batches,
    refresh_if_due,
)
from cayu_pg.records import as_document
from cayu_pg.search_request import Where, check_where
from cayu_pg.splitting import split_spans
from cayu_pg.sql import past, statistics
from cayu_pg.sql.batches import delete_records
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.filters import compile_filter
from cayu_pg.sql.records import known_records, record_ids_in
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, compute, maintain, read, write, write_repeatable
from cayu_pg.writing import ingest_batch, look_up

PAGE = 1_000


class SyncReport(BaseModel):
    """What a sync did, or with `dry_run` would do: the ingest, and the records that the source no longer has.

    In a dry run `ingest` counts records only: added, changed and unchanged.
    """

    model_config = ConfigDict(frozen=True)

    ingest: IngestReport
    records_deleted: int
    deleted: list[str]
    dry_run: bool


def sync(
    t: Tables,
    collection: CollectionRow,
    embedders: Sequence[Embedder],
    documents: object,
    *,
    cutting: Cutting,
    scope: Where | None,
    dry_run: bool,
    max_delete: float,
    refresh: bool,
) -> Steps[SyncReport]:
    """Ingest the documents and delete the records in scope that are not among them."""
    if isinstance(max_delete, bool) or not isinstance(max_delete, int | float) or not 0 <= max_delete <= 1:
        raise InvalidInput("max_delete", "a share from 0 to 1", repr(max_delete)[:40])
    check_flag("dry_run", dry_run)
    check_where(scope)
    split_spans("x", **vars(cutting))
    seen: set[str] = set()
    noted = _noted(iterate(documents), seen)
    if dry_run:
        report = yield from _looked_up(t, collection, noted, cutting)
    else:
        report = yield from ingest(t, collection, embedders, noted, cutting=cutting, refresh=refresh)
    there = yield from _records_in(t, collection, scope)
    gone = [record_id for record_id in there if record_id not in seen]
    if len(gone) > max_delete * len(there) and not dry_run:
        raise TooManyDeletions(len(gone), len(there), max_delete)
    if not dry_run:
        for start in range(0, len(gone), PAGE):
            yield from write_repeatable(delete_records, t, collection, gone[start : start + PAGE])
        if gone and refresh:
            yield from refresh_if_due(t, collection)
    return SyncReport(ingest=report, records_deleted=len(gone), deleted=gone[:PAGE], dry_run=dry_run)


def restore(
    t: Tables,
    collection: CollectionRow,
    embedders: Sequence[Embedder],
    record_id: str,
    revision: int,
    *,
    refresh: bool,
) -> Steps[int]:
    """Write what a revision said as a new one; its number, or that of the current one if it says so already."""
    prepared = yield from read(past.read_prepared, t, collection, record_id, revision)
    if prepared is None:
        raise NotFound("revision", f"{record_id}, revision {revision}")
    counts = yield from ingest_batch(t, collection, embedders, [prepared])
    if refresh and counts.chunks_added:
        yield from refresh_if_due(t, collection)
    return (yield from read(_current_revision, t, collection, record_id))


def prune(
    t: Tables, collection: CollectionRow, keep_last: int | None, older_than: datetime | None
) -> Steps[int]:
    """Delete revisions that are no longer current; how many went."""
    if keep_last is None and older_than is None:
        raise InvalidInput("prune", "keep_last, older_than, or both", "neither")
    if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
        raise InvalidInput("keep_last", "an int from 1", repr(keep_last)[:40])
    if older_than is not None and (not isinstance(older_than, datetime) or older_than.tzinfo is None):
        raise InvalidInput("older_than", "a time with a zone", repr(older_than)[:60])
    return (yield from write(past.prune, t, collection, keep_last=keep_last, older_than=older_than))


def erase(t: Tables, collection: CollectionRow, record_ids: Sequence[str], *, tidy: bool) -> Steps[int]:
    """Delete records for good, their words from the statistics too; how many there were.

    What an earlier call deleted and could not tidy up after is tidied up now. Raises Conflict.
    """
    erased = 0
    ids = sorted(set(record_ids))
    for start in range(0, len(ids), PAGE):
        erased += yield from write(past.erase, t, collection, ids[start : start + PAGE])
    if not ids:
        return 0
    conflict = yield from _forget_words(t, collection)
    if tidy:
        yield from maintain(past.vacuum, t)
    if conflict is not None:
        raise Conflict(
            f"words of what was erased may be in the statistics: {conflict}; erase again to finish"
        ) from conflict
    return erased


def _forget_words(t: Tables, collection: CollectionRow) -> Steps[Conflict | None]:
    """Compute the word statistics of what is left; who is in the way, if anybody."""
    if (yield from read(statistics.active_version, t, collection.collection_id)) is None:
        return None
    try:
        refreshed = yield from write_repeatable(statistics.refresh, t, collection)
    except Conflict as conflict:
        return conflict
    return Conflict("another refresh is at work") if refreshed is None else None


def _noted(documents: Iterator[object], seen: set[str]) -> Iterator[object]:
    for each in documents:
        document = as_document(each)
        seen.add(document.record_id)
        yield document


def _looked_up(
    t: Tables, collection: CollectionRow, documents: Iterator[object], cutting: Cutting
) -> Steps[IngestReport]:
    added = changed = unchanged = 0
    batches = prepared_batches(documents, cutting, "raise")
    while (batch := (yield from compute(next, batches, None))) is not None:
        found = yield from read(look_up, t, collection, batch.documents)
        added += found.added
        changed += found.changed
        unchanged += len(batch.documents) - found.added - found.changed
    return IngestReport(records_added=added, records_changed=changed, records_unchanged=unchanged)


def _records_in(t: Tables, collection: CollectionRow, scope: Where | None) -> Steps[list[str]]:
    """The ids of all current records whose metadata is in scope."""
    condition = None if scope is None else compile_filter(scope, t.revisions.c.metadata)
    found: list[str] = []
    while True:
        after = found[-1] if found else None
        page = yield from read(record_ids_in, t, collection.collection_id, condition, after, PAGE)
        found += page
        if len(page) < PAGE:
            return found


def _current_revision(conn: sa.Connection, t: Tables, collection: CollectionRow, record_id: str) -> int:
    return known_records(conn, t, collection.collection_id, [record_id])[record_id].revision
