"""Kills during ingest at small size; `python -m benchmarks.chaos` does more of them."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa

from benchmarks import chaos
from cayu_pg.embedding import HashEmbedder
from cayu_pg.store import Store
from tests.conftest import temporary_folder

DAMAGE = [
    ("UPDATE cayu.records SET current_revision = 7 WHERE record_id = '000003'", "point at no revision"),
    ("UPDATE cayu.records SET current_revision = 0 WHERE record_id = '000003'", "beyond their record"),
    ("DELETE FROM cayu.batches", "no finished write"),
    ("DELETE FROM cayu.revision_chunks WHERE ordinal = 0 AND record_id = '000003'", "cover their text"),
    ("UPDATE cayu.chunks SET text = 'other' WHERE record_id = '000003'", "cover their text"),
    ("UPDATE cayu.chunks SET current = false WHERE record_id = '000003'", "current without a current"),
    ("DELETE FROM cayu.chunk_embeddings", "vector is missing"),
    ("DELETE FROM cayu.chunk_lexemes", "words are missing"),
]


def test_kills_of_client_and_server_leave_whole_records_and_only_what_is_missing_is_done_again() -> None:
    with temporary_folder() as folder:
        outcomes = list(chaos.kills(folder / "data", rounds=2, count=400))
    assert [each.victim for each in outcomes] == ["client", "server"] * 2
    assert all(each.good for each in outcomes), outcomes
    assert any(each.left for each in outcomes)


@pytest.mark.parametrize(("damage", "named"), DAMAGE)
def test_the_checks_after_a_kill_see_damage(engine: sa.Engine, damage: str, named: str) -> None:
    collection = Store(engine, embedder=HashEmbedder(16)).collection("notes")
    collection.ingest(chaos.documents(1, 20), chunk_size=chaos.CHUNK_SIZE, chunk_overlap=0)
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        assert chaos.broken(connection) == {}
        connection.execute(damage.encode())
        assert any(named in each for each in chaos.broken(connection))
