"""Kills during ingest: SIGKILL of the client, `kill -9` of the server, and what the tables hold afterwards.

    python -m benchmarks.chaos [--rounds 20] [--documents 2000]

Each round brings another generation of the same documents (some unchanged, some changed, shorter or longer) into a
collection, and kills the client, then with the next generation the server, at a random moment. After each kill the
tables are checked by SQL and the ingest runs again. The texts that the second run embeds are counted: what had
been committed must not be embedded again. The server is one of its own in a temporary folder, durable as by default.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import psycopg
from numpy.typing import NDArray

from cayu_pg import Document, HashEmbedder, Store, migrate
from cayu_pg.embedded import EmbeddedServer, status
from cayu_pg.splitting import split_spans

Victim = Literal["client", "server"]

CHUNK_SIZE = 130
EMBEDDING_SECONDS = 0.02  # a batch, so that kills also fall between the look-up and the write

# Each query counts what must not be.
BROKEN = {
    "records that point at no revision": """
        SELECT count(*) FROM cayu.records r WHERE NOT EXISTS (
            SELECT FROM cayu.revisions v WHERE v.collection_id = r.collection_id
            AND v.record_id = r.record_id AND v.revision = r.current_revision)""",
    "revisions beyond their record's pointer, or of no finished write": """
        SELECT count(*) FROM cayu.revisions v JOIN cayu.records r USING (collection_id, record_id)
        LEFT JOIN cayu.batches b USING (collection_id, batch_id)
        WHERE v.revision > r.current_revision OR b.batch_id IS NULL""",
    "revisions whose chunks do not cover their text": """
        SELECT count(*) FROM (
            SELECT FROM cayu.revisions v
            LEFT JOIN cayu.revision_chunks p USING (collection_id, record_id, revision)
            LEFT JOIN cayu.chunks k USING (collection_id, chunk_id)
            GROUP BY v.collection_id, v.record_id, v.revision
            HAVING max(p.ordinal) IS DISTINCT FROM count(*) - 1
                OR min(p.start_offset) <> 0 OR max(p.end_offset) <> length(v.content)
                OR bool_or(k.text <> substr(v.content, p.start_offset + 1, p.end_offset - p.start_offset))
        ) uncovered""",
    "chunks current without a current revision that holds them, or the reverse": """
        SELECT count(*) FROM cayu.chunks k WHERE k.current <> EXISTS (
            SELECT FROM cayu.revision_chunks p JOIN cayu.records r USING (collection_id, record_id)
            WHERE p.collection_id = k.collection_id AND p.chunk_id = k.chunk_id
            AND p.revision = r.current_revision)""",
    "chunks whose vector is missing or current when they are not": """
        SELECT count(*) FROM cayu.chunks k JOIN cayu.collections c ON c.id = k.collection_id
        LEFT JOIN cayu.chunk_embeddings e ON e.collection_id = k.collection_id AND e.chunk_id = k.chunk_id
            AND e.space_id = c.active_space_id
        WHERE e.current IS DISTINCT FROM k.current""",
    "chunks whose words are missing or current when they are not": """
        SELECT count(*) FROM cayu.chunks k
        JOIN cayu.collections c ON c.id = k.collection_id
        JOIN cayu.statistics_versions s ON s.collection_id = c.id AND s.version = c.active_statistics
        LEFT JOIN cayu.chunk_lexemes l ON l.collection_id = k.collection_id AND l.chunk_id = k.chunk_id
            AND l.weights_version = s.weights_version
        WHERE l.current IS DISTINCT FROM k.current""",
}
EMBEDDED = """
SELECT DISTINCT k.text FROM cayu.chunks k JOIN cayu.chunk_embeddings e USING (collection_id, chunk_id)"""
CURRENT = """
SELECT v.record_id, v.content FROM cayu.revisions v JOIN cayu.records r USING (collection_id, record_id)
WHERE v.revision = r.current_revision"""


@dataclass(frozen=True)
class Kill:
    """What one kill found: how much was embedded before it, left to embed, and embedded by the run after it."""

    victim: Victim
    before: int
    left: int
    after: int
    broken: dict[str, int]
    complete: bool

    @property
    def good(self) -> bool:
        """Whether nothing was broken, and the run after it finished at the cost of what was missing."""
        return not self.broken and self.complete and self.after == self.left


class Logging:
    """A HashEmbedder that takes its time and writes down how many texts it was given."""

    model, dimensions = "hash-16", 16

    def __init__(self, log: Path) -> None:
        self.log = log
        self.inner = HashEmbedder(self.dimensions)

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        time.sleep(EMBEDDING_SECONDS)
        with self.log.open("a") as file:
            file.write(f"{len(texts)}\n")
        return self.inner.encode_documents(texts)

    def encode_query(self, text: str) -> NDArray[np.float32]:
        return self.inner.encode_query(text)


def documents(generation: int, count: int) -> Iterator[Document]:
    """Two of three change from one generation to the next, in their number of paragraphs or in some of them."""
    for number in range(count):
        version = generation - (number + generation) % 3 % 2
        rng = random.Random(number * 10_007 + version)
        paragraphs = [
            f"Paragraph {place} of {number} as of {version * rng.randrange(2)}:" + " some words more" * 5
            for place in range(rng.randint(1, 5))
        ]
        yield Document("\n\n".join(paragraphs), id=f"{number:06}")


def ingest(url: str, generation: int, count: int, log: Path) -> None:
    """What the client does that is killed."""
    with Store(url, embedder=Logging(log)) as store:
        collection = store.collection("notes")
        log.touch()
        collection.ingest(documents(generation, count), chunk_size=CHUNK_SIZE, chunk_overlap=0)


def chunk_texts(generation: int, count: int) -> set[str]:
    return {
        each.text[span.start : span.end]
        for each in documents(generation, count)
        for span in split_spans(each.text, chunk_size=CHUNK_SIZE, chunk_overlap=0)
    }


def broken(connection: psycopg.Connection) -> dict[str, int]:
    """What the tables hold that must not be, by name."""
    counts = {name: connection.execute(query.encode()).fetchone() for name, query in BROKEN.items()}
    return {name: row[0] for name, row in counts.items() if row is not None and row[0]}


def start_client(url: str, generation: int, count: int, log: Path) -> subprocess.Popen[bytes]:
    """The client, once it is about to ingest."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--client", url, "--log", str(log)]
    command += ["--generation", str(generation), "--documents", str(count)]
    client = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=Path(__file__).parent.parent)
    while not log.exists() and client.poll() is None:
        time.sleep(0.005)
    return client


def kill(victim: Victim, path: Path, client: subprocess.Popen[bytes]) -> None:
    """Kill one of the two; then the client is gone, and nobody writes for it any more."""
    server = status(path).pid
    if victim == "server":
        assert server is not None
        os.kill(server, signal.SIGKILL)
    else:
        client.kill()
    client.communicate(timeout=60)  # a client whose server is gone has to say so by itself
    assert client.returncode in (0, 1, -signal.SIGKILL), client.returncode  # 0: it had just finished


def await_alone(connection: psycopg.Connection) -> None:
    """Wait until the backends of a killed client have noticed."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    while (row := connection.execute(others).fetchone()) is not None and row[0]:
        connection.rollback()
        time.sleep(0.02)


def finished(url: str, generation: int, count: int, log: Path) -> bool:
    """Ingest in a client that nobody kills; whether the records are now what the documents say."""
    client = start_client(url, generation, count, log)
    _, errors = client.communicate(timeout=600)
    if client.returncode:
        raise RuntimeError(errors.decode()[-2000:])
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return dict(connection.execute(CURRENT).fetchall()) == {
            each.record_id: each.text for each in documents(generation, count)
        }


def embedded_texts(log: Path) -> int:
    return sum(int(line) for line in log.read_text().split())


def killed(path: Path, victim: Victim, generation: int, count: int, seconds: float) -> Kill:
    """One ingest that is killed `seconds` after it began, and one that finishes."""
    with tempfile.TemporaryDirectory() as temporary, EmbeddedServer.start(path) as server:
        before, after = Path(temporary) / "before", Path(temporary) / "after"
        client = start_client(server.url, generation, count, before)
        time.sleep(seconds)
        kill(victim, path, client)
        with (
            EmbeddedServer.start(path) as again,
            psycopg.connect(again.url.replace("+psycopg", "")) as connection,
        ):
            await_alone(connection)
            found = broken(connection)
            have = {row[0] for row in connection.execute(EMBEDDED)}
            left = len(chunk_texts(generation, count) - have)
            complete = finished(again.url, generation, count, after)
            found |= broken(connection)
        return Kill(victim, embedded_texts(before), left, embedded_texts(after), found, complete)


def kills(path: Path, rounds: int, count: int, seed: int = 1) -> Iterator[Kill]:
    """The outcome of each kill, of clients and of servers in turns, at random moments of an ingest."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary, EmbeddedServer.start(path) as server:
        migrate(server.url)
        began = time.perf_counter()
        ingest(server.url, 0, count, Path(temporary) / "first")
        typical = time.perf_counter() - began
    for generation in range(1, 2 * rounds + 1):
        victim: Victim = "client" if generation % 2 else "server"
        yield killed(path, victim, generation, count, rng.uniform(0, typical * 0.9))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--documents", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    for name in ("--client", "--generation", "--log"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        ingest(options.client, int(options.generation), options.documents, Path(options.log))
        return
    with tempfile.TemporaryDirectory() as temporary:
        outcomes = []
        for each in kills(Path(temporary) / "data", options.rounds, options.documents, options.seed):
            outcomes.append(each)
            print(f"{each} {'good' if each.good else 'BAD'}", flush=True)
    cut = sum(each.left > 0 for each in outcomes)
    print(f"{len(outcomes)} kills, {cut} with work left, {sum(not each.good for each in outcomes)} bad")
    sys.exit(not all(each.good for each in outcomes))


if __name__ == "__main__":
    main()
