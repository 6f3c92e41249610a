"""Faults that a review found, each as the behaviour that it broke."""

from __future__ import annotations

import sqlalchemy as sa

from cayu_pg import Store, migrate
from cayu_pg.sql.engine import open_engine
from tests.stores import CountingEmbedder, rows


def test_stores_of_two_schemas_on_one_engine_number_their_rows_apart(
    engine: sa.Engine, database_url: str
) -> None:
    migrate(database_url, schema="other")
    Store(engine, embedder=CountingEmbedder()).collection("notes").ingest(["one"])
    Store(engine, schema="other", embedder=CountingEmbedder()).collection("notes").ingest(["two"])
    assert rows(engine, "SELECT chunk_id FROM other.chunks") == [(1,)]
    later = open_engine(database_url)  # where `other` is the first
    Store(later, schema="other", embedder=CountingEmbedder()).collection("notes").ingest(["three", "four"])
    later.dispose()
    assert rows(engine, "SELECT chunk_id FROM other.chunks ORDER BY 1") == [(1,), (2,), (3,)]
