"""Rows a second without model time: our ingest, other libraries' bulk ways, and a bare COPY into the same tables.

    python -m benchmarks.bulk_load PASSAGES.jsonl [--peers PYTHON] [--rows 10000] [--rounds 3]

PASSAGES has rows with "text"; a row joins 4 to 8 neighbours (about 120 words), is a document of one chunk, and brings
a random unit vector of 384 dimensions. PYTHON has langchain-postgres and llama-index-vector-stores-postgres. All on one
embedded server with its default, durable settings, each round and each library in a new database. No library builds a
vector index meanwhile. The bare COPY writes the rows of our ingest, read back before, into the same tables with
the same keys, constraints and indexes: one binary COPY a table, one transaction. Its words come ready made; in a second
kind the server makes the tsvectors (without weights) from the chunks that were copied, as any load of new text must.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psycopg
import sqlalchemy as sa
from numpy.typing import NDArray

from benchmarks.bm25_scale import texts as joined
from benchmarks.bulk_load_peers import PEERS
from cayu_pg import Document, Store, migrate
from cayu_pg.embedded import EmbeddedServer

DIMENSIONS = 384
TABLES = (
    "batches",
    "records",
    "revisions",
    "chunks",
    "revision_chunks",
    "chunk_embeddings",
    "chunk_lexemes",
)


WORDS = b"""
INSERT INTO chunk_lexemes (collection_id, chunk_id, weights_version, tenant, current, length, tsv, weights)
SELECT k.collection_id, k.chunk_id, 1, k.tenant, true, 1, to_tsvector('english', k.text), '{}/1000000000'
FROM chunks k"""


class Precomputed:
    """An embedder that looks vectors up."""

    model = "precomputed"
    dimensions = DIMENSIONS

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.rows = dict(zip(texts, vectors, strict=True))

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.rows[text] for text in texts])

    def encode_query(self, text: str) -> NDArray[np.float32]:
        return self.rows[text]


def ours(url: str, texts: list[str], vectors: NDArray[np.float32]) -> tuple[float, float]:
    """Seconds of the ingest, and of the GIN and HNSW builds after it."""
    migrate(url)
    documents = [Document(text, id=str(number)) for number, text in enumerate(texts)]
    with Store(url, embedder=Precomputed(texts, vectors)) as store:
        collection = store.collection("bulk")
        began = time.perf_counter()
        report = collection.ingest(documents, chunk_size=100_000, chunk_overlap=0)
        spent = time.perf_counter() - began
        assert report.chunks_added == len(texts)
        began = time.perf_counter()
        collection.reindex(min_chunks=1)
        return spent, time.perf_counter() - began


def bare_copies(url: str) -> tuple[float, float]:
    """Seconds of writing again what the tables hold: with the words as they are, and with tsvectors made anew."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("SET search_path TO cayu, public")
        for (name,) in connection.execute(
            "SELECT indexname FROM pg_indexes WHERE indexname ~ '^(hnsw|gin_words|gin_metadata)_'"
        ).fetchall():
            connection.execute(f"DROP INDEX {name}".encode())
        content = {}
        for table in TABLES:
            with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)".encode()) as copy:
                content[table] = b"".join(copy)
        return copied(connection, content, TABLES, b"SELECT"), copied(connection, content, TABLES[:-1], WORDS)


def copied(
    connection: psycopg.Connection, content: dict[str, bytes], tables: Sequence[str], last: bytes
) -> float:
    connection.execute("TRUNCATE batches, records CASCADE")
    connection.commit()
    began = time.perf_counter()
    for table in tables:
        with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)".encode()) as copy:
            copy.write(content[table])
    connection.execute(last)
    connection.commit()
    return time.perf_counter() - began


def new_database(server_url: str, name: str) -> str:
    with psycopg.connect(server_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
    url = sa.make_url(server_url).set(drivername="postgresql+psycopg", database=name)
    return url.render_as_string(hide_password=False)


def peer(python: str, name: str, url: str, folder: Path) -> float:
    command = [python, str(Path(__file__).with_name("bulk_load_peers.py")), name, url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return float(done.stdout)


def run(
    server_url: str, texts: list[str], vectors: NDArray[np.float32], peers: str | None, rounds: int
) -> None:
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "texts.json").write_text(json.dumps(texts))
        np.save(folder / "vectors.npy", vectors)
        for _ in range(rounds):
            url = new_database(server_url, "bulk_ours")
            spent, built = ours(url, texts, vectors)
            seconds.setdefault("cayu_pg ingest", []).append(spent)
            seconds.setdefault("cayu_pg ingest and its indexes", []).append(spent + built)
            for name, bare in zip(("bare COPY", "bare COPY, tsvectors made"), bare_copies(url), strict=True):
                seconds.setdefault(name, []).append(bare)
            for name in PEERS if peers else ():
                url = new_database(server_url, "bulk_peer")
                seconds.setdefault(name, []).append(peer(peers or "", name, url, folder))
    print_table(len(texts), seconds)


def print_table(rows: int, seconds: dict[str, list[float]]) -> None:
    mine = statistics.median(seconds["cayu_pg ingest"])
    print("| | rows/s | fastest round | cayu_pg ingest is |\n|---|---|---|---|")
    for name, spent in seconds.items():
        median = statistics.median(spent)
        print(f"| {name} | {rows / median:,.0f} | {rows / min(spent):,.0f} | {median / mine:.2f} times |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages", type=Path)
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    passages = [json.loads(line)["text"] for line in options.passages.open()]
    unique = dict.fromkeys(joined(passages, options.rows + options.rows // 10))
    texts = list(unique)[: options.rows]
    vectors = np.random.default_rng(7).standard_normal((len(texts), DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as temporary, EmbeddedServer.start(Path(temporary) / "data") as server:
        run(server.url, texts, vectors, options.peers, options.rounds)


if __name__ == "__main__":
    main()
