"""The synchronous door: Store and Collection, which open the transactions that the operations ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import sqlalchemy as sa

from cayu_pg import message_search, operations, transcripts
from cayu_pg.arguments import check_name, check_path
from cayu_pg.collection import Collection
from cayu_pg.connections import Borrowed, Connections, connection_of, pool_of
from cayu_pg.defaults import DISTANCE, K1, QUANTIZATION, TEXT_CONFIG, B, Distance, Quantization
from cayu_pg.doctor import examine
from cayu_pg.embedding import Embedder
from cayu_pg.findings import DoctorReport
from cayu_pg.message_search import MessageHits, which_messages
from cayu_pg.migrating import check_schema_name, migrate
from cayu_pg.operations import CollectionSettings, StoreState
from cayu_pg.query import SearchResult
from cayu_pg.replicas import Replica, through_replica
from cayu_pg.reranking import Reranker
from cayu_pg.search_request import SearchOptions
from cayu_pg.sql.collections import CollectionSummary
from cayu_pg.sql.engine import check_driver
from cayu_pg.sql.tables import DEFAULT_SCHEMA
from cayu_pg.steps import (
    Beside,
    Compute,
    Maintain,
    Read,
    ReadReplica,
    Repeatable,
    Step,
    Steps,
    Write,
    drive,
)
from cayu_pg.timeouts import Timeouts, timeouts_of, within
from cayu_pg.transcript import Transcript
from cayu_pg.transcripts import OnInvalid, RetentionReport, transcript_state

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from cayu_pg.embedded import EmbeddedServer

R = TypeVar("R")


class Store:
    """A retrieval store in a migrated schema of a Postgres database.

    `url_or_engine` is a `postgresql://` URL or a SQLAlchemy Engine, which stays the caller's. Nothing is sent before
    the first operation. Without `embedder` all-MiniLM-L6-v2 is loaded when first needed. The timeouts are those of
    `with_timeouts`.

    `next_embedder` is the one that some process changes, or will change, collections to: meanwhile ingests write the
    vectors of both, and searches go over to it when the collection does.

    `read_url` is that of a streaming replica, or an engine for one. What only answers is read there, and from the
    primary while the replica is away. With `read_your_writes` a read waits up to `replica_wait` seconds until this
    store's own writes have arrived there, then the primary answers; those of others may be missing for a moment.
    """

    def __init__(
        self,
        url_or_engine: str | sa.URL | sa.Engine,
        *,
        schema: str = DEFAULT_SCHEMA,
        embedder: Embedder | None = None,
        next_embedder: Embedder | None = None,
        reranker: Reranker | None = None,
        statement_timeout: float | None = None,
        lock_timeout: float | None = None,
        read_url: str | sa.URL | sa.Engine | None = None,
        read_your_writes: bool = True,
        replica_wait: float = 1.0,
    ) -> None:
        pool = pool_of("url_or_engine", url_or_engine)
        self._engine = pool.engine
        self._connections: Connections = pool
        operations.check_models(embedder=embedder, next_embedder=next_embedder, reranker=reranker)
        self._state = StoreState(check_schema_name(schema), embedder, next_embedder, reranker)
        self._tenant = "default"
        self._timeouts = timeouts_of(statement_timeout, lock_timeout)
        self._server: EmbeddedServer | None = None
        replica = Replica(read_your_writes=read_your_writes, wait=replica_wait)
        self._replica = None if read_url is None else replica
        self._replica_pool = pool
        if read_url is not None:
            self._replica_pool = pool_of("read_url", read_url)
        given = (url_or_engine, read_url)
        self._owned = {pool.engine, self._replica_pool.engine}.difference(given)

    @classmethod
    def embedded(
        cls,
        path: str | Path | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        embedder: Embedder | None = None,
        next_embedder: Embedder | None = None,
        reranker: Reranker | None = None,
    ) -> Self:
        """A store in a private PostgreSQL with pgvector, started and migrated on first use.

        `path` is the data directory, by default one in the user's data directory. `close()` stops the server unless
        somebody else uses it.
        """
        from cayu_pg.embedded import EmbeddedServer

        check_schema_name(schema)
        operations.check_models(embedder=embedder, next_embedder=next_embedder, reranker=reranker)
        server = EmbeddedServer.start(check_path(path))
        try:
            migrate(server.url, schema=schema)
            store = cls(
                server.url, schema=schema, embedder=embedder, next_embedder=next_embedder, reranker=reranker
            )
        except BaseException:
            server.close()
            raise
        store._server = server
        store._state.builds_indexes = True
        return store

    @property
    def engine(self) -> sa.Engine:
        """The SQLAlchemy Engine."""
        return self._engine

    def collection(
        self,
        name: str,
        *,
        tenant: str | None = None,
        text_config: str = TEXT_CONFIG,
        analyzer: str | None = None,
        embedder: Embedder | None = None,
        next_embedder: Embedder | None = None,
        distance: Distance = DISTANCE,
        quantization: Quantization = QUANTIZATION,
        k1: float = K1,
        b: float = B,
        create: bool = True,
    ) -> Collection:
        """The collection `name`; made with these settings when absent, or NotFound without `create`.

        One that is given and not what an existing collection was made with raises InvalidInput; those left out fit it.
        `distance` and `quantization` are those of vectors: `binary` keeps one bit a number in the vector index and
        scores what it finds again by the full vectors, which is smaller and less exact. `k1` and `b` are those of BM25;
        short texts such as chat turns prefer b = 0.4.
        """
        settings = CollectionSettings(
            text_config, analyzer, embedder, next_embedder, distance, quantization, k1, b
        )
        steps = operations.open_collection(self._state, self._tenant_or(tenant), name, settings, create)
        return Collection(self._run, self._run(steps))

    def collections(self) -> list[CollectionSummary]:
        """The tenant's collections by name, with what they hold."""
        return self._run(operations.list_collections(self._state, self._tenant))

    def drop_collection(self, name: str) -> bool:
        """Delete a collection with everything in it; whether there was one."""
        return self._run(operations.drop_collection(self._state, self._tenant, name))

    def search(self, names: Sequence[str], query: str, **options: Unpack[SearchOptions]) -> SearchResult:
        """Search several collections as one, with the options of `Collection.search`.

        Their channels are called `vector:<name>` and `text:<name>`, and identities begin with `<name>/`.
        """
        request = operations.request_of(self._state, query, options)
        return self._run(operations.search_collections(self._state, self._tenant, names, request))

    def transcript(self, transcript_id: str, *, tenant: str | None = None) -> Transcript:
        """The conversation `transcript_id`; it need not exist, its first append creates it."""
        wanted = self._tenant_or(tenant)
        return Transcript(self._run, transcript_state(self._state, wanted, transcript_id))

    def search_messages(
        self,
        query: str,
        *,
        roles: str | Iterable[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        on_invalid: OnInvalid = "raise",
    ) -> MessageHits:
        """The messages of all the tenant's transcripts that hold words of `query`, as one transcript's `search`."""
        which = which_messages(roles, since, until)
        return self._run(
            message_search.search_messages(self._state, self._tenant, query, which, limit, on_invalid)
        )

    def delete_messages_older_than(
        self, cutoff: datetime, *, batch: int = 1_000, dry_run: bool = False
    ) -> RetentionReport:
        """Delete what was said in the tenant's transcripts before `cutoff`, `batch` messages a transaction.

        Transcripts keep their next positions and idempotency keys. A dry run only counts.
        """
        return self._run(
            transcripts.delete_messages_older_than(self._state, self._tenant, cutoff, batch, dry_run)
        )

    def doctor(self, *, timeout: float = 10.0) -> DoctorReport:
        """What is wrong or slow, or soon will be, and what to do: of the server, the schema, the tenant's collections.

        It only reads, no statement for longer than `timeout` seconds. What takes longer, is not allowed, or cannot be
        reached is a finding, too.
        """
        steps = examine(
            self._state,
            self._tenant,
            pool=self._engine.pool,
            has_replica=self._replica is not None,
            timeout=timeout,
        )
        return self._run(steps)

    def for_tenant(self, tenant: str) -> Store:
        """The same store for one tenant, open for as long as this one is."""
        return self._derived(tenant=check_name("tenant", tenant))

    def with_timeouts(
        self, *, statement_timeout: float | None = None, lock_timeout: float | None = None
    ) -> Store:
        """The same store, whose statements are stopped after so many seconds, or when a lock takes so long.

        A call may send several statements. None leaves it to the server. QueryCanceled says that one was stopped;
        building and dropping indexes has limits of its own.
        """
        return self._derived(timeouts=timeouts_of(statement_timeout, lock_timeout))

    def without_replica(self) -> Store:
        """The same store, whose reads see every committed write, also of others, because the primary answers."""
        return self._derived(uses_replica=False)

    def using(self, connection: sa.Connection | Session) -> Store:
        """The same store inside the caller's transaction, which only the caller commits or rolls back.

        Writes of a collection are numbered in the order of their commits, so one in here keeps other writers of that
        collection waiting until the caller's end; searches and other collections go on.
        """
        conn = connection if isinstance(connection, sa.Connection) else connection_of(connection)
        check_driver("connection", conn.dialect)
        return self._derived(connections=Borrowed(conn))

    def close(self) -> None:
        """Close the connections, and the embedded server unless somebody else uses it."""
        for engine in self._owned:
            engine.dispose()
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tenant_or(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else tenant

    def _derived(
        self,
        *,
        tenant: str | None = None,
        connections: Connections | None = None,
        timeouts: Timeouts | None = None,
        uses_replica: bool = True,
    ) -> Store:
        store = Store.__new__(Store)
        store._owned = set()
        store._engine, store._replica_pool = self._engine, self._replica_pool
        store._replica = self._replica if connections is None and uses_replica else None
        store._connections = connections or self._connections
        state = self._state
        borrowed = state.borrowed or connections is not None
        store._state = replace(state, borrowed=borrowed, builds_indexes=state.builds_indexes and not borrowed)
        store._tenant = tenant or self._tenant
        store._timeouts = timeouts or self._timeouts
        store._server = None
        return store

    def _run(self, steps: Steps[R]) -> R:
        return drive(through_replica(within(steps, self._timeouts), self._replica), self._perform)

    def _perform(self, step: Step) -> Any:
        match step:
            case ReadReplica(function):
                return self._replica_pool.reading(function)
            case Read(function):
                return self._connections.reading(function)
            case Write(function):
                return self._connections.writing(function)
            case Repeatable(function):
                return self._connections.repeating(function)
            case Maintain(function):
                return self._connections.maintaining(function)
            case Compute(call):
                return call()
            case Beside(writes, steps):
                return self._connections.beside(
                    lambda: self._perform(writes), lambda: drive(steps, self._perform)
                )
