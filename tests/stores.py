"""What store tests share: an embedder that counts, and the statements that an engine sent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg.embedding import HashEmbedder


class CountingEmbedder:
    """A HashEmbedder that remembers which texts it was given."""

    def __init__(self, dimensions: int = 32) -> None:
        self._inner = HashEmbedder(dimensions)
        self.model = self._inner.model
        self.documents: list[str] = []
        self.queries: list[str] = []

    @property
    def dimensions(self) -> int:
        return self._inner.dimensions

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.documents += texts
        return self._inner.encode_documents(texts)

    def encode_query(self, text: str) -> NDArray[np.float32]:
        self.queries.append(text)
        return self._inner.encode_query(text)


@contextmanager
def statements_of(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that go through SQLAlchemy on the engine meanwhile."""
    sent: list[str] = []

    def note(*arguments: object) -> None:
        sent.append(str(arguments[2]))

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


@contextmanager
def binds_of(engine: sa.Engine, part: str) -> Iterator[list[dict[str, Any]]]:
    """What is bound in the statements with `part` in their text that the engine sends meanwhile."""
    sent: list[dict[str, Any]] = []

    def note(*arguments: Any) -> None:
        if part in arguments[2]:
            sent.append(arguments[3])

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def rows(engine: sa.Engine, query: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query))]


def scalar(engine: sa.Engine, query: str) -> object:
    return rows(engine, query)[0][0]


def wait_for_lock(engine: sa.Engine) -> None:
    """Until some statement waits for a lock."""
    deadline = time.monotonic() + 10
    while not scalar(engine, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
