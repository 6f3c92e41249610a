"""What an operator sees: log lines without content, spans, timings, and who is connected."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from cayu_pg import tracing
from cayu_pg.async_store import AsyncStore
from cayu_pg.errors import InvalidInput, QueryCanceled
from cayu_pg.messages import Message
from cayu_pg.records import Document
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


# --- spans

SECRET = "xyzzy"


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("cayu_pg"))
    return exporter


def tree(exporter: InMemorySpanExporter) -> set[tuple[str, str | None]]:
    """The names of spans, each with that of the span it is inside of."""
    spans = exporter.get_finished_spans()
    names = {each.context.span_id: each.name for each in spans if each.context is not None}
    return {(each.name, None if each.parent is None else names[each.parent.span_id]) for each in spans}


def attributes(exporter: InMemorySpanExporter, name: str) -> dict[str, Any]:
    [found] = [each for each in exporter.get_finished_spans() if each.name == name]
    return dict(found.attributes or {})


EXPECTED = {
    ("cayu_pg.ingest", None),
    ("cayu_pg.embed", "cayu_pg.ingest"),
    ("cayu_pg.ingest.batch", "cayu_pg.ingest"),
    ("cayu_pg.search", None),
    ("cayu_pg.embed", "cayu_pg.search"),
    ("cayu_pg.channels", "cayu_pg.search"),
    ("cayu_pg.append", None),
}


def test_spans_of_a_store_count_and_hold_no_text(engine: sa.Engine, finished: InMemorySpanExporter) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes = store.collection("notes")
    notes.ingest([Document(f"{SECRET} one", id="a", metadata={"k": SECRET}), f"{SECRET} two"])
    notes.search(f"{SECRET} one", limit=1)
    store.transcript("talk").append([Message.text("user", SECRET)])
    assert tree(finished) == EXPECTED
    ingest = attributes(finished, "cayu_pg.ingest")
    assert (ingest["cayu_pg.documents"], ingest["cayu_pg.chunks_added"]) == (2, 2)
    assert (ingest["db.system.name"], ingest["db.collection.name"]) == ("postgresql", "notes")
    channels = attributes(finished, "cayu_pg.channels")
    assert (channels["cayu_pg.vector.returned"], channels["cayu_pg.text.path"]) == (2, "exact")
    assert attributes(finished, "cayu_pg.search")["cayu_pg.hits"] == 1
    assert attributes(finished, "cayu_pg.append")["cayu_pg.messages"] == 1
    assert SECRET not in " ".join(each.to_json() for each in finished.get_finished_spans())


def test_spans_of_concurrent_tasks_do_not_mix(database_url: str, finished: InMemorySpanExporter) -> None:
    async def work(store: AsyncStore, name: str) -> None:
        collection = await store.collection(name)
        await collection.ingest([f"{name} {number}" for number in range(5)])
        await collection.search(name)
        await (await store.transcript(name)).append([Message.text("user", name)])

    async def main() -> None:
        async with AsyncStore(database_url, embedder=CountingEmbedder()) as store:
            await asyncio.gather(*(work(store, f"notes{number}") for number in range(4)))

    asyncio.run(main())
    assert tree(finished) == EXPECTED
    spans = finished.get_finished_spans()
    assert Counter(each.name for each in spans)["cayu_pg.search"] == 4
    assert len({each.context.trace_id for each in spans if each.context is not None}) == 12


def test_an_error_is_told_by_its_type_alone(engine: sa.Engine, finished: InMemorySpanExporter) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    notes = store.collection("notes")
    notes.ingest("One.")
    with pytest.raises(QueryCanceled):
        notes.with_timeouts(statement_timeout=0.001).search(SECRET, limit=1)
    [span] = [each for each in finished.get_finished_spans() if each.name == "cayu_pg.search"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "QueryCanceled")
    assert (span.attributes or {})["error.type"] == "QueryCanceled"
    assert SECRET not in span.to_json()


def test_without_the_api_nothing_is_missing(database_url: str) -> None:
    script = """
import sys
sys.modules["opentelemetry"] = sys.modules["opentelemetry.trace"] = None
from cayu_pg import HashEmbedder, Store
with Store(sys.argv[1], embedder=HashEmbedder(8)) as store:
    notes = store.collection("notes")
    notes.ingest("One.")
    print(len(notes.search("one").hits))
"""
    done = subprocess.run([sys.executable, "-c", script, database_url], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


# --- log lines


def test_log_lines_tell_what_was_done_and_hold_no_content(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = sa.make_url(database_url).set(password=f"password{SECRET}")
    with Store(url, embedder=CountingEmbedder(16)) as store:
        notes = store.collection("notes")
        document = Document(f"{SECRET} one", id=f"id{SECRET}", title=SECRET, metadata={"k": SECRET})
        notes.ingest([document, 5], on_error="skip")
        notes.search(SECRET, where={"k": SECRET})
        notes.reindex(min_chunks=1)
        notes.change_embedder(CountingEmbedder(24))
        store.transcript("talk").append([Message.text("user", SECRET)])
        with pytest.raises(InvalidInput):
            notes.search(SECRET, where={"k": {SECRET: 1}})
    assert "ingested into notes: 2 documents, 1 refused, 1 chunks added" in caplog.text
    assert "built index hnsw_" in caplog.text and "notes answers with hash-24" in caplog.text
    assert SECRET not in caplog.text


def test_a_broken_connection_is_a_warning(engine: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    notes = Store(engine, embedder=CountingEmbedder()).collection("notes")
    notes.ingest("One.")
    with engine.connect() as connection:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    with sa.create_engine(engine.url, poolclass=sa.NullPool).begin() as other:
        other.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    assert len(notes.search("one").hits) == 1
    assert [each.levelname for each in caplog.records if each.name.startswith("cayu_pg")] == ["WARNING"]
    assert "a connection broke" in caplog.text
