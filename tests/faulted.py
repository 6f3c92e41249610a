"""Operations that faults are injected into, each with what must be there after it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import sqlalchemy as sa

from cayu_pg import AsyncStore, CayuPgError, Document, HashEmbedder, PositionConflict, Store, migrate
from cayu_pg.migrating import found_revisions, known_revisions
from cayu_pg.sql.engine import open_engine
from tests.fault_proxy import Fault, FaultProxy
from tests.invariants import broken
from tests.talks import numbered

EMBEDDER = HashEmbedder(16)
SETTLED = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND (state <> 'idle' OR backend_type <> 'client backend')"""


@dataclass
class Ground:
    """One database, reached directly and through the proxy."""

    proxy: FaultProxy
    url: str
    direct: sa.Engine
    store: Store
    runs: Iterator[int] = field(default_factory=lambda: count(1))  # each leaves rows of its own

    @classmethod
    def on(cls, proxy: FaultProxy, url: str) -> Ground:
        return cls(proxy, url, open_engine(url), Store(proxy.url, embedder=EMBEDDER))

    @property
    def safe(self) -> Store:
        return Store(self.direct, embedder=EMBEDDER)

    def settle(self) -> None:
        """Wait until the server has noticed which clients are gone."""
        deadline = time.monotonic() + 10
        with self.direct.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while connection.scalar(sa.text(SETTLED)):
                assert time.monotonic() < deadline, "a statement of a lost client still runs"
                time.sleep(0.002)

    def close(self) -> None:
        self.store.close()
        self.direct.dispose()


class Operation:
    """What is done in run `n` of a fault, and what must be there then."""

    name = ""
    repeats = False  # whether it is done once more by itself when nobody knows whether it was committed

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    @property
    def allowed(self) -> set[str]:
        """The errors that a connection which breaks later than while connecting may lead to."""
        return set() if self.repeats else {"OutcomeUnknown"}

    def prepare(self, n: int) -> None:
        """What must be there before."""

    def act(self, n: int) -> None:
        """The operation, through the proxy."""
        raise NotImplementedError

    def again(self, n: int) -> None:
        """What a caller does after an error."""
        self.act(n)

    def lost(self, n: int) -> int:
        """How many rows are missing or too many when the operation has succeeded."""
        raise NotImplementedError


def documents(n: int, change: str = "", parts: int = 3) -> list[Document]:
    text = f"Run {n} writes a document{change}. " * 30
    metadata = {"run": n}
    return [Document(f"{text} {part}", id=f"{n}-{part}", metadata=metadata) for part in range(parts)]


class Records(Operation):
    """An operation after which the records of run `n` are exactly those expected."""

    def expected(self, n: int) -> list[Document]:
        return documents(n)

    def lost(self, n: int) -> int:
        wanted = {each.id: each.text for each in self.expected(n)}
        query = sa.text(
            "SELECT r.record_id, v.content FROM cayu.records r JOIN cayu.revisions v"
            " ON (v.collection_id, v.record_id, v.revision)"
            " = (r.collection_id, r.record_id, r.current_revision)"
            " WHERE r.record_id LIKE :run AND r.deleted_at IS NULL"
        )
        with self.ground.direct.connect() as connection:
            found = {row.record_id: row.content for row in connection.execute(query, {"run": f"{n}-%"})}
        return len(wanted.items() ^ found.items())


class Ingest(Records):
    name, repeats = "ingest", True

    def act(self, n: int) -> None:
        self.ground.store.collection("notes").ingest(documents(n))


class AsyncIngest(Ingest):
    name = "ingest, async"

    def act(self, n: int) -> None:
        async def ingest() -> None:
            async with AsyncStore(self.ground.proxy.url, embedder=EMBEDDER) as store:
                await (await store.collection("notes")).ingest(documents(n))

        asyncio.run(ingest())


class Sync(Records):
    name, repeats = "sync", True

    def expected(self, n: int) -> list[Document]:
        return documents(n, ", changed", parts=2)

    def prepare(self, n: int) -> None:
        self.ground.safe.collection("notes").ingest(documents(n))

    def act(self, n: int) -> None:
        self.ground.store.collection("notes").sync(self.expected(n), scope={"run": n}, max_delete=1)


class Delete(Records):
    name = "delete"

    def expected(self, n: int) -> list[Document]:
        return []

    def prepare(self, n: int) -> None:
        self.ground.safe.collection("notes").ingest(documents(n))

    def act(self, n: int) -> None:
        self.ground.store.collection("notes").delete([str(each.id) for each in documents(n)])


class Erase(Delete):
    name = "erase"

    @property
    def allowed(self) -> set[str]:
        # The server may not have noticed that a client is lost whose transaction holds the statistics.
        return {"OutcomeUnknown", "Conflict"}

    def act(self, n: int) -> None:
        self.ground.store.collection("notes").erase([str(each.id) for each in documents(n)])


class Drop(Operation):
    name, repeats = "drop_collection", True

    def prepare(self, n: int) -> None:
        self.ground.safe.collection(f"notes {n}").ingest(documents(n))

    def act(self, n: int) -> None:
        self.ground.store.drop_collection(f"notes {n}")

    def lost(self, n: int) -> int:
        return sum(each.name == f"notes {n}" for each in self.ground.safe.collections())


class Search(Operation):
    name, repeats = "search", True

    def prepare(self, n: int) -> None:
        self.ground.safe.collection("notes").ingest(documents(0))

    def act(self, n: int) -> None:
        found = self.ground.store.collection("notes").search("Run 0 writes", where={"run": 0})
        assert {hit.record_id for hit in found.hits} == {each.id for each in documents(0)}

    def lost(self, n: int) -> int:
        return 0


class AsyncSearch(Search):
    name = "search, async"

    def act(self, n: int) -> None:
        async def search() -> set[str]:
            async with AsyncStore(self.ground.proxy.url, embedder=EMBEDDER) as store:
                found = await (await store.collection("notes")).search("Run 0 writes", where={"run": 0})
                return {hit.record_id for hit in found.hits}

        assert asyncio.run(search()) == {each.id for each in documents(0)}


class Append(Operation):
    name, key = "append", None

    def act(self, n: int) -> None:
        talk = self.ground.store.transcript(f"{self.name} {n}")
        talk.append(numbered(3), expected_position=0, idempotency_key=self.key)

    def again(self, n: int) -> None:
        try:
            self.act(n)
        except PositionConflict as conflict:  # what was lost was the answer
            assert conflict.current == 3

    def lost(self, n: int) -> int:
        return abs(3 - self.ground.safe.transcript(f"{self.name} {n}").count())


class KeyedAppend(Append):
    name, key, repeats = "append with a key", "request", True

    def again(self, n: int) -> None:
        self.act(n)


class AsyncAppend(KeyedAppend):
    name = "append with a key, async"

    def act(self, n: int) -> None:
        async def append() -> None:
            async with AsyncStore(self.ground.proxy.url, embedder=EMBEDDER) as store:
                talk = await store.transcript(f"{self.name} {n}")
                await talk.append(numbered(3), expected_position=0, idempotency_key=self.key)

        asyncio.run(append())


class Migrate(Operation):
    name = "migrate"

    def act(self, n: int) -> None:
        migrate(self.ground.proxy.url, schema=f"run_{n}")

    def lost(self, n: int) -> int:
        with self.ground.direct.connect() as connection:
            found = found_revisions(connection, f"run_{n}")
        return int(found != known_revisions()[:1])


OPERATIONS: tuple[type[Operation], ...] = (
    Search,
    AsyncSearch,
    Ingest,
    AsyncIngest,
    Sync,
    Delete,
    Erase,
    Drop,
    Append,
    KeyedAppend,
    AsyncAppend,
    Migrate,
)


@dataclass
class Tally:
    """What faults led to, and how many rows were lost, or written by half."""

    outcomes: Counter[str] = field(default_factory=Counter)
    lost: int = 0


def messages_of(operation: Operation) -> int:
    """How many messages pass in both directions when nothing goes wrong."""
    ground = operation.ground
    for _ in range(2):  # the first time an engine also asks the server who it is
        n = next(ground.runs)
        operation.prepare(n)
        ground.store.engine.dispose()
        ground.proxy.arm(Fault("delay", 1_000_000))
        operation.act(n)
    ground.store.engine.dispose()
    return ground.proxy.seen


def injure(operation: Operation, faults: Iterable[Fault]) -> Tally:
    """Let each fault happen in a run of its own, and see that nothing is lost and that the next call works."""
    ground, tally = operation.ground, Tally()
    for fault in faults:
        n = next(ground.runs)
        operation.prepare(n)
        ground.store.engine.dispose()  # so that connecting is among what is hurt
        ground.proxy.arm(fault)
        outcome = "done"
        try:
            operation.act(n)
        except CayuPgError as error:
            assert error.__cause__ is not None
            outcome = type(error).__name__
        if not ground.proxy.fired:
            outcome = "untouched"
        ground.proxy.heal()
        ground.settle()
        tally.lost += operation.lost(n) if outcome == "done" else 0
        tally.lost += sum(map(len, broken(ground.direct).values()))
        operation.again(n)
        tally.lost += operation.lost(n)
        tally.outcomes[outcome] += 1
    return tally
