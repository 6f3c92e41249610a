"""Every operation of a store as steps, so that both doors offer the same and differ only in how they drive them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from cayu_pg import revising
from cayu_pg.analysis import analyzer_name
from cayu_pg.arguments import check_flag, check_name, check_names, kind_of
from cayu_pg.asking import Searched, StaleCollection
from cayu_pg.defaults import DISTANCE, K1, QUANTIZATION, TEXT_CONFIG, B, is_chosen
from cayu_pg.embedding import Embedder, SentenceTransformerEmbedder, check_embedder
from cayu_pg.errors import InvalidInput, NotFound, QueryCanceled
from cayu_pg.features import undeclared
from cayu_pg.fitting_channels import known_misfit
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.ingesting import Cutting, IngestProgress, IngestReport, Progress, ingest, refresh_if_due
from cayu_pg.migrating import check_schema
from cayu_pg.query import SearchResult
from cayu_pg.ranked_rows import missing_index
from cayu_pg.recall import RecallReport, check_recall, measure_recall
from cayu_pg.records import Record, Revision, content_hash
from cayu_pg.reranking import CrossEncoderReranker, Reranker, check_reranker
from cayu_pg.retrieval import search
from cayu_pg.revising import SyncReport
from cayu_pg.search_request import SearchOptions, SearchRequest, Where, search_request
from cayu_pg.sql import collections as sql_collections
from cayu_pg.sql import indexes, statistics
from cayu_pg.sql import records as sql_records
from cayu_pg.sql.batches import delete_records
from cayu_pg.sql.collections import CollectionRow, CollectionSummary
from cayu_pg.sql.engine import warn_of_vulnerability
from cayu_pg.sql.indexes import IndexProgress
from cayu_pg.sql.tables import Tables, build_tables
from cayu_pg.sql.vector_channel import OPERATORS
from cayu_pg.steps import Steps, answering, maintain, read, read_anywhere, write, write_repeatable

MAX_SECONDS = 604_800  # a week
QUANTIZATIONS = ("none", "binary")


@dataclass
class StoreState:
    """What the objects of one store share; `tables` is found with the first statement."""

    schema: str
    embedder: Embedder | None = None
    next_embedder: Embedder | None = None
    reranker: Reranker | None = None
    tables: Tables | None = None
    borrowed: bool = False  # the connection is the caller's: no maintenance after writes
    builds_indexes: bool = False  # after an ingest, without being asked
    successors: list[Embedder] = field(default_factory=list)  # to which this process changed collections


@dataclass
class CollectionState:
    """A collection of a store; `row` is what was last seen of it, `own` the embedders that it was opened with."""

    store: StoreState
    tables: Tables
    row: CollectionRow
    own: tuple[Embedder, ...]
    fusions: dict[str, WeightedReciprocalRankFusionConfig] = field(
        default_factory=dict
    )  # those loaded by name

    @property
    def embedders(self) -> tuple[Embedder, ...]:
        """Whoever may have made the vectors, the one for a new collection first."""
        return (*self.own, *self.store.successors)


@dataclass(frozen=True)
class CollectionSettings:
    """How a collection is made when it does not exist."""

    text_config: str = TEXT_CONFIG
    analyzer: str | None = None
    embedder: Embedder | None = None
    next_embedder: Embedder | None = None
    distance: str = DISTANCE
    quantization: str = QUANTIZATION
    k1: float = K1
    b: float = B


def open_tables(state: StoreState) -> Steps[Tables]:
    """The tables, after a check that the schema is migrated as far as this version needs."""
    if state.tables is None:
        extension = yield from read_anywhere(check_schema, state.schema)
        warn_of_vulnerability(extension.version)
        state.tables = build_tables(state.schema, extension.schema)
    return state.tables


def open_collection(
    state: StoreState, tenant: str, name: str, settings: CollectionSettings, create: bool
) -> Steps[CollectionState]:
    """The collection of that name; created when absent, or NotFound."""
    check_name("collection", name)
    check_name("tenant", tenant)
    check_flag("create", create)
    analyzer = analyzer_name(settings.analyzer)
    _check_settings(settings)
    tables = yield from open_tables(state)
    find = read if create else read_anywhere
    row = yield from find(sql_collections.find_collection, tables, tenant, name)
    if row is None and not create:  # a replica may not have it yet
        row = yield from read(sql_collections.find_collection, tables, tenant, name)
    if row is None and create:
        yield from write_repeatable(
            sql_collections.create_collection,
            tables,
            tenant=tenant,
            name=name,
            text_config=str(settings.text_config),
            analyzer=analyzer,
            k1=float(settings.k1),
            b=float(settings.b),
            distance=str(settings.distance),
            quantization=str(settings.quantization),
        )
        row = yield from read(sql_collections.find_collection, tables, tenant, name)
    if row is None:
        raise NotFound("collection", name)
    _check_fit(row, settings)
    embedder = settings.embedder or state.embedder or SentenceTransformerEmbedder()
    following = settings.next_embedder or state.next_embedder
    own = (embedder,) if following is None else (embedder, following)
    return CollectionState(state, tables, row, own)


def _check_settings(settings: CollectionSettings) -> None:
    check_name("text_config", settings.text_config)
    check_models(embedder=settings.embedder, next_embedder=settings.next_embedder)
    for name, value, most in (("k1", settings.k1, 100.0), ("b", settings.b, 1.0)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise InvalidInput(name, f"a number from 0 to {most:g}", repr(value)[:40])
    if settings.distance not in list(OPERATORS):
        raise InvalidInput("distance", f"one of {', '.join(OPERATORS)}", repr(settings.distance)[:40])
    if settings.quantization not in QUANTIZATIONS:
        raise InvalidInput(
            "quantization", f"one of {', '.join(QUANTIZATIONS)}", repr(settings.quantization)[:40]
        )


def check_models(*, reranker: Reranker | None = None, **embedders: Embedder | None) -> None:
    """InvalidInput for what is given as a model and is none."""
    for name, embedder in embedders.items():
        if embedder is not None:
            check_embedder(name, embedder)
    if reranker is not None:
        check_reranker("reranker", reranker)


def _check_fit(row: CollectionRow, settings: CollectionSettings) -> None:
    """InvalidInput for a setting that was chosen and is not the one that the collection was made with."""
    for name in ("text_config", "analyzer", "distance", "quantization", "k1", "b"):
        asked, stored = getattr(settings, name), getattr(row, name)
        versions = (stored, stored.rpartition("-")[0]) if name == "analyzer" else (stored,)
        if is_chosen(asked) and asked not in versions:
            raise InvalidInput(name, f"{stored!r}, with which {row.name!r} was made", repr(asked))


@answering
def list_collections(state: StoreState, tenant: str) -> Steps[list[CollectionSummary]]:
    """What the tenant has."""
    tables = yield from open_tables(state)
    return (yield from read(_summaries, tables, tenant))


def _summaries(conn: sa.Connection, tables: Tables, tenant: str) -> list[CollectionSummary]:
    found = sql_collections.list_collections(conn, tables, tenant)
    health = indexes.index_health(conn, tables, tenant, {each.name: each.chunks for each in found})
    return [replace(each, indexes=health[each.name]) for each in found]


def drop_collection(state: StoreState, tenant: str, name: str) -> Steps[bool]:
    """Delete a collection with everything in it; whether there was one."""
    check_name("collection", name)
    tables = yield from open_tables(state)
    row = yield from read(sql_collections.find_collection, tables, tenant, name)
    if row is None:
        return False
    if state.borrowed:
        yield from write(_drop_at_once, tables, row.collection_id)
    else:
        yield from write_repeatable(sql_collections.delete_collection, tables, row.collection_id)
        yield from maintain(indexes.drop_indexes_aside, tables, row.collection_id)
    return True


def _drop_at_once(conn: sa.Connection, tables: Tables, collection_id: int) -> None:
    sql_collections.delete_collection(conn, tables, collection_id)
    indexes.drop_indexes(conn, tables, collection_id)


def ingest_documents(
    state: CollectionState,
    documents: object,
    cutting: Cutting,
    on_error: Any,
    progress: Progress | None,
    defer_indexes: bool = False,
) -> Steps[IngestReport]:
    """Ingest, build the indexes that were put off, and look again at the collection if this was the first."""
    check_flag("defer_indexes", defer_indexes)
    if defer_indexes and state.store.borrowed:
        raise InvalidInput(
            "defer_indexes", "a store with connections of its own", "one that uses the caller's transaction"
        )
    report = yield from ingest(
        state.tables,
        state.row,
        state.embedders,
        documents,
        cutting=cutting,
        on_error=on_error,
        progress=progress,
        refresh=not state.store.borrowed,
        before_writing=partial(_drop_until_loaded, state) if defer_indexes else None,
    )
    if state.row.space is None or report.chunks_added:
        yield from look_again(state)
    if defer_indexes or (state.store.builds_indexes and report.chunks_added):
        with suppress(QueryCanceled):  # behind somebody's long transaction; the advice says what is lacking
            yield from reindex(state, indexes.MIN_CHUNKS, building=_telling(report, progress))
    advice = _advice(state.row)
    if report.chunks_added and (warning := (yield from known_misfit(state.tables, state.row))):
        advice.append(warning)
    return report.model_copy(update={"advice": advice})


def _drop_until_loaded(state: CollectionState) -> Steps[None]:
    yield from maintain(indexes.drop_for_load, state.tables, state.row.collection_id)
    yield from look_again(state)


def _telling(report: IngestReport, progress: Progress | None) -> Callable[[str], object] | None:
    """What tells `progress` about the build of an index after an ingest."""
    if progress is None:
        return None
    began = time.perf_counter()

    def tell(index: str) -> None:
        documents = report.records_added + report.records_changed + report.records_unchanged
        seconds = report.seconds + time.perf_counter() - began
        chunks = report.chunks_added + report.chunks_kept
        told = IngestProgress(
            documents + len(report.refused), chunks, report.embeddings_computed, seconds, index
        )
        progress(told)

    return tell


def _advice(row: CollectionRow) -> list[str]:
    if row.chunks < indexes.MIN_CHUNKS:
        return []
    kinds = {"vector index": row.has_hnsw, "index of words": row.has_gin}
    return [missing_index(kind, row) for kind, exists in kinds.items() if not exists]


def search_collection(state: CollectionState, request: SearchRequest) -> Steps[SearchResult]:
    """Search one collection."""
    return (yield from _search([state], request, label=False))


def search_collections(
    state: StoreState, tenant: str, names: Sequence[str], request: SearchRequest
) -> Steps[SearchResult]:
    """Search several collections as one: their channels, called `vector:<name>` and so on, in one fusion."""
    wanted = check_names("names", names)
    if isinstance(names, str) or not wanted or len(set(wanted)) != len(wanted):
        raise InvalidInput("names", "different names of collections", repr(names)[:80])
    states: list[CollectionState] = []
    for name in wanted:
        found = yield from open_collection(state, tenant, name, CollectionSettings(), create=False)
        states.append(found)
    return (yield from _search(states, request, label=True))


@answering
def _search(states: list[CollectionState], request: SearchRequest, *, label: bool) -> Steps[SearchResult]:
    unknown = undeclared(request.fusion, [state.row.features for state in states])
    for state in states:
        if unknown or state.row.space is None:  # declared since, or nobody had ingested when it was looked up
            yield from look_again(state)

    def searched() -> list[Searched]:
        return [Searched(each.row.name if label else None, each.row, each.embedders) for each in states]

    try:
        return (yield from search(states[0].tables, searched(), request))
    except StaleCollection:  # another space became active since, or other features were declared
        for state in states:
            yield from look_again(state)
        return (yield from search(states[0].tables, searched(), request))


def request_of(state: StoreState, query: str, options: SearchOptions) -> SearchRequest:
    """The checked request of a search; InvalidInput names the option that is wrong or unknown."""
    unknown = options.keys() - SearchOptions.__annotations__.keys()
    if unknown:
        raise InvalidInput(
            "options", f"any of {', '.join(SearchOptions.__annotations__)}", ", ".join(sorted(unknown))
        )
    reranker = reranker_of(state, options.get("rerank", False))
    checked: dict[str, Any] = {name: value for name, value in options.items() if name != "rerank"}
    return search_request(query, reranker=reranker, **checked)


def reranker_of(state: StoreState, rerank: bool | Reranker) -> Reranker | None:
    """The reranker that `rerank` asks for: none, the store's or the default one, or the given one."""
    if isinstance(rerank, bool):
        return (state.reranker or CrossEncoderReranker()) if rerank else None
    check_reranker("rerank", rerank)
    return rerank


def look_again(state: CollectionState) -> Steps[None]:
    """Refresh what is known of the collection; NotFound when it was dropped."""
    row = yield from read(sql_collections.find_collection, state.tables, state.row.tenant, state.row.name)
    if row is None:
        raise NotFound("collection", state.row.name)
    state.row = row


@answering
def get_record(state: CollectionState, record_id: str, revision: int | None) -> Steps[Record | None]:
    """A record now, or at a revision."""
    check_name("record_id", record_id)
    if revision is not None and (type(revision) is not int or not 1 <= revision < 2**31):
        raise InvalidInput("revision", "an int from 1", repr(revision)[:40])
    return (
        yield from read(sql_records.read_record, state.tables, state.row.collection_id, record_id, revision)
    )


@answering
def record_history(state: CollectionState, record_id: str) -> Steps[list[Revision]]:
    """Every revision of a record, oldest first."""
    check_name("record_id", record_id)
    return (yield from read(sql_records.read_history, state.tables, state.row.collection_id, record_id))


def delete(state: CollectionState, record_ids: str | Sequence[str]) -> Steps[int]:
    """Delete records; how many there were."""
    ids = check_names("record_ids", record_ids)
    if not ids:
        return 0
    deleted = yield from write(delete_records, state.tables, state.row, sorted(set(ids)))
    if deleted and not state.store.borrowed:
        yield from refresh_if_due(state.tables, state.row)
    return deleted


def sync_documents(
    state: CollectionState,
    documents: object,
    cutting: Cutting,
    scope: Where | None,
    dry_run: bool,
    max_delete: float,
) -> Steps[SyncReport]:
    """Ingest, and delete what the source no longer has."""
    report = yield from revising.sync(
        state.tables,
        state.row,
        state.embedders,
        documents,
        cutting=cutting,
        scope=scope,
        dry_run=dry_run,
        max_delete=max_delete,
        refresh=not state.store.borrowed,
    )
    if not dry_run:
        yield from look_again(state)
    return report


def restore(state: CollectionState, record_id: str, revision: int) -> Steps[int]:
    """Make an earlier revision the current one, as a new revision; its number."""
    check_name("record_id", record_id)
    if type(revision) is not int or not 1 <= revision < 2**31:
        raise InvalidInput("revision", "an int from 1", repr(revision)[:40])
    refresh = not state.store.borrowed
    return (
        yield from revising.restore(
            state.tables, state.row, state.embedders, record_id, revision, refresh=refresh
        )
    )


def prune(state: CollectionState, keep_last: int | None, older_than: datetime | None) -> Steps[int]:
    """Delete old revisions; how many."""
    return (yield from revising.prune(state.tables, state.row, keep_last, older_than))


def erase(state: CollectionState, record_ids: str | Sequence[str]) -> Steps[int]:
    """Delete records for good; how many there were."""
    ids = check_names("record_ids", record_ids)
    return (yield from revising.erase(state.tables, state.row, ids, tidy=not state.store.borrowed))


@answering
def count(state: CollectionState) -> Steps[int]:
    """How many records there are."""
    return (yield from read(sql_records.count_records, state.tables, state.row.collection_id))


@answering
def records(state: CollectionState, after: str | None, limit: int) -> Steps[list[Record]]:
    """A page of records in the order of their ids."""
    if after is not None:
        check_name("after", after)
    if type(limit) is not int or not 1 <= limit <= 10_000:
        raise InvalidInput("limit", "an int from 1 to 10000", repr(limit)[:40])
    return (yield from read(sql_records.read_records, state.tables, state.row.collection_id, after, limit))


@answering
def list_all(state: CollectionState) -> Steps[list[str]]:
    """The texts of all records."""
    return (yield from read(sql_records.read_texts, state.tables, state.row.collection_id))


def store_text(state: CollectionState, content: str) -> Steps[str]:
    """Ingest one text; the id of its record."""
    if not isinstance(content, str):
        raise InvalidInput("content", "text", kind_of(content))
    yield from ingest_documents(state, [content], Cutting(), "raise", None)
    return content_hash(content).hex()


def refresh_statistics(state: CollectionState) -> Steps[bool]:
    """Compute the word statistics anew; False when somebody else is at it."""
    return (yield from write_repeatable(statistics.refresh, state.tables, state.row)) is not None


def reindex(
    state: CollectionState,
    min_chunks: int,
    timeout: float | None = None,
    building: Callable[[str], object] | None = None,
) -> Steps[list[str]]:
    """Build the indexes that the collection wants and lacks, each told to `building` before; their names."""
    if type(min_chunks) is not int or min_chunks < 1:
        raise InvalidInput("min_chunks", "an int from 1", repr(min_chunks)[:40])
    if timeout is not None and not (type(timeout) in (int, float) and 0.001 <= timeout <= MAX_SECONDS):
        raise InvalidInput("timeout", f"seconds from 0.001 to {MAX_SECONDS}", repr(timeout)[:40])
    yield from look_again(state)
    if not (yield from read(indexes.plan_indexes, state.tables, state.row, min_chunks)):
        return []
    timeout_ms = None if timeout is None else int(timeout * 1000)
    # Planned again inside: meanwhile somebody else may have built.
    built = yield from maintain(
        indexes.reindex,
        state.tables,
        state.row,
        min_chunks=min_chunks,
        timeout_ms=timeout_ms,
        building=building,
    )
    yield from look_again(state)
    return built


def index_progress(state: CollectionState) -> Steps[IndexProgress | None]:
    """How far a build is that goes on elsewhere."""
    return (yield from read(indexes.build_progress, state.tables, state.row.collection_id))


@answering
def misfit(state: CollectionState) -> Steps[str | None]:
    """What the newest calibration says against a channel."""
    yield from look_again(state)
    return (yield from known_misfit(state.tables, state.row))


@answering
def recall(state: CollectionState, sample: int, k: int, where: Where | None) -> Steps[RecallReport]:
    """How much of the exact answer the vector index finds."""
    check_recall(sample, k, where)
    yield from look_again(state)
    return (yield from measure_recall(state.tables, state.row, sample, k, where))
