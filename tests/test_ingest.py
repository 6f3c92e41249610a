from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from cayu_pg.collection import Collection
from cayu_pg.errors import CayuPgError, InvalidInput
from cayu_pg.ingesting import IngestProgress
from cayu_pg.records import Document
from cayu_pg.sql import batches
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, binds_of, rows, scalar

PARAGRAPHS = [
    f"Paragraph {number} speaks about topic {number * 7} at some length. " * 12 for number in range(8)
]
BOOK = "\n\n".join(PARAGRAPHS)
TABLES = ("records", "revisions", "chunks", "revision_chunks", "chunk_embeddings", "chunk_lexemes", "batches")


@pytest.fixture
def embedder() -> CountingEmbedder:
    return CountingEmbedder()


@pytest.fixture
def store(engine: sa.Engine, embedder: CountingEmbedder) -> Store:
    return Store(engine, embedder=embedder)


@pytest.fixture
def collection(store: Store) -> Collection:
    return store.collection("books")


def written(engine: sa.Engine) -> dict[str, int]:
    """Rows inserted, updated and deleted in each table since it was made, from the server's own counters."""
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        connection.commit()
        found = connection.execute(
            sa.text(
                "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
                " WHERE schemaname = 'cayu'"
            )
        )
        return {name: count for name, count in found if name in TABLES}


def test_a_document_becomes_a_record_with_chunks_vectors_and_words(
    engine: sa.Engine, collection: Collection, embedder: CountingEmbedder
) -> None:
    report = collection.ingest(Document(BOOK, id="book", title="A book", metadata={"lang": "en"}))
    chunks = report.chunks_added
    assert report.records_added == 1
    assert chunks > 1
    assert report.embeddings_computed == chunks == len(embedder.documents)
    assert scalar(engine, "SELECT count(*) FROM cayu.chunk_embeddings WHERE current") == chunks
    assert scalar(engine, "SELECT count(*) FROM cayu.chunk_lexemes WHERE current") == chunks
    placed = rows(engine, "SELECT text, start_offset, end_offset FROM cayu.current_chunks ORDER BY ordinal")
    assert all(text == BOOK[start:end] for text, start, end in placed)  # type: ignore[misc]


def test_the_same_documents_again_cost_no_embedding_and_no_row(
    engine: sa.Engine, collection: Collection, embedder: CountingEmbedder
) -> None:
    documents = [Document(BOOK, id="book"), "A short text.", {"text": "Another one.", "id": "third"}]
    collection.ingest(documents)
    embedded, before = len(embedder.documents), written(engine)
    report = collection.ingest(documents)
    assert report.records_unchanged == 3
    assert report.chunks_kept == scalar(engine, "SELECT count(*) FROM cayu.chunks")
    assert (report.chunks_added, report.chunks_removed, report.embeddings_computed) == (0, 0, 0)
    assert len(embedder.documents) == embedded
    assert written(engine) == before


def test_a_change_embeds_only_what_changed(collection: Collection, embedder: CountingEmbedder) -> None:
    collection.ingest(Document(BOOK, id="book"), chunk_overlap=0)
    embedder.documents.clear()
    changed = BOOK.replace("topic 21 ", "matter 21 ")
    report = collection.ingest(Document(changed, id="book"), chunk_overlap=0)
    assert report.records_changed == 1
    assert (
        report.embeddings_computed == report.chunks_added == report.chunks_removed == len(embedder.documents)
    )
    assert all("matter 21" in text for text in embedder.documents)
    assert report.chunks_kept > 0


def test_shrunk_document_leaves_no_orphan_chunks(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest(Document(BOOK, id="book"))
    report = collection.ingest(Document(PARAGRAPHS[0], id="book"))
    assert report.chunks_removed > 0
    current = "SELECT count(*) FROM cayu.{} WHERE current"
    expected = scalar(engine, "SELECT count(*) FROM cayu.current_chunks")
    for table in ("chunks", "chunk_embeddings", "chunk_lexemes"):
        assert scalar(engine, current.format(table)) == expected
    assert all("Paragraph 5" not in hit.text for hit in collection.search("Paragraph 5 topic 35").hits)


def test_text_that_comes_back_brings_its_vector_back(
    engine: sa.Engine, collection: Collection, embedder: CountingEmbedder
) -> None:
    collection.ingest(Document(BOOK, id="book"))
    collection.ingest(Document("Something else.", id="book"))
    embedder.documents.clear()
    report = collection.ingest(Document(BOOK, id="book"))
    assert embedder.documents == []
    assert report.embeddings_computed == 0
    assert scalar(engine, "SELECT count(*) FROM cayu.chunk_embeddings WHERE current") == report.chunks_added
    assert [revision.revision for revision in collection.history("book")] == [1, 2, 3]


def test_chunks_that_merely_moved_keep_their_rows(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest(Document("\n\n".join(PARAGRAPHS), id="book"), chunk_overlap=0, chunk_size=800)
    ids = {row[0] for row in rows(engine, "SELECT chunk_id FROM cayu.chunks")}
    moved = Document("\n\n".join(reversed(PARAGRAPHS)), id="book")
    report = collection.ingest(moved, chunk_overlap=0, chunk_size=800)
    assert (report.chunks_added, report.chunks_removed, report.embeddings_computed) == (0, 0, 0)
    assert {row[0] for row in rows(engine, "SELECT chunk_id FROM cayu.current_chunks")} == ids


def test_equal_text_in_another_record_reuses_its_vector(
    engine: sa.Engine, collection: Collection, embedder: CountingEmbedder
) -> None:
    collection.ingest(Document("The same words.", id="first"))
    report = collection.ingest(
        [Document("The same words.", id="second"), Document("The same words.", id="third")]
    )
    assert embedder.documents == ["The same words."]
    assert (report.embeddings_computed, report.embeddings_reused) == (0, 2)
    assert scalar(engine, "SELECT count(DISTINCT embedding::text) FROM cayu.chunk_embeddings") == 1


def test_equal_texts_of_one_ingest_are_embedded_once(
    collection: Collection, embedder: CountingEmbedder
) -> None:
    report = collection.ingest([Document("Twice.", id="a"), Document("Twice.", id="b")])
    assert embedder.documents == ["Twice."]
    assert (report.embeddings_computed, report.embeddings_reused, report.chunks_added) == (1, 1, 2)


def test_a_vector_belongs_to_the_text_beside_it(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest([Document(f"Text number {number}.", id=str(number)) for number in range(40)])
    embedder = CountingEmbedder()
    for text, stored in rows(
        engine,
        "SELECT k.text, e.embedding::text"
        " FROM cayu.chunks k JOIN cayu.chunk_embeddings e USING (collection_id, chunk_id)",
    ):
        vector = np.array(str(stored).strip("[]").split(","), dtype=np.float32)
        assert np.array_equal(vector, embedder.encode_documents([str(text)])[0])


def test_metadata_alone_makes_a_revision_and_embeds_nothing(
    engine: sa.Engine, collection: Collection, embedder: CountingEmbedder
) -> None:
    collection.ingest(Document("A text.", id="a", metadata={"year": 2001}))
    embedder.documents.clear()
    report = collection.ingest(Document("A text.", id="a", metadata={"year": 2002}))
    assert (report.records_changed, report.chunks_kept, report.embeddings_computed) == (1, 1, 0)
    assert scalar(engine, "SELECT metadata ->> 'year' FROM cayu.chunks") == "2002"
    assert [each.metadata for each in collection.history("a")] == [{"year": 2001}, {"year": 2002}]
    assert collection.search("text").hits[0].metadata == {"year": 2002}


def test_one_mapping_is_one_document(collection: Collection) -> None:
    assert collection.ingest({"text": "The moon.", "id": "a"}).records_added == 1
    assert collection.list_all() == ["The moon."]


def test_metadata_is_sent_once_a_record_however_many_chunks_it_has(
    engine: sa.Engine, collection: Collection
) -> None:
    def books(year: int) -> list[Document]:
        return [Document(f"{BOOK}\n\n{name}", id=name, metadata={"year": year}) for name in ("a", "b")]

    collection.ingest(books(2001), chunk_overlap=0)
    with binds_of(engine, "SET metadata") as sent:
        collection.ingest(books(2002), chunk_overlap=0)
    [binds] = sent
    assert binds["metadata"] == ['{"year": 2002}'] * 2
    assert len(binds["chunk_ids"]) == scalar(engine, "SELECT count(*) FROM cayu.chunks") > 10
    assert rows(engine, "SELECT DISTINCT metadata ->> 'year' FROM cayu.chunks") == [("2002",)]


def test_another_chunk_size_is_a_change(collection: Collection) -> None:
    collection.ingest(Document(BOOK, id="book"), chunk_size=1000)
    report = collection.ingest(Document(BOOK, id="book"), chunk_size=500, chunk_overlap=50)
    assert (report.records_changed, report.records_unchanged) == (1, 0)
    assert report.chunks_added > 0


def test_one_id_twice_in_an_ingest_becomes_two_revisions(collection: Collection) -> None:
    report = collection.ingest([Document("First version.", id="a"), Document("Second version.", id="a")])
    assert (report.records_added, report.records_changed) == (1, 1)
    assert [each.text for each in collection.history("a")] == ["First version.", "Second version."]


def test_repeated_paragraphs_are_one_chunk_in_two_places(engine: sa.Engine, collection: Collection) -> None:
    text = "\n\n".join([PARAGRAPHS[0], PARAGRAPHS[1], PARAGRAPHS[0]])
    report = collection.ingest(Document(text, id="a"), chunk_overlap=0, chunk_size=800)
    assert report.chunks_added == scalar(engine, "SELECT count(*) FROM cayu.chunks")
    places = rows(
        engine, "SELECT chunk_id, count(*) FROM cayu.revision_chunks GROUP BY 1 HAVING count(*) > 1"
    )
    assert len(places) == 1
    found = collection.search(PARAGRAPHS[0][:60]).hits[0]
    assert found.ordinal == 0


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("", "text"),
        ("  \n ", "text"),
        ("a\x00b", "text"),
        ("lone \ud800 surrogate", "text"),
        (7, "document"),
        (None, "document"),
        ({"title": "no text"}, "document"),
        ({"text": "x", "colour": "red"}, "document"),
        ({"text": "x", "metadata": {"a": float("nan")}}, "metadata.a"),
        ({"text": "x", "metadata": {"a": (1, 2)}}, "metadata.a"),
        ({"text": "x", "metadata": {"a": 2**63}}, "metadata.a"),
        ({"text": "x", "metadata": {1: 2}}, "metadata"),
        ({"text": "x", "metadata": {"k": "\x00"}}, "metadata.k"),
        ({"text": "x", "id": " padded "}, "id"),
        ({"text": "x", "id": "long" * 300}, "id"),
        ({"text": "x", "id": 5}, "id"),
        ({"text": "x", "title": " "}, "title"),
        ({"text": "x", "source": "\x00"}, "source"),
    ],
)
def test_a_bad_document_is_named_before_any_sql(collection: Collection, bad: object, named: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        collection.ingest(["A good text.", bad])
    assert raised.value.field.startswith(named)
    assert collection.count() == 0
    report = collection.ingest(["A good text.", bad, "Another."], on_error="skip")
    assert [refusal.offset for refusal in report.refused] == [1]
    assert named.split(".")[0] in report.refused[0].reason
    assert collection.count() == report.records_added == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_size": 0},
        {"chunk_size": 10, "chunk_overlap": 10},
        {"chunk_overlap": -1},
        {"chunk_size": True},
        {"separators": []},
        {"on_error": "ignore"},
    ],
)
def test_bad_settings_are_refused_even_without_documents(
    collection: Collection, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        collection.ingest([], **settings)


def test_documents_may_come_from_a_generator_and_progress_is_told(collection: Collection) -> None:
    def stream() -> Iterator[str]:
        for number in range(1200):
            yield f"Document number {number}."

    seen: list[IngestProgress] = []
    report = collection.ingest(stream(), progress=seen.append)
    assert report.records_added == collection.count() == 1200
    assert [each.documents for each in seen] == [500, 1000, 1200]


def test_a_failing_generator_keeps_the_batches_before_it(collection: Collection) -> None:
    def stream() -> Iterator[str]:
        for number in range(700):
            yield f"Document number {number}."
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        collection.ingest(stream())
    assert collection.count() == 500


def test_wrong_vectors_are_refused_and_nothing_is_written(engine: sa.Engine) -> None:
    class Broken(CountingEmbedder):
        def encode_documents(self, texts: Any) -> Any:
            return np.full((len(texts), self.dimensions), np.nan, dtype=np.float32)

    collection = Store(engine, embedder=Broken()).collection("broken")
    with pytest.raises(InvalidInput):
        collection.ingest("A text.")
    assert scalar(engine, "SELECT count(*) FROM cayu.records") == 0


def test_another_embedder_is_refused_by_name(engine: sa.Engine, collection: Collection) -> None:
    collection.ingest("A text.")
    other = Store(engine, embedder=CountingEmbedder(16)).collection("books")
    with pytest.raises(InvalidInput, match=r"hash-32.*hash-16"):
        other.ingest("Another text.")
    with pytest.raises(InvalidInput, match=r"hash-32.*hash-16"):
        other.search("text")


def test_a_vector_lost_meanwhile_is_computed_again(
    engine: sa.Engine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.ingest(Document("Shared words.", id="first"))
    real = batches.lock_records

    def lock_after_erasure(conn: sa.Connection, *arguments: Any) -> Any:
        with engine.begin() as other:
            other.execute(sa.text("DELETE FROM cayu.records WHERE record_id = 'first'"))
        return real(conn, *arguments)

    monkeypatch.setattr(batches, "lock_records", lock_after_erasure)
    report = collection.ingest(Document("Shared words.", id="second"))
    assert (report.embeddings_computed, report.embeddings_reused) == (1, 0)


def test_concurrent_first_ingests_make_one_collection_space_and_statistics(
    engine: sa.Engine, database_url: str
) -> None:
    def work(number: int) -> int:
        with Store(database_url, embedder=CountingEmbedder()) as store:
            documents = [Document(f"Text {number} {place}.", id=f"{number}-{place}") for place in range(20)]
            return store.collection("shared").ingest(documents).records_added

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 160
    assert scalar(engine, "SELECT count(*) FROM cayu.embedding_spaces") == 1
    assert scalar(engine, "SELECT count(*) FROM cayu.collections") == 1
    assert rows(engine, "SELECT sequence FROM cayu.batches ORDER BY 1") == [
        (number,) for number in range(1, 9)
    ]


def test_writers_on_overlapping_records_never_deadlock(engine: sa.Engine, database_url: str) -> None:
    ids = [f"record-{number}" for number in range(12)]

    def work(writer: int) -> None:
        with Store(database_url, embedder=CountingEmbedder()) as store:
            collection = store.collection("shared")
            for turn in range(6):
                order = ids[writer:] + ids[:writer]
                collection.ingest(
                    [Document(f"{name} by {writer} in turn {turn}.", id=name) for name in order]
                )

    Store(engine, embedder=CountingEmbedder()).collection("shared").ingest("First of all.")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    broken = """
        SELECT r.record_id FROM cayu.records r
        WHERE (SELECT count(*) FROM cayu.revisions v WHERE v.record_id = r.record_id) <> r.current_revision
           OR (SELECT count(*) FROM cayu.chunks k WHERE k.record_id = r.record_id AND k.current) <> 1"""
    assert rows(engine, broken) == []


def test_an_unknown_configuration_or_analyzer_lists_the_known(store: Store) -> None:
    with pytest.raises(InvalidInput, match="english"):
        store.collection("new", text_config="klingon")
    with pytest.raises(InvalidInput, match="ngram"):
        store.collection("new", analyzer="magic")
    with pytest.raises(CayuPgError):
        store.collection("new", create=False)


GERMAN = {
    "text_config": "german",
    "analyzer": "folded",
    "distance": "l2",
    "quantization": "binary",
    "k1": 1.5,
    "b": 0.4,
}


def test_a_collection_is_opened_with_what_it_was_made_with_or_with_nothing(store: Store) -> None:
    store.collection("deutsch", **GERMAN)  # type: ignore[arg-type]
    for given in ({}, GERMAN, {"analyzer": "folded-1"}, {"k1": 1.5}, {"text_config": "german"}):
        assert store.collection("deutsch", **given).name == "deutsch"
    assert store.search(["deutsch"], "wort").hits == ()


@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ("text_config", "english"),  # also what would be the default
        ("analyzer", "standard"),
        ("distance", "cosine"),
        ("quantization", "none"),
        ("k1", 1.2),
        ("b", 0.75),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_a_setting_other_than_that_of_the_collection_is_refused(
    store: Store, setting: str, other: Any, create: bool
) -> None:
    store.collection("deutsch", **GERMAN)  # type: ignore[arg-type]
    stored = "folded-1" if setting == "analyzer" else GERMAN[setting]
    with pytest.raises(InvalidInput, match=f"{setting}: expected {stored!r}.*'deutsch'.*found {other!r}"):
        store.collection("deutsch", **{setting: other}, create=create)


def test_the_defaults_in_a_signature_are_plain_to_read() -> None:
    shown = {
        name: repr(each.default) for name, each in inspect.signature(Store.collection).parameters.items()
    }
    assert (shown["text_config"], shown["distance"], shown["quantization"]) == (
        "'english'",
        "'cosine'",
        "'none'",
    )
    assert (shown["k1"], shown["b"]) == ("1.2", "0.75")
