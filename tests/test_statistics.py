from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from cayu_pg import bm25
from cayu_pg.collection import Collection
from cayu_pg.records import Document
from cayu_pg.sql.engine import parse_url
from cayu_pg.sql.locks import lock_key
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, rows, scalar

WORDS = [f"word{number}" for number in range(60)]


def documents(count: int, *, words: int = 8, start: int = 0) -> list[Document]:
    return [
        Document(" ".join(WORDS[(place * 7 + step) % 60] for step in range(words)), id=str(start + place))
        for place in range(count)
    ]


@pytest.fixture
def collection(engine: sa.Engine) -> Collection:
    return Store(engine, embedder=CountingEmbedder()).collection("notes")


def test_statistics_follow_growth_by_themselves_and_rest_in_between(
    engine: sa.Engine, collection: Collection
) -> None:
    version = "SELECT active_statistics FROM cayu.collections"
    collection.ingest(documents(100))
    first = scalar(engine, version)
    collection.ingest(documents(15, start=100))
    assert scalar(engine, version) == first
    collection.ingest(documents(15, start=200))
    assert scalar(engine, version) != first
    assert scalar(engine, "SELECT chunks FROM cayu.statistics_versions") == 130


def test_document_frequencies_are_those_of_ts_stat(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest(documents(80))
    ours = "SELECT lexeme, document_frequency FROM cayu.lexeme_statistics ORDER BY lexeme"
    theirs = (
        """SELECT word, ndoc FROM ts_stat('SELECT tsv FROM cayu.chunk_lexemes') ORDER BY word COLLATE "C" """
    )
    assert rows(engine, ours) == rows(engine, theirs)


def test_the_dimension_of_a_word_is_the_same_in_sql_and_python(
    engine: sa.Engine, collection: Collection
) -> None:
    text = "naïve Übergröße 検索 O'Neil x_y 42 straße"
    collection.ingest(text)
    [(weights,)] = rows(engine, "SELECT weights::text FROM cayu.chunk_lexemes")
    lexemes = [str(row[0]) for row in rows(engine, "SELECT (unnest(tsv)).lexeme FROM cayu.chunk_lexemes")]
    stored = {int(pair.split(":")[0]) for pair in str(weights)[1:].split("}")[0].split(",")}
    assert stored == {bm25.dimension(lexeme) for lexeme in lexemes}


def test_a_drifted_average_length_writes_new_weights_and_drops_the_old(
    engine: sa.Engine, collection: Collection
) -> None:
    collection.ingest(documents(30, words=5))
    collection.ingest(documents(60, words=25, start=100))
    [(version, weights, average)] = rows(
        engine, "SELECT version, weights_version, average_length FROM cayu.statistics_versions"
    )
    assert weights == version
    assert average == pytest.approx(scalar(engine, "SELECT avg(length)::float8 FROM cayu.chunk_lexemes"))
    assert rows(engine, "SELECT DISTINCT weights_version FROM cayu.chunk_lexemes") == [(weights,)]
    assert scalar(engine, "SELECT count(*) FROM cayu.chunk_lexemes") == 90


def test_new_weights_are_written_page_by_page(
    engine: sa.Engine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayu_pg.sql.lexemes.PAGE", 7)
    test_a_drifted_average_length_writes_new_weights_and_drops_the_old(engine, collection)
    average = float(str(scalar(engine, "SELECT average_length FROM cayu.statistics_versions")))
    for length, stored in rows(engine, "SELECT length, weights::text FROM cayu.chunk_lexemes"):
        once = 2.2 / (1 + 1.2 * (0.25 + 0.75 * float(str(length)) / average))
        assert weights_in(stored) == pytest.approx([once] * int(str(length)), rel=1e-6)


def weights_in(stored: object) -> list[float]:
    return [float(pair.split(":")[1]) for pair in str(stored)[1:].split("}")[0].split(",")]


def test_scores_do_not_change_under_one_version(collection: Collection) -> None:
    collection.ingest(documents(100))
    before = collection.search("word3 word9", channels=("text",))
    collection.ingest(documents(5, start=500))
    after = collection.search("word3 word9", channels=("text",), limit=100)
    scores = {hit.record_id: hit.matches[0].raw_score for hit in after.hits}
    assert all(scores[hit.record_id] == hit.matches[0].raw_score for hit in before.hits)
    version = [result.diagnostics.channels["text"].index_version for result in (before, after)]
    assert version[0] == version[1]


def test_a_word_newer_than_the_statistics_is_found(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest(documents(100))
    collection.ingest(Document("A brandnewword appears.", id="new"))
    assert collection.search("brandnewword", channels=("text",)).hits[0].record_id == "new"


def test_ingest_in_a_callers_transaction_leaves_the_statistics_alone(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    with engine.begin() as connection:
        store.using(connection).collection("notes").ingest(documents(40))
    assert rows(engine, "SELECT chunks FROM cayu.statistics_versions") == [(0,)]
    collection = store.collection("notes")
    assert collection.search("word3", channels=("text",)).hits
    assert collection.refresh_statistics() is True
    assert rows(engine, "SELECT chunks FROM cayu.statistics_versions") == [(40,)]


def test_two_refreshes_at_once_do_not_wait_for_each_other(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest(documents(40))
    with engine.connect() as holder:
        locks = sa.text("SELECT pg_advisory_xact_lock(:key)")
        holder.execute(locks, {"key": lock_key("statistics", 1)})
        assert collection.refresh_statistics() is False
    assert collection.refresh_statistics() is True


def test_stop_words_alone_are_a_chunk_without_words(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest("the of and to")
    assert rows(engine, "SELECT length, weights::text FROM cayu.chunk_lexemes") == [(0, "{}/1000000000")]


def test_a_chunk_of_very_many_words_is_kept_and_searchable(collection: Collection) -> None:
    text = " ".join(f"q{number}" for number in range(30_000))
    collection.ingest(Document(text, id="long"), chunk_size=1_000_000, chunk_overlap=0)
    assert collection.search("q5", channels=("text",)).hits[0].record_id == "long"


def test_of_more_words_than_a_vector_holds_the_heaviest_stay(
    engine: sa.Engine, collection: Collection
) -> None:
    often = [f"z{number}" for number in range(50)]
    text = " ".join([f"q{number:04x}" for number in range(16_000)] + often * 2)
    collection.ingest(text, chunk_size=1_000_000, chunk_overlap=0)
    [(words, stored)] = rows(engine, "SELECT length(tsv), weights::text FROM cayu.chunk_lexemes")
    weights = weights_in(stored)
    assert (words, len(weights)) == (16_050, 16_000)
    assert sum(weight > min(weights) for weight in weights) == 50


def test_a_word_longer_than_postgres_indexes_is_passed_over(collection: Collection) -> None:
    collection.ingest(Document("x" * 5000 + " lighthouse", id="a"), chunk_size=10_000, chunk_overlap=0)
    assert collection.search("lighthouse", channels=("text",)).hits[0].record_id == "a"


def test_a_very_large_collection_is_counted_by_a_sample(
    engine: sa.Engine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayu_pg.sql.statistics.SAMPLE_ABOVE", 100)
    monkeypatch.setattr("cayu_pg.sql.statistics.SAMPLE_SIZE", 50)
    collection.ingest([Document(f"common word{number % 2}.", id=str(number)) for number in range(200)])
    [(frequency, weight)] = rows(
        engine, "SELECT document_frequency, max_weight FROM cayu.lexeme_statistics WHERE lexeme = 'common'"
    )
    assert frequency == 200
    assert weight == pytest.approx(bm25.K1 + 1)
    assert scalar(engine, "SELECT chunks FROM cayu.statistics_versions") == 200
    assert not collection.search("common", channels="text").diagnostics.channels["text"].truncated


@pytest.mark.parametrize(
    "write",
    [lambda notes: notes.ingest(documents(40, start=500)), lambda notes: notes.delete(["1", "2", "3"])],
)
def test_a_refresh_stopped_by_a_timeout_does_not_fail_what_was_written(
    database_url: str, engine: sa.Engine, write: Callable[[Collection], object]
) -> None:
    impatient = sa.create_engine(parse_url(database_url), connect_args={"options": "-c lock_timeout=200"})
    notes = Store(impatient, embedder=CountingEmbedder()).collection("notes")
    notes.ingest(documents(10))
    before = rows(engine, "SELECT * FROM cayu.statistics_versions")
    with engine.begin() as other:
        other.execute(sa.text("LOCK TABLE cayu.lexeme_statistics"))
        write(notes)
    assert rows(engine, "SELECT * FROM cayu.statistics_versions") == before
    assert scalar(engine, "SELECT count(*) FROM cayu.batches") == 2
    impatient.dispose()
