"""Keeping in step with a source, and what can be done with the past."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from cayu_pg.collection import Collection
from cayu_pg.errors import Conflict, HistoryPruned, InvalidInput, NotFound, TooManyDeletions
from cayu_pg.records import Document
from cayu_pg.sql import locks
from cayu_pg.sql.locks import lock_key
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, rows, scalar, statements_of

TABLES = (
    "records",
    "revisions",
    "revision_chunks",
    "chunks",
    "chunk_embeddings",
    "chunk_lexemes",
    "lexeme_statistics",
)


@pytest.fixture
def embedder() -> CountingEmbedder:
    return CountingEmbedder()


@pytest.fixture
def collection(engine: sa.Engine, embedder: CountingEmbedder) -> Collection:
    return Store(engine, embedder=embedder).collection("notes")


def documents(*numbers: int, word: str = "first", **metadata: Any) -> list[Document]:
    return [Document(f"Text {n} says {word}.", id=f"d{n}", metadata={"n": n, **metadata}) for n in numbers]


# --- sync


def test_sync_removes_what_the_source_no_longer_has(collection: Collection) -> None:
    collection.ingest(documents(*range(10)))
    report = collection.sync(documents(*range(9), word="first"))
    assert (report.ingest.records_unchanged, report.records_deleted, report.deleted) == (9, 1, ["d9"])
    assert collection.get("d9") is None
    assert collection.count() == 9


def test_sync_refuses_to_delete_more_than_a_share(collection: Collection) -> None:
    collection.ingest(documents(*range(10)))
    with pytest.raises(TooManyDeletions) as raised:
        collection.sync(documents(0, 1, word="second"))
    assert (raised.value.gone, raised.value.records) == (8, 10)
    assert collection.count() == 10
    assert collection.sync(documents(0, 1, word="second"), max_delete=0.8).records_deleted == 8


def test_a_dry_run_tells_and_changes_nothing(
    collection: Collection, engine: sa.Engine, embedder: CountingEmbedder
) -> None:
    collection.ingest(documents(*range(5)))
    embedder.documents.clear()
    report = collection.sync([*documents(0), *documents(1, word="second"), *documents(7)], dry_run=True)
    ingest = report.ingest
    assert (ingest.records_added, ingest.records_changed, ingest.records_unchanged) == (1, 1, 1)
    assert (report.records_deleted, report.deleted, report.dry_run) == (3, ["d2", "d3", "d4"], True)
    assert embedder.documents == []
    assert rows(engine, "SELECT count(*) FROM cayu.revisions") == [(5,)]


def test_a_scope_keeps_other_records_out_of_a_sync(collection: Collection) -> None:
    collection.ingest([*documents(0, 1, source="wiki"), *documents(2, 3, source="mail")])
    report = collection.sync(documents(0, source="wiki"), scope={"source": "wiki"}, max_delete=1)
    assert report.deleted == ["d1"]
    assert collection.count() == 3


@pytest.mark.parametrize("share", [-0.1, 1.1, True, "0.5", float("nan")])
def test_a_share_that_is_none_is_refused(collection: Collection, share: Any) -> None:
    with pytest.raises(InvalidInput):
        collection.sync([], max_delete=share)


# --- as of


def test_a_search_as_of_a_sequence_or_time_sees_what_stood_then(
    collection: Collection, engine: sa.Engine
) -> None:
    collection.ingest(
        [Document("The moon is bright.", id="a", metadata={"v": 1}), Document("A cat.", id="b")]
    )
    then = rows(engine, "SELECT sequence, recorded_at FROM cayu.batches")[0]
    collection.ingest(Document("The sun is hot.", id="a", metadata={"v": 2}))
    collection.delete("b")
    collection.ingest(Document("The moon again.", id="c"))
    for as_of in then:
        result = collection.search("moon", as_of=as_of)  # type: ignore[arg-type]
        assert {hit.record_id for hit in result.hits} == {"a", "b"}
        assert result.hits[0].text == "The moon is bright."
        assert (result.hits[0].revision, result.hits[0].metadata) == (1, {"v": 1})
        assert [h.record_id for h in collection.search("moon", as_of=as_of, where={"v": 1}).hits] == ["a"]  # type: ignore[arg-type]
        assert collection.search("moon", as_of=as_of, where={"v": 2}).hits == ()  # type: ignore[arg-type]
    assert {hit.record_id for hit in collection.search("moon").hits} == {"a", "c"}
    assert collection.search("moon", as_of=0).hits == ()


def test_a_time_counts_a_write_from_when_it_was_made_not_from_its_commit(
    collection: Collection, engine: sa.Engine
) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    with engine.connect() as connection:
        store.using(connection).collection("notes").ingest(Document("The moon.", id="a"))
        between = connection.scalar(sa.select(sa.func.clock_timestamp()))
        assert collection.search("moon", as_of=between).hits == ()
        connection.commit()
    [revision] = collection.history("a")
    assert revision.recorded_at < between
    assert collection.search("moon", as_of=between).texts == ["The moon."]
    assert collection.search("moon", as_of=revision.recorded_at - timedelta(microseconds=1)).hits == ()


def test_a_search_as_of_now_equals_a_search(collection: Collection, engine: sa.Engine) -> None:
    for round_number in range(3):
        collection.ingest(documents(*range(30), word=f"word{round_number}"))
    last = scalar(engine, "SELECT max(sequence) FROM cayu.batches")
    now, then = collection.search("Text 7 word2"), collection.search("Text 7 word2", as_of=last)  # type: ignore[arg-type]
    assert now.fusion == then.fusion
    assert [hit.text for hit in now.hits] == [hit.text for hit in then.hits]


def test_as_of_sees_exactly_what_was_eligible_before_further_rounds_of_changes(
    collection: Collection, engine: sa.Engine
) -> None:
    rng = random.Random(3)
    state: dict[str, tuple[str, int]] = {}
    history: list[tuple[int, dict[str, tuple[str, int]]]] = []
    for turn in range(5):
        changed = [
            Document(f"Text {n} turn {rng.randint(0, 3)}.", id=f"d{n}", metadata={"group": rng.randint(0, 2)})
            for n in rng.sample(range(40), 20)
        ]
        collection.ingest(changed)
        state |= {each.record_id: (each.text, each.metadata["group"]) for each in changed}
        gone = rng.sample(sorted(state), 4)
        collection.delete(gone)
        state = {name: what for name, what in state.items() if name not in gone}
        last = scalar(engine, "SELECT max(sequence) FROM cayu.batches")
        history.append((int(str(last)), dict(state)))
        assert turn >= 0
    for sequence, expected in history:
        found = collection.search("Text turn", as_of=sequence, limit=100)
        assert {hit.record_id: hit.text for hit in found.hits} == {
            name: text for name, (text, _) in expected.items()
        }
        filtered = collection.search("Text turn", as_of=sequence, limit=100, where={"group": 1})
        assert {hit.record_id for hit in filtered.hits} == {
            n for n, (_, group) in expected.items() if group == 1
        }


@pytest.mark.parametrize("as_of", [datetime(2026, 1, 1), -1, True, 1.5, "yesterday"])
def test_a_time_without_zone_or_nonsense_is_refused(collection: Collection, as_of: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        collection.search("moon", as_of=as_of)
    assert raised.value.field == "as_of"


# --- restore, prune, erase


def test_restore_brings_a_revision_back_as_a_new_one(
    collection: Collection, embedder: CountingEmbedder
) -> None:
    collection.ingest(documents(1, word="first"))
    collection.ingest(documents(1, word="second"))
    collection.delete("d1")
    embedder.documents.clear()
    assert collection.restore("d1", 1) == 4
    assert collection.get("d1").text == "Text 1 says first."  # type: ignore[union-attr]
    assert embedder.documents == []
    assert collection.restore("d1", 1) == 4
    with pytest.raises(NotFound):
        collection.restore("d1", 3)
    with pytest.raises(NotFound):
        collection.restore("nobody", 1)


def test_prune_keeps_the_last_revisions_and_moves_the_horizon(
    collection: Collection, engine: sa.Engine
) -> None:
    for word in ("first", "second", "third", "fourth"):
        collection.ingest(documents(1, 2, word=word))
    assert collection.prune(keep_last=2) == 4
    assert [each.revision for each in collection.history("d1")] == [3, 4]
    assert scalar(engine, "SELECT count(*) FROM cayu.chunks") == 4
    assert collection.search("third", as_of=3).hits[0].revision == 3
    with pytest.raises(HistoryPruned):
        collection.search("second", as_of=2)
    assert collection.prune(keep_last=2) == 0
    assert collection.get("d1", revision=1) is None


def test_prune_by_age_leaves_what_ended_later_and_what_is_current(collection: Collection) -> None:
    collection.ingest(documents(1, word="first"))
    collection.ingest(documents(1, word="second"))
    assert collection.prune(older_than=datetime.now(UTC) - timedelta(hours=1)) == 0
    assert collection.prune(older_than=datetime.now(UTC) + timedelta(hours=1)) == 1
    assert collection.get("d1").text == "Text 1 says second."  # type: ignore[union-attr]
    for wrong in ({}, {"keep_last": 0}, {"older_than": datetime(2026, 1, 1)}):
        with pytest.raises(InvalidInput):
            collection.prune(**wrong)


def test_erase_leaves_no_trace_in_any_table(collection: Collection, engine: sa.Engine) -> None:
    secret = Document("The password is swordfish, says Xanthippe.", id="secret", title="Xanthippe")
    collection.ingest([*documents(*range(20)), secret])
    collection.ingest(Document("Now harmless.", id="secret"))
    assert collection.erase(["secret", "unknown"]) == 1
    for table in TABLES:
        dump = rows(engine, f"SELECT string_agg(x::text, ' ') FROM cayu.{table} x")[0][0]
        assert "ordfish" not in str(dump).lower()
        assert "xanthipp" not in str(dump).lower()
    assert collection.history("secret") == []
    assert collection.count() == 20
    collection.ingest(Document("Back again.", id="secret"))
    assert [each.revision for each in collection.history("secret")] == [1]


def words(engine: sa.Engine) -> set[object]:
    return {row[0] for row in rows(engine, "SELECT lexeme FROM cayu.lexeme_statistics")}


def vacuumed(statements: list[str]) -> list[str]:
    return [each.rpartition(".")[2].strip('"') for each in statements if each.startswith("VACUUM")]


def test_erase_behind_another_refresh_is_finished_by_erasing_again(
    collection: Collection, engine: sa.Engine
) -> None:
    collection.ingest([*documents(1, 2), Document("Swordfish.", id="secret")])
    collection.refresh_statistics()
    with engine.begin() as other, statements_of(engine) as sent:
        other.execute(sa.select(sa.func.pg_advisory_xact_lock(lock_key("statistics", 1))))
        with pytest.raises(Conflict, match="another refresh is at work; erase again to finish"):
            collection.erase("secret")
        assert "swordfish" in words(engine)
    assert vacuumed(sent) == list(TABLES)
    assert collection.get("secret") is None
    with statements_of(engine) as sent:
        assert collection.erase("secret") == 0
    assert "swordfish" not in words(engine)
    assert vacuumed(sent) == list(TABLES)


def test_erase_behind_a_writer_is_finished_by_erasing_again(
    collection: Collection, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    collection.ingest([*documents(1, 2), Document("Swordfish " * 50, id="secret")])
    collection.refresh_statistics()
    with engine.begin() as writer:
        writer.execute(sa.select(sa.func.pg_advisory_xact_lock_shared(lock_key("weights", 1))))
        with pytest.raises(Conflict, match=r"writers left .* erase again to finish") as raised:
            collection.erase("secret")
        assert isinstance(raised.value.__cause__, Conflict)
    assert collection.erase("secret") == 0
    assert "swordfish" not in words(engine)


def test_erasing_nothing_sends_nothing(collection: Collection, engine: sa.Engine) -> None:
    with statements_of(engine) as sent:
        assert collection.erase([]) == 0
    assert sent == []
