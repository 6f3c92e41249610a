"""The asynchronous door: the operations of the synchronous one, awaited; SQL through `run_sync`, models in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cayu_pg import bm25, named_fusions, operations
from cayu_pg.async_transcript import AsyncTranscript
from cayu_pg.embedding import Embedder
from cayu_pg.errors import InvalidInput, Unreachable
from cayu_pg.evaluating import (
    EvaluationReport,
    Queries,
    SearchesDone,
    evaluate_collection,
    tune_collection,
)
from cayu_pg.evaluation import Qrels
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.ingesting import Cutting, IngestReport, Progress
from cayu_pg.migrating import check_schema_name, migrate
from cayu_pg.operations import CollectionSettings, CollectionState, StoreState
from cayu_pg.query import SearchResult
from cayu_pg.recall import RecallReport
from cayu_pg.records import Record, Revision
from cayu_pg.reranking import Reranker
from cayu_pg.revising import SyncReport
from cayu_pg.search_request import CHANNELS, SearchOptions, Where
from cayu_pg.sql.collections import CollectionSummary
from cayu_pg.sql.engine import open_async_engine
from cayu_pg.sql.errors import translated
from cayu_pg.sql.indexes import MIN_CHUNKS, IndexProgress
from cayu_pg.sql.tables import DEFAULT_SCHEMA
from cayu_pg.steps import Compute, Maintain, Read, Step, Steps, Write, drive_async
from cayu_pg.text_query import Mode
from cayu_pg.transcripts import transcript_state
from cayu_pg.tuning import TuningReport

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from cayu_pg.embedded import EmbeddedServer

R = TypeVar("R")


class _Connections(Protocol):
    """Where the steps of one door get their connections."""

    async def reading(self, function: Callable[[sa.Connection], R]) -> R: ...
    async def writing(self, function: Callable[[sa.Connection], R]) -> R: ...
    async def maintaining(self, function: Callable[[sa.Connection], R]) -> R: ...


class _Pool:
    """Connections of an engine: each step is a transaction of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def reading(self, function: Callable[[sa.Connection], R]) -> R:
        try:
            return await self._read(function)
        except Unreachable as error:
            cause = error.__cause__
            if not (isinstance(cause, sa.exc.DBAPIError) and cause.connection_invalidated):
                raise
            return await self._read(function)  # a pooled connection had died; reading again repeats nothing

    async def _read(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            async with self.engine.connect() as conn:
                await conn.execution_options(isolation_level="REPEATABLE READ")  # one snapshot for the step
                return await conn.run_sync(function)

    async def writing(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            async with self.engine.begin() as conn:
                return await conn.run_sync(function)

    async def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            async with self.engine.connect() as conn:
                try:
                    await conn.execution_options(isolation_level="AUTOCOMMIT")
                    return await conn.run_sync(function)
                finally:
                    await conn.invalidate()  # its settings were changed for the session


class _Borrowed:
    """The caller's connection: we never commit, and leave behind neither settings nor a failed transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def reading(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            savepoint = await self.connection.begin_nested()
            try:
                return await self.connection.run_sync(function)
            finally:
                await savepoint.rollback()  # restores every SET LOCAL of the step

    async def writing(self, function: Callable[[sa.Connection], R]) -> R:
        with translated():
            async with self.connection.begin_nested():
                return await self.connection.run_sync(function)

    async def maintaining(self, function: Callable[[sa.Connection], R]) -> R:
        raise InvalidInput(
            "store", "a store with connections of its own", "one that uses the caller's transaction"
        )


class AsyncStore:
    """A retrieval store in a migrated schema of a Postgres database, for asyncio.

    `url_or_engine` is a `postgresql://` URL or a SQLAlchemy AsyncEngine, which stays the caller's. Nothing is sent
    before the first operation. Without `embedder` all-MiniLM-L6-v2 is loaded when first needed.
    """

    def __init__(
        self,
        url_or_engine: str | sa.URL | AsyncEngine,
        *,
        schema: str = DEFAULT_SCHEMA,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        given = isinstance(url_or_engine, AsyncEngine)
        self._owns_engine = not given
        self._engine = (
            url_or_engine if isinstance(url_or_engine, AsyncEngine) else open_async_engine(url_or_engine)
        )
        self._connections: _Connections = _Pool(self._engine)
        self._state = StoreState(check_schema_name(schema), embedder, reranker)
        self._tenant = "default"
        self._server: EmbeddedServer | None = None

    @classmethod
    async def embedded(
        cls,
        path: str | Path | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
    ) -> Self:
        """A store in a private PostgreSQL with pgvector, started and migrated on first use.

        `path` is the data directory, by default one in the user's data directory. `close()` stops the server unless
        somebody else uses it.
        """
        from cayu_pg.embedded import EmbeddedServer

        server = await asyncio.to_thread(EmbeddedServer.start, None if path is None else Path(path))
        try:
            await asyncio.to_thread(migrate, server.url, schema=schema)
            store = cls(server.url, schema=schema, embedder=embedder, reranker=reranker)
        except BaseException:
            await asyncio.to_thread(server.close)
            raise
        store._server = server
        store._state.builds_indexes = True
        return store

    @property
    def engine(self) -> AsyncEngine:
        """The SQLAlchemy AsyncEngine."""
        return self._engine

    async def collection(
        self,
        name: str,
        *,
        tenant: str | None = None,
        text_config: str = "english",
        analyzer: str | None = None,
        embedder: Embedder | None = None,
        distance: Literal["cosine", "inner_product", "l2"] = "cosine",
        quantization: Literal["none", "binary"] = "none",
        k1: float = bm25.K1,
        b: float = bm25.B,
        create: bool = True,
    ) -> AsyncCollection:
        """The collection `name`; made with these settings when absent, or NotFound without `create`.

        `distance` and `quantization` are those of vectors: `binary` keeps one bit a number in the vector index and
        scores what it finds again by the full vectors, which is smaller and less exact. `k1` and `b` are those of BM25;
        short texts such as chat turns prefer b = 0.4.
        """
        settings = CollectionSettings(text_config, analyzer, embedder, distance, quantization, k1, b)
        wanted = self._tenant if tenant is None else tenant
        steps = operations.open_collection(self._state, wanted, name, settings, create)
        return AsyncCollection(self, await self._run(steps))

    async def collections(self) -> list[CollectionSummary]:
        """The tenant's collections by name, with what they hold."""
        return await self._run(operations.list_collections(self._state, self._tenant))

    async def drop_collection(self, name: str) -> bool:
        """Delete a collection with everything in it; whether there was one."""
        return await self._run(operations.drop_collection(self._state, self._tenant, name))

    async def search(
        self, names: Sequence[str], query: str, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Search several collections as one, with the options of `Collection.search`.

        Their channels are called `vector:<name>` and `text:<name>`, and identities begin with `<name>/`.
        """
        request = operations.request_of(self._state, query, options)
        return await self._run(operations.search_collections(self._state, self._tenant, names, request))

    async def transcript(self, transcript_id: str, *, tenant: str | None = None) -> AsyncTranscript:
        """The conversation `transcript_id`; it need not exist, its first append creates it."""
        wanted = self._tenant if tenant is None else tenant
        return AsyncTranscript(self._run, transcript_state(self._state, wanted, transcript_id))

    def for_tenant(self, tenant: str) -> AsyncStore:
        """The same store for one tenant."""
        return self._derived(tenant=operations.check_name("tenant", tenant))

    async def using(self, connection: AsyncConnection | AsyncSession) -> AsyncStore:
        """The same store inside the caller's transaction, which only the caller commits or rolls back."""
        if isinstance(connection, AsyncConnection):
            return self._derived(connections=_Borrowed(connection))
        return self._derived(connections=_Borrowed(await _connection_of(connection)))

    async def close(self) -> None:
        """Close the connections, and the embedded server unless somebody else uses it."""
        if self._owns_engine:
            await self._engine.dispose()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
            self._server = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _derived(self, *, tenant: str | None = None, connections: _Connections | None = None) -> AsyncStore:
        store = AsyncStore.__new__(AsyncStore)
        store._owns_engine = False
        store._engine = self._engine
        store._connections = connections or self._connections
        state = self._state
        borrowed = state.borrowed or connections is not None
        store._state = replace(state, borrowed=borrowed, builds_indexes=state.builds_indexes and not borrowed)
        store._tenant = tenant or self._tenant
        store._server = None
        return store

    async def _run(self, steps: Steps[R]) -> R:
        return await drive_async(steps, self._perform)

    async def _perform(self, step: Step) -> Any:
        match step:
            case Read(function):
                return await self._connections.reading(function)
            case Write(function):
                return await self._connections.writing(function)
            case Maintain(function):
                return await self._connections.maintaining(function)
            case Compute(call):
                return await asyncio.to_thread(call)


async def _connection_of(session: object) -> AsyncConnection:
    connection = getattr(session, "connection", None)
    found = await connection() if callable(connection) else None
    if not isinstance(found, AsyncConnection):
        raise InvalidInput(
            "connection", "a SQLAlchemy AsyncConnection or AsyncSession", type(session).__name__
        )
    return found


class AsyncCollection:
    """One searchable set of documents."""

    def __init__(self, store: AsyncStore, state: CollectionState) -> None:
        self._run = store._run
        self._state = state

    @property
    def name(self) -> str:
        """What the collection is called in its tenant."""
        return self._state.row.name

    @property
    def chunks(self) -> sa.Table:
        """The table `chunks`, whose columns record_id, metadata, text and content_hash a `where` may use."""
        return self._state.tables.chunks

    async def ingest(
        self,
        documents: object,
        *,
        chunk_size: int = 1000,
        chunk_overlap: int = 200,
        separators: list[str] | None = None,
        length_function: Callable[[str], int] = len,
        on_error: Literal["raise", "skip"] = "raise",
        progress: Progress | None = None,
    ) -> IngestReport:
        """Bring documents into the collection: texts, Documents or mappings, one or an iterable of any length.

        Only what differs from what is stored is embedded and written, in batches that commit one by one. With
        `on_error="skip"` a bad document is reported and the rest goes on. Raises InvalidInput.
        """
        cutting = Cutting(chunk_size, chunk_overlap, separators, length_function)
        return await self._run(
            operations.ingest_documents(self._state, documents, cutting, on_error, progress)
        )

    async def search(
        self,
        query: str,
        *,
        limit: int = 10,
        where: Where | None = None,
        channels: Sequence[str] = CHANNELS,
        candidates: int = 100,
        mode: Mode = "any",
        fuzzy: bool = False,
        fusion: WeightedReciprocalRankFusionConfig | str | None = None,
        rerank: bool | Reranker = False,
        rerank_seconds: float | None = None,
        per_record: bool = False,
        exact: bool = False,
        max_distance: float | None = None,
        as_of: int | datetime | None = None,
        continuation: str | None = None,
        timeout: float | None = None,
        n_results: int | None = None,
    ) -> SearchResult:
        """The `limit` best passages for a question, from both channels fused.

        `where` filters by metadata: a mapping (see `cayu_pg.filters`) or a condition on the columns of `chunks`.
        `candidates` is how many hits each channel may contribute. `mode` is what the text channel asks for: any word,
        all, the phrase, or web for quotes, minus and OR as in search boxes; `fuzzy` lets words that the collection does
        not know stand for the nearest that it knows. `fusion` is a configuration, or the name of a saved one, which by
        default asks the channels that it weighs. `rerank` lets a cross-encoder order the fused
        candidates, unless that takes longer than `rerank_seconds`. `per_record` shows only the best passage of each
        record; `exact` goes past the approximate index; `max_distance` cuts the vector channel. `as_of` (a time with
        zone, or a sequence) searches what stood then, always exactly. `continuation` is that of an earlier result of
        the same search; `timeout` is in seconds. `n_results` is another name for `limit`.
        """
        options: SearchOptions = {
            "limit": limit if n_results is None else n_results,
            "where": where,
            "channels": channels,
            "candidates": candidates,
            "mode": mode,
            "fuzzy": fuzzy,
            "rerank": rerank,
            "rerank_seconds": rerank_seconds,
            "per_record": per_record,
            "exact": exact,
            "max_distance": max_distance,
            "as_of": as_of,
            "continuation": continuation,
            "timeout": timeout,
        }
        return await self._run(named_fusions.search(self._state, query, fusion, options))

    async def get(self, record_id: str, *, revision: int | None = None) -> Record | None:
        """The record now, or at a revision; None when it does not exist (there) or is deleted."""
        return await self._run(operations.get_record(self._state, record_id, revision))

    async def history(self, record_id: str) -> list[Revision]:
        """Every revision of the record, oldest first."""
        return await self._run(operations.record_history(self._state, record_id))

    async def delete(self, record_ids: str | Sequence[str]) -> int:
        """Take records out of search, their history kept; how many there were."""
        return await self._run(operations.delete(self._state, record_ids))

    async def sync(
        self,
        documents: object,
        *,
        scope: Where | None = None,
        dry_run: bool = False,
        max_delete: float = 0.2,
        chunk_size: int = 1000,
        chunk_overlap: int = 200,
        separators: list[str] | None = None,
        length_function: Callable[[str], int] = len,
    ) -> SyncReport:
        """Ingest the documents, then delete the records that are not among them.

        `scope` is a filter that says which records the source answers for, None all. Raises TooManyDeletions, and
        deletes nothing, when more than the share `max_delete` of them would go. `dry_run` only tells.
        """
        cutting = Cutting(chunk_size, chunk_overlap, separators, length_function)
        steps = operations.sync_documents(self._state, documents, cutting, scope, dry_run, max_delete)
        return await self._run(steps)

    async def restore(self, record_id: str, revision: int) -> int:
        """Make what a revision said current again, as a new revision; its number. Raises NotFound."""
        return await self._run(operations.restore(self._state, record_id, revision))

    async def prune(self, *, keep_last: int | None = None, older_than: datetime | None = None) -> int:
        """Delete revisions that are not current: all but the last `keep_last`, those that ended before `older_than`.

        Given both, those that meet both. How many went; searches as of before then raise HistoryPruned.
        """
        return await self._run(operations.prune(self._state, keep_last, older_than))

    async def erase(self, record_ids: str | Sequence[str]) -> int:
        """Delete records for good, with every revision, chunk, vector and word; how many there were."""
        return await self._run(operations.erase(self._state, record_ids))

    async def count(self) -> int:
        """How many records there are."""
        return await self._run(operations.count(self._state))

    async def records(self, *, after: str | None = None, limit: int = 100) -> list[Record]:
        """A page of records in the order of their ids, from behind the id `after`."""
        return await self._run(operations.records(self._state, after, limit))

    async def store(self, content: str) -> str:
        """Ingest one text; the id of its record."""
        return await self._run(operations.store_text(self._state, content))

    async def list_all(self) -> list[str]:
        """The texts of all records in the order of their ids."""
        return await self._run(operations.list_all(self._state))

    async def reindex(self, *, min_chunks: int = MIN_CHUNKS, timeout: float | None = None) -> list[str]:
        """Build the indexes that a collection of this size wants and lacks; the names of those built.

        Searches and writers go on meanwhile; a build that broke off is done anew. Waits while another reindex of the
        store is at work. `timeout` is in seconds, for each index. Needs a connection to the server itself, or to a
        pooler in session mode.
        """
        return await self._run(operations.reindex(self._state, min_chunks, timeout))

    async def index_progress(self) -> IndexProgress | None:
        """How far the build of an index is, for a thread or task beside that of `reindex`; None when there is none."""
        return await self._run(operations.index_progress(self._state))

    async def save_fusion(self, name: str, config: WeightedReciprocalRankFusionConfig) -> str:
        """Save a configuration for `search(fusion=name)`, in place of the one that had the name; its fingerprint."""
        return await self._run(named_fusions.save(self._state, name, config))

    async def fusion(self, name: str) -> WeightedReciprocalRankFusionConfig:
        """The configuration saved under that name; read once, so that others' changes show in a new Collection.

        Raises NotFound, and Conflict when somebody has changed the row by hand.
        """
        return await self._run(named_fusions.load(self._state, name))

    async def evaluate(
        self,
        queries: Queries,
        qrels: Qrels,
        *,
        fusions: Sequence[str] = (),
        k: int = 10,
        recall_k: int = 100,
        progress: SearchesDone | None = None,
    ) -> EvaluationReport:
        """nDCG, recall, MRR, MAP and latency of each channel, of equal weights, and of the fusions of these names.

        `queries` are texts by id, or JudgedQuery; `qrels` holds for each query the grades of records by their ids.
        Each query is asked again for each channel and fusion.
        """
        steps = evaluate_collection(self._state, queries, qrels, fusions, k, recall_k, progress)
        return await self._run(steps)

    async def tune(
        self,
        queries: Queries,
        qrels: Qrels,
        *,
        name: str | None = None,
        held_out: Iterable[str] | None = None,
        k: int = 10,
        candidates: int = 100,
        progress: SearchesDone | None = None,
    ) -> TuningReport:
        """Find the channel weights, k and feature weights with the best nDCG@`k`, and say whether that is a gain.

        Tuned on some queries and checked on those `held_out`, by default every second one; without a gain beyond noise
        the weights stay equal. With a `name` the outcome is saved for `search(fusion=name)`.
        """
        steps = tune_collection(self._state, queries, qrels, name, held_out, k, candidates, progress)
        return await self._run(steps)

    async def refresh_statistics(self) -> bool:
        """Compute the word statistics anew; False when somebody else is at it."""
        return await self._run(operations.refresh_statistics(self._state))

    async def measure_recall(
        self, *, sample: int = 100, k: int = 10, where: Where | None = None
    ) -> RecallReport:
        """How much of the exact answer the vector index finds, asked with `sample` stored vectors."""
        return await self._run(operations.recall(self._state, sample, k, where))
