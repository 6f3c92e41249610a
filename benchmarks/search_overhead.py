"""What a search costs outside the database and the model, beside the same SQL sent by hand.

    python benchmarks/search_overhead.py --data DIRECTORY [--rows 20000] [--runs 300]

Both channels, limit 10, candidates 100, over random words and random unit vectors in the embedded server at
DIRECTORY. The statements of one search are recorded and sent again by psycopg on a connection with the same settings:
begin, SET, the two queries with every row fetched, rollback; nothing is ranked or fused. Own time is what is left of a
search without the cursors' `execute` and without the model. The two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg import Collection, Document, Store

WORDS = [f"word{number}" for number in range(2_000)]
QUESTION = "word1 word20 word300"


@dataclass
class Clock:
    """Milliseconds spent in what is timed."""

    spent: float = 0.0

    def time(self, function: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.spent += (time.perf_counter() - began) * 1000


class UnitVectors:
    """Random unit vectors; the time of a question's is taken."""

    model = "unit-64"
    dimensions = 64

    def __init__(self) -> None:
        self.clock = Clock()
        self.random = np.random.default_rng(3)

    def encode_documents(self, texts: Any) -> NDArray[np.float32]:
        vectors = self.random.standard_normal((len(texts), self.dimensions))
        found: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(
            np.float32
        )
        return found

    def encode_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.clock.time(self.encode_documents, [text])[0]
        return vector


@dataclass
class Recorder:
    """The statements that an engine sends, and the time that their execution took."""

    clock: Clock = field(default_factory=Clock)
    statements: list[tuple[str, Any]] = field(default_factory=list)
    began: float = 0.0

    def before(self, *arguments: Any) -> None:
        self.statements.append((arguments[2], arguments[3]))
        self.began = time.perf_counter()

    def after(self, *_: Any) -> None:
        self.clock.spent += (time.perf_counter() - self.began) * 1000


@contextmanager
def recorded(engine: sa.Engine) -> Iterator[Recorder]:
    recorder = Recorder()
    sa.event.listen(engine, "before_cursor_execute", recorder.before)
    sa.event.listen(engine, "after_cursor_execute", recorder.after)
    try:
        yield recorder
    finally:
        sa.event.remove(engine, "before_cursor_execute", recorder.before)
        sa.event.remove(engine, "after_cursor_execute", recorder.after)


def open_rows(store: Store, rows: int, embedder: UnitVectors) -> Collection:
    collection = store.collection(f"overhead-{rows}", embedder=embedder)
    if collection.count() < rows:
        chosen = np.random.default_rng(1).choice(WORDS, (rows, 60))
        collection.ingest(
            Document(f"{' '.join(words)} {number}", id=f"{number:06}", metadata={"number": number})
            for number, words in enumerate(chosen)
        )
    return collection


def by_hand(connection: psycopg.Connection, statements: list[tuple[str, Any]]) -> float:
    """Milliseconds of the statements alone; the rows are fetched."""
    clock = Clock()
    for statement, parameters in statements:
        cursor = clock.time(connection.execute, statement, parameters)
        if cursor.description is not None:
            cursor.fetchall()
    connection.rollback()
    return clock.spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    embedder = UnitVectors()
    with Store.embedded(options.data) as store:
        collection = open_rows(store, options.rows, embedder)
        measure(store, collection, embedder, options.runs)


def measure(store: Store, collection: Collection, embedder: UnitVectors, runs: int) -> None:
    for _ in range(20):
        collection.search(QUESTION)
    with recorded(store.engine) as recorder:
        result = collection.search(QUESTION)
        statements = list(recorder.statements)
        assert len(statements) == 3
        url = store.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, prepare_threshold=None) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            whole, own, whole_by_hand, own_by_hand = [], [], [], []
            for _ in range(runs):
                recorder.clock.spent = embedder.clock.spent = 0.0
                total = timed(collection.search, QUESTION)
                whole.append(total)
                own.append(total - recorder.clock.spent - embedder.clock.spent)
                clock = Clock()
                inside = clock.time(by_hand, connection, statements)
                whole_by_hand.append(clock.spent)
                own_by_hand.append(clock.spent - inside)
    paths = {name: each.path for name, each in result.diagnostics.channels.items()}
    print(f"{len(result.hits)} hits of {paths}")
    print("| | median ms | own, median ms | own, fastest ms |\n| --- | --- | --- | --- |")
    for name, total_ms, own_ms in (("search", whole, own), ("by hand", whole_by_hand, own_by_hand)):
        print(
            f"| {name} | {statistics.median(total_ms):.1f} | {statistics.median(own_ms):.2f} | {min(own_ms):.2f} |"
        )


def timed(function: Callable[..., Any], *arguments: Any) -> float:
    clock = Clock()
    clock.time(function, *arguments)
    return clock.spent


if __name__ == "__main__":
    main()
