"""Workers that ingest, search, append and delete at once for a while: errors, leaked connections, memory.

    python -m benchmarks.soak [--minutes 10] [--workers 16]

One process with an AsyncStore on an embedded server of its own. Documents and transcripts are bounded in number, so
that what grows is a leak. Memory is what is resident: of this process, and of the server's sessions without what
they share (`Private_Dirty` and `Private_Clean`).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import sqlalchemy as sa

from cayu_pg import AsyncStore, CayuPgError, Document, HashEmbedder, Message, migrate
from cayu_pg.embedded import EmbeddedServer
from cayu_pg.sql.engine import open_engine
from tests.conftest import temporary_folder
from tests.invariants import broken

DOCUMENTS = 400
TRANSCRIPTS = 40
KEPT = 500  # messages of a transcript
WORDS = [f"word{number}" for number in range(3_000)]
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@dataclass
class Sample:
    """What was seen at one time."""

    seconds: float
    client_mb: float
    sessions: int
    session_mb: float


@dataclass
class Soak:
    """What the workers share, and what is counted."""

    store: AsyncStore
    until: float
    calls: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


async def ingest(soak: Soak, choose: random.Random) -> None:
    notes = await soak.store.collection("notes")
    some = [
        Document(" ".join(choose.choices(WORDS, k=choose.randrange(50, 800))), id=str(number))
        for number in choose.sample(range(DOCUMENTS), 3)
    ]
    await notes.ingest(some)


async def search(soak: Soak, choose: random.Random) -> None:
    notes = await soak.store.collection("notes")
    found = await notes.search(" ".join(choose.choices(WORDS, k=4)), limit=5)
    assert len(found.hits) <= 5


async def append(soak: Soak, choose: random.Random) -> None:
    talk = await soak.store.transcript(f"talk {choose.randrange(TRANSCRIPTS)}")
    message = Message.text("user", " ".join(choose.choices(WORDS, k=20)))
    done = await talk.append(message, idempotency_key=str(choose.getrandbits(64)))
    if done.last % 100 == 0:
        await talk.delete_before(max(0, done.last - KEPT))


async def delete(soak: Soak, choose: random.Random) -> None:
    notes = await soak.store.collection("notes")
    await notes.delete([str(choose.randrange(DOCUMENTS))])


async def tidy(soak: Soak, choose: random.Random) -> None:
    """History and dead keys would grow for ever: prune, and end a transcript now and then."""
    await (await soak.store.collection("notes")).prune(keep_last=2)
    await (await soak.store.transcript(f"talk {choose.randrange(TRANSCRIPTS)}")).delete()


CALLS: dict[Callable[[Soak, random.Random], Awaitable[None]], int] = {
    ingest: 30,
    search: 40,
    append: 25,
    delete: 5,
    tidy: 1,
}


async def work(soak: Soak, number: int) -> None:
    choose = random.Random(number)
    calls, weights = list(CALLS), list(CALLS.values())
    while time.monotonic() < soak.until:
        call = choose.choices(calls, weights)[0]
        try:
            await call(soak, choose)
        except (CayuPgError, sa.exc.SQLAlchemyError, RuntimeError) as error:
            soak.errors.append(f"{call.__name__}: {type(error).__name__}: {error}")
        soak.calls[call.__name__] += 1


async def watch(soak: Soak, watcher: sa.Engine, every: float) -> None:
    began = time.monotonic()
    while time.monotonic() < soak.until:
        await asyncio.sleep(min(every, max(0.0, soak.until - time.monotonic())))
        soak.samples.append(await asyncio.to_thread(sample, watcher, began))


def sample(watcher: sa.Engine, began: float) -> Sample:
    with watcher.connect() as connection:
        sessions = [tuple(row) for row in connection.execute(sa.text(SESSIONS))]
    return Sample(
        seconds=time.monotonic() - began,
        client_mb=psutil.Process().memory_info().rss / 1e6,
        sessions=len(sessions),
        session_mb=sum(private_memory(process) for (process,) in sessions),
    )


def private_memory(process: int) -> float:
    """Megabytes that a process has for itself; 0 when it has ended or may not be looked at."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3


async def soak_for(seconds: float, workers: int, url: str, every: float) -> Soak:
    """Let the workers run against a migrated database, and what was counted."""
    watcher = open_engine(url)
    async with AsyncStore(url, embedder=HashEmbedder(64)) as store:
        await store.collection("notes")
        soak = Soak(store, time.monotonic() + seconds)
        await asyncio.gather(watch(soak, watcher, every), *(work(soak, n) for n in range(workers)))
        checked_out = store.engine.pool.checkedout()  # type: ignore[attr-defined]
        if checked_out:
            soak.errors.append(f"{checked_out} connections were not given back")
    left = await asyncio.to_thread(sessions_left, watcher)
    soak.errors += [f"a session is left: {each}" for each in left]
    soak.errors += [f"{what}: {len(found)}" for what, found in broken(watcher).items()]
    watcher.dispose()
    return soak


def sessions_left(watcher: sa.Engine) -> list[object]:
    """The sessions that are there a moment after the store was closed."""
    for _ in range(50):
        with watcher.connect() as connection:
            found = [tuple(row) for row in connection.execute(sa.text(SESSIONS))]
        if not found:
            return []
        time.sleep(0.1)
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=16)
    options = parser.parse_args()
    with temporary_folder() as folder, EmbeddedServer.start(folder / "data") as server:
        migrate(server.url)
        seconds = options.minutes * 60
        soak = asyncio.run(soak_for(seconds, options.workers, server.url, every=seconds / 10))
    print("| seconds | client MB | sessions | their own MB |")
    print("| --- | --- | --- | --- |")
    for each in soak.samples:
        print(f"| {each.seconds:.0f} | {each.client_mb:.0f} | {each.sessions} | {each.session_mb:.0f} |")
    print(", ".join(f"{name} {count}" for name, count in soak.calls.most_common()))
    print(f"errors: {len(soak.errors)}", *soak.errors[:20], sep="\n")


if __name__ == "__main__":
    main()
