"""What an operator sees: log lines without content, spans, timings, and who is connected."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from cayu_pg.async_store import AsyncStore
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, scalar

WHO = "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"


def with_query(url: str, **query: str) -> str:
    return sa.make_url(url).update_query_dict(query).render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("query", "environment", "expected"),
    [
        ({}, {}, "cayu_pg"),
        ({"application_name": "shop"}, {}, "shop"),
        ({}, {"PGAPPNAME": "shop"}, "shop"),
        ({"options": "-c application_name=shop"}, {}, "shop"),
        ({"fallback_application_name": "shop"}, {}, "shop"),
    ],
)
def test_our_connections_are_called_cayu_pg_unless_the_caller_names_them(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, str],
    environment: dict[str, str],
    expected: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = with_query(database_url, **query)
    with Store(url, read_url=url, embedder=CountingEmbedder()) as store:
        assert scalar(store.engine, WHO) == expected
        assert scalar(store._replica_pool.engine, WHO) == expected

    async def main() -> object:
        async with (
            AsyncStore(url, embedder=CountingEmbedder()) as store,
            store.engine.connect() as connection,
        ):
            return await connection.scalar(sa.text(WHO))

    assert asyncio.run(main()) == expected


def test_an_engine_of_the_callers_keeps_its_name(database_url: str) -> None:
    url = sa.make_url(database_url).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, connect_args={"application_name": "shop"})
    store = Store(engine, embedder=CountingEmbedder())
    store.collection("notes").ingest("One.")
    assert scalar(store.engine, WHO) == "shop"
    engine.dispose()
