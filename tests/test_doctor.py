"""The doctor: each thing that can be wrong with a store is made, and found with what to do about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from cayu_pg import doctor, findings
from cayu_pg.async_store import AsyncStore
from cayu_pg.cli import main
from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.findings import DoctorReport, Finding, on_schema, on_server
from cayu_pg.migrating import migrate
from cayu_pg.records import Document
from cayu_pg.sql import collection_health, indexes
from cayu_pg.sql.collections import IndexHealth, delete_collection
from cayu_pg.sql.health import Relation, ServerFacts, server_facts
from cayu_pg.sql.tables import build_tables
from cayu_pg.store import Store
from tests.conftest import MakeRole, temporary_folder
from tests.stores import statements_of

SIZE = 60
DOCUMENTS = [Document(f"Note {number} on subject {number % 5}.", id=str(number)) for number in range(SIZE)]


@pytest.fixture
def store(engine: sa.Engine) -> Store:
    return Store(engine, embedder=HashEmbedder(16))


@pytest.fixture
def notes(store: Store) -> Collection:
    notes = store.collection("notes")
    notes.ingest(DOCUMENTS)
    return notes


@pytest.fixture
def facts(engine: sa.Engine) -> ServerFacts:
    """Those of the tests' own server, with the settings that a careful person gives it."""
    with engine.connect() as connection:
        found = server_facts(connection, long_seconds=300)
    return replace(found, settings={**found.settings, "fsync": "on", "full_page_writes": "on"})


def is_the_tests_own(finding: Finding) -> bool:
    """The servers of the tests are fast because a crash may destroy them."""
    return finding.found.startswith(("fsync", "full_page_writes"))


def troubles(report: DoctorReport) -> list[str]:
    """The level and text of whatever is not in order."""
    found = [each for each in report.findings if each.level != "ok" and not is_the_tests_own(each)]
    assert all(each.advice or "run" in each.found for each in found if each.level != "error")
    return [f"{each.level} {each.subject}: {each.found}" for each in found]


def do(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def test_a_store_in_order_has_no_troubles() -> None:
    with (
        temporary_folder() as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with Store.embedded(folder / "data", embedder=HashEmbedder(16)) as store:
            store.collection("notes").ingest(DOCUMENTS)
            report = store.doctor()
    assert report.level == "ok"
    assert {each.level for each in report.findings} == {"ok"}
    told = str(report)
    assert "PostgreSQL: 18" in told
    assert "collection 'notes': 60 chunks, vectors of hash-16 with 16 dimensions" in told
    assert "collection 'notes': all chunks have vector and words" in told


def test_both_doors_report_the_same(notes: Collection, store: Store, database_url: str) -> None:
    async def asked() -> DoctorReport:
        async with AsyncStore(database_url, embedder=HashEmbedder(16)) as other:
            return await other.doctor()

    there, here = asyncio.run(asked()), store.doctor()
    assert troubles(here) == troubles(there) == []
    assert [each.subject for each in here.findings] == [each.subject for each in there.findings]


def test_it_only_reads_and_works_in_a_transaction_of_the_callers(notes: Collection, store: Store) -> None:
    with store.engine.connect().execution_options(postgresql_readonly=True) as connection:
        assert troubles(store.using(connection).doctor()) == []
        assert connection.in_transaction()


def test_it_sends_as_many_statements_for_many_collections_as_for_one(
    notes: Collection, store: Store, engine: sa.Engine
) -> None:
    store.doctor()
    with statements_of(engine) as one:
        store.doctor()
    for number in range(5):
        store.collection(f"more {number}").ingest(DOCUMENTS[:3])
    with statements_of(engine) as many:
        report = store.doctor()
    assert len(one) == len(many) < 40
    assert sum(each.subject.startswith("collection 'more") for each in report.findings) == 10


def test_a_tenant_hears_of_its_own_collections_only(notes: Collection, store: Store) -> None:
    assert "notes" not in str(store.for_tenant("other").doctor())


# --- the server


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with Store("postgresql://nobody@127.0.0.1:1/nothing") as store:
        report = store.doctor()
    assert report.level == "error"
    assert len(report.findings) == 1
    assert "cannot be reached" in report.findings[0].found


def test_a_server_that_is_too_old_is_an_error(facts: ServerFacts) -> None:
    found = next(on_server(replace(facts, version="15.9", number=150009), 0))
    assert (found.level, found.found) == ("error", "expected 16 or newer, found 15.9")


def pretend(engine: sa.Engine, version: str) -> None:
    do(engine, f"UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'vector'")


def test_a_pgvector_that_is_too_old_is_an_error(store: Store, engine: sa.Engine) -> None:
    pretend(engine, "0.7.4")
    assert any("expected 0.8.0 or newer, found 0.7.4" in each for each in troubles(store.doctor()))
    assert store.doctor().level == "error"


def test_a_vulnerable_pgvector_is_a_warning_and_a_newer_one_at_hand_a_note(
    store: Store, engine: sa.Engine
) -> None:
    pretend(engine, "0.8.1")
    warning, note = troubles(store.doctor())
    assert "CVE-2026-3172" in warning
    assert note.startswith("note pgvector: this database uses 0.8.1, the server has 0.8.")


def test_a_database_without_anything_lacks_pgvector_and_a_migration(empty_database_url: str) -> None:
    with Store(empty_database_url) as store:
        extension, schema = troubles(store.doctor())
    assert "a superuser has to run once: CREATE EXTENSION vector;" in extension
    assert "run: cayu-pg migrate --schema cayu" in schema


def test_a_schema_that_is_behind_or_ahead_is_an_error(store: Store, database_url: str) -> None:
    migrate(database_url, revision="head")
    do(store.engine, "UPDATE cayu.alembic_version SET version_num = 'cayu_0001'")
    assert "error schema cayu: schema 'cayu' is at revision cayu_0001" in troubles(store.doctor())[0]
    do(store.engine, "UPDATE cayu.alembic_version SET version_num = 'cayu_9999'")
    assert "a newer cayu_pg migrated it" in troubles(store.doctor())[0]


@pytest.mark.parametrize(
    ("setting", "level", "found"),
    [
        ("default_transaction_read_only = on", "error", "every write will fail"),
        ("statement_timeout = '2s'", "warning", "statement_timeout = 2000 ms"),
        ("transaction_timeout = '3s'", "warning", "transaction_timeout = 3000 ms"),
    ],
)
def test_a_setting_of_the_database_is_seen_that_costs_dearly(
    store: Store, engine: sa.Engine, setting: str, level: str, found: str
) -> None:
    do(engine, f"ALTER DATABASE {engine.url.database} SET {setting}")
    engine.dispose()
    [trouble] = troubles(store.doctor())
    assert trouble.startswith(level)
    assert found in trouble


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "autovacuum", "track_counts"])
def test_a_setting_of_the_server_is_seen_that_is_off(facts: ServerFacts, setting: str) -> None:
    def warnings(settings: dict[str, str]) -> list[str]:
        found = on_server(replace(facts, settings=settings), 0)
        return [each.found for each in found if each.level == "warning"]

    assert warnings(facts.settings) == []
    [only] = warnings({**facts.settings, setting: "off"})
    assert only.startswith(f"{setting} = off")


def test_settings_for_small_databases_are_seen_when_the_schema_is_large(facts: ServerFacts) -> None:
    settings = {**facts.settings, "shared_buffers": "16384", "io_method": "worker"}
    small = Relation("chunks", "r", "me", True, True, True, 1 << 20, 1 << 20, 10.0, 10, 0)
    large = small._replace(bytes=2 << 30, total_bytes=3 << 30)

    def seen(table: Relation, settings: dict[str, str]) -> list[str]:
        found = on_schema("cayu", "cayu_0002", [table], settings)
        return [f"{each.level} {each.found}" for each in found if each.level != "ok"]

    assert seen(small, settings) == []
    assert seen(large, {**settings, "shared_buffers": "131072", "io_method": "sync"}) == []
    assert seen(large, settings) == [
        "warning shared_buffers = 128 MB for 3.0 GB",
        "note io_method = worker for 3.0 GB",
    ]


def test_too_few_connections_for_the_pool_are_seen(database_url: str, make_role: MakeRole) -> None:
    url = make_role("limited", database_url)
    role = sa.make_url(url).username
    with Store(database_url) as owner:
        do(owner.engine, f"ALTER ROLE {role} CONNECTION LIMIT 3", f"GRANT USAGE ON SCHEMA cayu TO {role}")
    with Store(url) as store:
        found = [each for each in store.doctor().findings if each.subject == "connections"]
    assert [each.level for each in found] == ["warning", "ok"]
    assert "1 of the 3 that the role allows are open" in found[0].found
    assert "this one may open 4 more" in str(found[0])


def test_a_session_with_a_transaction_open_for_long_is_seen(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert troubles(store.doctor()) == []
    monkeypatch.setattr(doctor, "LONG_SECONDS", 0)
    with Store(database_url) as other, other.engine.connect() as connection:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        [trouble] = troubles(store.doctor())
    assert f"cayu_pg (pid {pid}) is idle in transaction, its transaction has been open for 0 s" in trouble


def test_a_collation_that_changed_under_the_database_is_seen(store: Store, engine: sa.Engine) -> None:
    do(engine, "UPDATE pg_database SET datcollversion = '0' WHERE datname = current_database()")
    [trouble] = troubles(store.doctor())
    assert trouble.startswith("warning collation: the operating system sorts text otherwise")


def test_a_pooler_is_noted(facts: ServerFacts) -> None:
    notes = [each for each in on_server(replace(facts, is_pooled=True), 0) if each.level == "note"]
    assert [each.found for each in notes] == ["it leads through a pooler"]


def test_what_takes_too_long_is_a_warning_and_the_rest_is_looked_at(
    notes: Collection, store: Store, engine: sa.Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE cayu.chunk_lexemes IN ACCESS EXCLUSIVE MODE"))
        report = store.doctor(timeout=0.2)
    stopped = "not looked at: the statement was stopped: canceling statement due to statement timeout"
    assert troubles(report) == [f"warning schema cayu: {stopped}", f"warning chunks: {stopped}"]
    assert "60 chunks, vectors of hash-16" in str(report)


# --- the schema


def test_the_owner_of_the_database_need_not_be_a_superuser(
    empty_database_url: str, make_role: MakeRole
) -> None:
    with Store(empty_database_url) as admin:
        do(admin.engine, "CREATE EXTENSION vector")
    url = make_role("owner", empty_database_url)
    migrate(url)
    with Store(url, embedder=HashEmbedder(16)) as store:
        store.collection("notes").ingest(DOCUMENTS)
        assert troubles(store.doctor()) == []


def test_what_a_role_may_not_do_is_said(
    notes: Collection, engine: sa.Engine, database_url: str, make_role: MakeRole
) -> None:
    url = make_role("reader", database_url)
    role = sa.make_url(url).username
    with Store(url, embedder=HashEmbedder(16)) as store:
        assert any("permission denied for schema cayu" in each for each in troubles(store.doctor()))
        do(engine, f"GRANT USAGE ON SCHEMA cayu TO {role}", f"GRANT SELECT ON cayu.alembic_version TO {role}")
        assert any("this role may not use batch_id_seq" in each for each in troubles(store.doctor()))
        do(engine, f"GRANT SELECT ON ALL TABLES IN SCHEMA cayu TO {role}")
        do(engine, f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA cayu TO {role}")
        warning, note = troubles(store.doctor())
    assert "warning schema cayu: this role may not write to batches, chunk_embeddings" in warning
    assert note.startswith("note schema cayu: it belongs to ")


def test_dead_rows_are_seen(
    notes: Collection, store: Store, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "DEAD_ROWS", 40)
    monkeypatch.setattr(
        findings, "DEAD_SHARE", 0.1
    )  # what was inserted may be counted twice, before it is analyzed
    do(engine, "ALTER TABLE cayu.records SET (autovacuum_enabled = off)", "ANALYZE cayu.records")
    assert troubles(store.doctor()) == []
    do(engine, "UPDATE cayu.records SET created_at = created_at", "SELECT pg_stat_force_next_flush()")
    [trouble] = troubles(store.doctor())
    assert trouble.startswith("warning schema cayu, table records: 60 dead rows beside ")


def test_a_table_that_was_never_analyzed_is_seen(
    notes: Collection, store: Store, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "UNKNOWN_BYTES", 1)
    do(engine, "ALTER TABLE cayu.batches SET (autovacuum_enabled = off)", "ANALYZE")
    assert troubles(store.doctor()) == []
    do(
        engine,
        "TRUNCATE cayu.fusion_configs",
        "INSERT INTO cayu.fusion_configs"
        " (collection_id, name, tenant, config, fingerprint) VALUES (1, 'mine', 'default', '{}', '')",
    )
    [trouble] = troubles(store.doctor())
    assert trouble.startswith("warning schema cayu, table fusion_configs: 8.0 kB were never analyzed")


# --- collections


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("text_config = 'klingon'", "its text search configuration 'klingon' does not exist"),
        ("analyzer = 'future-1'", "its analyzer 'future-1' is unknown to this version"),
    ],
)
def test_a_collection_made_with_what_is_not_here_is_an_error(
    notes: Collection, store: Store, change: str, found: str
) -> None:
    do(store.engine, f"UPDATE cayu.collections SET {change}")
    assert troubles(store.doctor()) == [f"error collection 'notes': {found}"]


def test_an_embedder_that_does_not_fit_is_named_beside_the_one_that_does(
    notes: Collection, engine: sa.Engine
) -> None:
    assert troubles(Store(engine, embedder=HashEmbedder(8)).doctor()) == [
        "warning collection 'notes': its vectors are of hash-16 with 16 dimensions,"
        " the store's embedder is hash-8 with 8 dimensions"
    ]
    fitting = Store(engine, embedder=HashEmbedder(8), next_embedder=HashEmbedder(16))
    assert troubles(fitting.doctor()) == []
    assert troubles(Store(engine).doctor()) == []  # each collection is opened with its own


def test_statistics_that_are_due_are_seen(notes: Collection, store: Store) -> None:
    with store.engine.begin() as connection:
        store.using(connection).collection("notes").ingest([f"A new text {number}." for number in range(20)])
    [trouble] = troubles(store.doctor())
    assert trouble.endswith("its word statistics counted 60 chunks, 20 came or went since")
    notes.refresh_statistics()
    assert troubles(store.doctor()) == []


class Breaking(HashEmbedder):
    """Breaks with the second call."""

    calls = 0

    def encode_documents(self, texts: Sequence[str]) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("no more memory")
        return super().encode_documents(texts)


def test_a_change_of_model_that_broke_off_is_seen_and_afterwards_the_old_space(
    notes: Collection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayu_pg.changing_model.PAGE", 20)
    with pytest.raises(RuntimeError):
        notes.change_embedder(Breaking(24))
    [finding] = [each for each in store.doctor().of_level("warning") if not is_the_tests_own(each)]
    assert finding.found == "its change to hash-24 has come to 20 of 60 chunks"
    assert "cayu-pg model hash-24 -c notes" in str(finding)
    notes.change_embedder(HashEmbedder(24))
    assert troubles(store.doctor()) == [
        "note collection 'notes': it keeps the vectors of hash-16, which searches do not use"
    ]
    notes.drop_space("hash-16")
    assert troubles(store.doctor()) == []


def test_indexes_are_missed_in_a_collection_that_wants_them(
    notes: Collection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "MIN_CHUNKS", SIZE + 1)
    assert troubles(store.doctor()) == []
    monkeypatch.setattr(indexes, "MIN_CHUNKS", SIZE)
    assert troubles(store.doctor()) == [
        "warning collection 'notes': lacks its index of metadata and words and vectors, of which searches read all"
    ]
    notes.reindex(min_chunks=1)
    assert troubles(store.doctor()) == []


def test_an_index_whose_build_broke_off_is_seen(notes: Collection, store: Store) -> None:
    notes.reindex(min_chunks=1)
    do(store.engine, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'cayu.hnsw_1_1'::regclass")
    [trouble] = troubles(store.doctor())
    assert trouble == (
        "warning collection 'notes': has an invalid index of vectors, left of a build that broke off"
    )


def test_vectors_too_long_for_an_index_are_noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "MIN_CHUNKS", 3)
    wide = store.collection("wide", embedder=HashEmbedder(4_001))
    wide.ingest(DOCUMENTS[:3])
    wide.reindex(min_chunks=1)
    [trouble] = troubles(Store(store.engine).doctor())
    assert trouble.startswith("note collection 'wide': an index of vectors takes at most 4000 dimensions")
    assert trouble.endswith("they are searched exactly")


def test_an_index_that_is_being_built_is_noted(notes: Collection, store: Store) -> None:
    with store.engine.connect() as connection:
        [facts] = collection_health.collection_facts(connection, build_tables(), "default")
    built = IndexHealth("hnsw_1_1", "vectors", "building", 8192)
    [note] = findings.on_indexes(facts, [built])
    assert (note.level, note.found) == ("note", "its index of vectors is being built")


def test_indexes_of_a_dropped_collection_are_seen(notes: Collection, store: Store) -> None:
    notes.reindex(min_chunks=1)
    store.collection("other")
    with store.engine.begin() as connection:
        delete_collection(connection, build_tables(), 1)
    [trouble] = troubles(store.doctor())
    assert "gin_metadata_1, gin_words_1, hnsw_1_1 belong to collections that were dropped" in trouble


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("chunk_embeddings", "of all chunks, 1 lack their vector and 0 their words"),
        ("chunk_lexemes", "of all chunks, 0 lack their vector and 1 their words"),
    ],
)
def test_chunks_that_a_channel_cannot_find_are_an_error(
    notes: Collection, store: Store, table: str, found: str
) -> None:
    chunk = "(SELECT chunk_id FROM cayu.chunks WHERE record_id = '7')"
    do(store.engine, f"DELETE FROM cayu.{table} WHERE chunk_id = {chunk}")
    [error] = store.doctor().of_level("error")
    assert error.found == found
    assert "for example '7'" in str(error)


def test_of_a_large_collection_the_newest_chunks_are_looked_at(
    notes: Collection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection_health, "MOST_LOOKED_AT", 10)
    assert "collection 'notes': the newest 10 chunks have vector and words" in str(store.doctor())


# --- the command line


def run(url: str, *arguments: str) -> int:
    return main(["doctor", "--url", url, *arguments])


def test_the_command_fails_for_errors_alone(
    notes: Collection, store: Store, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database_url) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "warning  settings: fsync = off, a crash of the machine may destroy the database\n"
    )
    assert "ok       collection 'notes': 60 chunks" in printed
    do(store.engine, "UPDATE cayu.collections SET text_config = 'klingon'")
    assert run(database_url, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["level"] == "error"
    assert told["findings"][0]["subject"] == "collection 'notes'"
    assert set(told["findings"][0]) == {"level", "subject", "found", "advice"}
