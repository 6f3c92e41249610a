"""Indexes on request: what is missing is built, what broke off is built anew, and what serves nothing goes."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from cayu_pg import ranked_rows
from cayu_pg.async_store import AsyncStore
from cayu_pg.cli import main, printing
from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.errors import InvalidInput, MissingExtension, QueryCanceled
from cayu_pg.migrating import migrate
from cayu_pg.records import Document
from cayu_pg.sql import indexes, settings
from cayu_pg.sql.collections import delete_collection
from cayu_pg.sql.engine import Extension, open_engine, require_extension
from cayu_pg.sql.identifiers import quoted
from cayu_pg.sql.indexes import IndexProgress, plan_indexes
from cayu_pg.store import Store
from tests.stores import rows, scalar, statements_of

SIZE = 120
AWKWARD = """odd "name" with %s 'quotes' {}"""
ALL = ["gin_words_1", "gin_metadata_1", "hnsw_1_1"]


def documents(count: int = SIZE) -> list[Document]:
    return [Document(f"Passage {n} speaks.", id=f"p{n}", metadata={"n": n}) for n in range(count)]


@pytest.fixture
def store(engine: sa.Engine) -> Store:
    return Store(engine, embedder=HashEmbedder(16))


@pytest.fixture
def collection(store: Store) -> Collection:
    collection = store.collection("docs")
    collection.ingest(documents())
    return collection


def health(engine: sa.Engine) -> dict[str, object]:
    query = "SELECT index_name, valid FROM cayu.index_health WHERE index_name ~ '^(hnsw|gin)_'"
    return {str(row[0]): row[1] for row in rows(engine, query)}


def states(store: Store) -> dict[str, str]:
    [summary] = store.collections()
    return {each.kind: each.state for each in summary.indexes}


def execute(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def break_index(engine: sa.Engine, name: str) -> None:
    """Leave the index as an interrupted build would."""
    execute(engine, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'cayu.{name}'::regclass")


@contextmanager
def open_transaction(engine: sa.Engine) -> Iterator[None]:
    """Somebody who still reads what an earlier snapshot shows; no build can end before that."""
    with engine.connect() as connection:
        connection.execution_options(isolation_level="REPEATABLE READ").execute(sa.text("SELECT 1"))
        yield
        connection.rollback()


def test_what_is_missing_is_built_once(collection: Collection, engine: sa.Engine) -> None:
    assert collection.reindex(min_chunks=SIZE) == ALL
    assert health(engine) == dict.fromkeys(ALL, True)
    with statements_of(engine) as sent:
        assert collection.reindex(min_chunks=SIZE) == []
    assert not any("CREATE" in each or "lock" in each for each in sent)


def test_a_small_collection_gets_no_index(collection: Collection, engine: sa.Engine) -> None:
    assert collection.reindex(min_chunks=SIZE + 1) == []
    assert collection.reindex() == []
    assert health(engine) == {}


def test_indexes_are_built_concurrently_with_timeouts(collection: Collection, engine: sa.Engine) -> None:
    with statements_of(engine) as sent:
        collection.reindex(min_chunks=SIZE, timeout=60)
    assert [each.startswith("CREATE INDEX CONCURRENTLY") for each in sent].count(True) == 3
    [sets] = [each for each in sent if "maintenance_work_mem" in each]
    assert "SET lock_timeout = 30000" in sets
    assert "SET statement_timeout = 60000" in sets


@pytest.mark.parametrize("name", ALL)
def test_an_invalid_index_is_found_and_built_anew(
    collection: Collection, store: Store, engine: sa.Engine, name: str
) -> None:
    collection.reindex(min_chunks=SIZE)
    before = scalar(engine, f"SELECT 'cayu.{name}'::regclass::oid")
    break_index(engine, name)
    assert sorted(states(store).values()) == ["invalid", "valid", "valid"]
    assert collection.reindex(min_chunks=SIZE) == [name]
    assert health(engine) == dict.fromkeys(ALL, True)
    assert scalar(engine, f"SELECT 'cayu.{name}'::regclass::oid") != before


def test_an_invalid_index_is_not_searched_and_goes_when_too_small_to_want_one(
    collection: Collection, engine: sa.Engine
) -> None:
    collection.reindex(min_chunks=SIZE)
    assert collection.search("passage").diagnostics.channels["vector"].path == "approximate"
    break_index(engine, "hnsw_1_1")
    assert collection.reindex(min_chunks=SIZE + 1) == []
    assert health(engine) == {"gin_words_1": True, "gin_metadata_1": True}
    assert collection.search("passage").diagnostics.channels["vector"].path == "exact"


def test_an_index_of_a_space_that_is_gone_is_dropped(collection: Collection, engine: sa.Engine) -> None:
    of_space = "WHERE collection_id = 1 AND space_id = 77 AND current"
    execute(
        engine,
        "CREATE INDEX hnsw_1_77 ON cayu.chunk_embeddings"
        f" USING hnsw ((embedding::halfvec(16)) halfvec_cosine_ops) {of_space}",
    )
    assert collection.reindex(min_chunks=SIZE) == ALL
    assert health(engine) == dict.fromkeys(ALL, True)


def test_an_index_left_of_a_dropped_collection_goes_with_the_next_reindex(
    collection: Collection, store: Store, engine: sa.Engine
) -> None:
    other = store.collection("other")
    other.ingest(documents())
    other.reindex(min_chunks=SIZE)
    with engine.begin() as connection:  # dropped by somebody who did not come to drop the indexes
        delete_collection(connection, other._state.tables, 2)
    assert set(health(engine)) == {"gin_words_2", "gin_metadata_2", "hnsw_2_2"}
    assert collection.reindex(min_chunks=SIZE + 1) == []
    assert health(engine) == {}


def test_where_row_level_security_may_hide_collections_no_index_passes_for_left_behind(
    collection: Collection,
    store: Store,
    engine: sa.Engine,
    database_url: str,
    make_role: Callable[[str, str], str],
) -> None:
    collection.reindex(min_chunks=SIZE)
    url = make_role("plain", database_url)
    role = quoted(str(sa.make_url(url).username))
    execute(
        engine,
        "ALTER TABLE cayu.collections ENABLE ROW LEVEL SECURITY",
        f"GRANT USAGE ON SCHEMA cayu TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA cayu TO {role}",
    )
    tables, row = collection._state.tables, collection._state.row
    hidden = open_engine(url)
    with hidden.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(tables.collections)) == 0
        assert [each.name for each in plan_indexes(connection, tables, row, SIZE) if each.drop] == []
    hidden.dispose()


def test_vectors_too_long_for_an_index_are_said_to_be_searched_exactly(
    store: Store, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (indexes, ranked_rows):
        monkeypatch.setattr(module, "MIN_CHUNKS", 3)
    collection = store.collection("docs", embedder=HashEmbedder(4_001))
    reason = r"at most 4000 dimensions .* these have 4001; they are searched exactly"
    [advice, about_words] = collection.ingest(documents(3)).advice
    assert re.search(reason, advice) and "reindex" in about_words
    assert collection.reindex(min_chunks=3) == ["gin_words_1", "gin_metadata_1"]
    found = collection.search("passage").diagnostics.channels["vector"]
    assert found.path == "exact" and re.search(reason, found.reason or "")
    assert states(store) == {"words": "valid", "metadata": "valid", "vectors": "impossible"}
    with pytest.raises(InvalidInput, match=reason):
        collection.measure_recall()


@pytest.mark.parametrize(
    "indexed", ["(embedding::halfvec(8)) halfvec_cosine_ops", "(embedding::halfvec(16)) halfvec_l2_ops"]
)
def test_an_index_of_other_dimensions_or_distance_is_built_anew(
    collection: Collection, store: Store, engine: sa.Engine, indexed: str
) -> None:
    of_space = "WHERE collection_id = 1 AND space_id = 1 AND current AND false"
    execute(engine, f"CREATE INDEX hnsw_1_1 ON cayu.chunk_embeddings USING hnsw ({indexed}) {of_space}")
    assert states(store)["vectors"] == "invalid"
    assert collection.reindex(min_chunks=SIZE) == ALL
    [(definition,)] = rows(engine, "SELECT definition FROM cayu.index_health WHERE index_name = 'hnsw_1_1'")
    assert "halfvec(16)" in str(definition)
    assert "halfvec_cosine_ops" in str(definition)


def test_others_indexes_and_collections_are_left_alone(
    collection: Collection, store: Store, engine: sa.Engine
) -> None:
    other = store.collection("other")
    other.ingest(documents())
    other.reindex(min_chunks=SIZE)
    execute(engine, "CREATE INDEX hnsw_mine ON cayu.chunks (record_id)")
    break_index(engine, "hnsw_2_2")
    collection.reindex(min_chunks=SIZE)
    assert health(engine)["hnsw_2_2"] is False
    assert health(engine)["hnsw_mine"] is True


def test_two_reindexes_at_once_build_each_index_once(collection: Collection, engine: sa.Engine) -> None:
    another = Store(engine, embedder=HashEmbedder(16)).collection("docs")
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda each: each.reindex(min_chunks=SIZE), [collection, another]))
    assert sorted(built, key=len) == [[], ALL]
    assert health(engine) == dict.fromkeys(ALL, True)


def test_two_collections_are_reindexed_at_once(store: Store, engine: sa.Engine) -> None:
    collections = [store.collection(name) for name in ("a", "b", "c")]
    for each in collections:
        each.ingest(documents())
    with ThreadPoolExecutor(3) as pool:
        built = list(pool.map(lambda each: each.reindex(min_chunks=SIZE), collections))
    assert [len(each) for each in built] == [3, 3, 3]
    assert list(health(engine).values()) == [True] * 9


def test_writers_go_on_while_an_index_is_built(collection: Collection, engine: sa.Engine) -> None:
    with ThreadPoolExecutor(1) as pool:
        with open_transaction(engine):
            building = pool.submit(collection.reindex, min_chunks=SIZE)
            wait_for(lambda: collection.index_progress() is not None)
            Store(engine, embedder=HashEmbedder(16)).collection("docs").ingest("A text of meanwhile.")
            assert not building.done()
        assert building.result(timeout=30) == ALL
    assert len(collection.search("meanwhile", channels="text").hits) == 1


def test_a_build_behind_a_forgotten_transaction_gives_up_and_is_done_next_time(
    collection: Collection, store: Store, engine: sa.Engine
) -> None:
    with open_transaction(engine), pytest.raises(QueryCanceled, match="statement timeout"):
        collection.reindex(min_chunks=SIZE, timeout=0.5)
    assert states(store)["words"] == "invalid"
    assert collection.reindex(min_chunks=SIZE) == ALL


def test_a_lock_that_does_not_come_ends_the_build(
    collection: Collection, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOCK_TIMEOUT_MS", 300)
    with engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE cayu.chunk_lexemes IN ROW EXCLUSIVE MODE")
        with pytest.raises(QueryCanceled, match="lock timeout"):
            collection.reindex(min_chunks=SIZE)
    assert collection.reindex(min_chunks=SIZE) == ALL


def test_a_server_with_little_shared_memory_builds_without_parallel_workers(
    collection: Collection, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "BUILD_MEMORY_MB", 1_000_000)  # more than any machine shares
    execute(engine, f"ALTER DATABASE {engine.url.database} SET min_parallel_table_scan_size = 0")
    engine.dispose()
    with statements_of(engine) as sent:
        assert collection.reindex(min_chunks=SIZE) == ALL
    assert "SET max_parallel_maintenance_workers = 0" in sent
    assert health(engine) == dict.fromkeys(ALL, True)


def test_arguments_are_checked(collection: Collection) -> None:
    for wrong in (
        {"min_chunks": 0},
        {"min_chunks": "5"},
        {"timeout": 0},
        {"timeout": "5"},
        {"timeout": -1.0},
    ):
        with pytest.raises(InvalidInput) as raised:
            collection.reindex(**wrong)
        assert raised.value.field in wrong


def test_any_schema_name_is_indexed(empty_database_url: str) -> None:
    migrate(empty_database_url, schema=AWKWARD)
    with Store(empty_database_url, schema=AWKWARD, embedder=HashEmbedder(16)) as store:
        collection = store.collection("docs")
        collection.ingest(documents())
        assert collection.reindex(min_chunks=SIZE) == ALL
        assert set(states(store).values()) == {"valid"}
        assert collection.search("passage 7").diagnostics.channels["vector"].path == "approximate"
        assert store.drop_collection("docs")
        found = "SELECT count(*) FROM pg_class WHERE relname ~ '^(hnsw|gin)_'"
        assert scalar(store.engine, found) == 0


def test_progress_tells_index_and_phase_to_whoever_asks_meanwhile(
    collection: Collection, engine: sa.Engine
) -> None:
    told: list[IndexProgress] = []
    assert collection.index_progress() is None
    with open_transaction(engine):
        building = threading.Thread(target=lambda: collection.reindex(min_chunks=SIZE))
        building.start()
        with printing.watching(collection.index_progress, told.append, every=0.01):
            wait_for(lambda: bool(told))
    building.join()
    assert told[0].name in ALL
    assert "waiting for" in told[0].phase
    assert printing.describe(told[0]).startswith(f"{told[0].name}: {told[0].phase}")
    assert printing.describe(IndexProgress("i", "building index", 0.256)) == "i: building index, 26%"
    assert collection.index_progress() is None


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + 20
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def reindexed(url: str) -> tuple[list[str], IndexProgress | None]:
    async with AsyncStore(url, embedder=HashEmbedder(16)) as store:
        collection = await store.collection("docs")
        return await collection.reindex(min_chunks=SIZE), await collection.index_progress()


def test_the_async_door_does_the_same(collection: Collection, database_url: str) -> None:
    assert asyncio.run(reindexed(database_url)) == (ALL, None)


def test_collections_say_what_size_wants_and_lacks(
    collection: Collection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.collections()[0].indexes == ()
    monkeypatch.setattr(indexes, "MIN_CHUNKS", SIZE)
    assert states(store) == {"metadata": "missing", "words": "missing", "vectors": "missing"}
    collection.reindex(min_chunks=SIZE)
    [summary] = store.collections()
    assert [each.name for each in summary.indexes] == sorted(ALL)
    assert all(each.state == "valid" and each.bytes >= 8192 for each in summary.indexes)


def test_the_command_line_shows_sizes_and_what_to_do(
    collection: Collection,
    engine: sa.Engine,
    database_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexes, "MIN_CHUNKS", SIZE)
    assert main(["collections", "--url", database_url]) == 0
    assert "docs lacks an index; build it with: cayu-pg reindex -c docs" in capsys.readouterr().out
    reindex = [
        "reindex",
        "--url",
        database_url,
        "-c",
        "docs",
        "--model",
        "hash-16",
        "--min-chunks",
        f"{SIZE}",
    ]
    assert main([*reindex, "--json", "--timeout", "60"]) == 0
    assert json.loads(capsys.readouterr().out) == {"built": ALL}
    assert main(reindex) == 0
    assert capsys.readouterr().out == "nothing to build\n"
    break_index(engine, "gin_words_1")
    assert main(["collections", "--url", database_url]) == 0
    printed = capsys.readouterr().out
    assert "words invalid" in printed
    assert "kB" in printed
    assert main(["collections", "--url", database_url, "--json"]) == 0
    [summary] = json.loads(capsys.readouterr().out)
    assert {each["kind"]: each["state"] for each in summary["indexes"]} == {
        "vectors": "valid",
        "metadata": "valid",
        "words": "invalid",
    }


def test_an_extension_that_is_too_old_is_refused_with_what_to_run() -> None:
    with pytest.raises(MissingExtension, match=r"expected 0\.8\.0 or newer, found 0\.7\.4.*ALTER EXTENSION"):
        require_extension(Extension("public", "0.7.4"))


def test_an_index_that_cannot_be_built_after_an_ingest_is_advised_instead(
    store: Store, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOCK_TIMEOUT_MS", 200)
    monkeypatch.setattr(indexes, "MIN_CHUNKS", SIZE)
    store._state.builds_indexes = True  # as the embedded store does
    collection = store.collection("docs")
    with open_transaction(engine):
        report = collection.ingest(documents())
    assert report.records_added == SIZE
    assert len(report.advice) == 2
    collection.ingest("One more.")
    assert health(engine) == dict.fromkeys(ALL, True)
