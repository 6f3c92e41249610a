from __future__ import annotations

import math
from typing import Any

import pytest
import sqlalchemy as sa

from cayu_pg.collection import Collection
from cayu_pg.errors import InvalidInput, NotFound, QueryCanceled
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.records import Document
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, rows, statements_of

DOCUMENTS = [
    Document("The cat sat on the mat and looked at the moon.", id="cat", title="Cat"),
    Document("A dog barked at the moon all night long.", id="dog", metadata={"kind": "loud"}),
    Document("PostgreSQL stores vectors, and words, side by side.", id="postgres"),
    Document("Reciprocal rank fusion merges rankings of several channels.", id="fusion"),
    Document("It's O'Neil\\'s odd 'quoted' text | with & operators ! in <-> it.", id="odd#one%"),
]


@pytest.fixture
def collection(engine: sa.Engine) -> Collection:
    collection = Store(engine, embedder=CountingEmbedder()).collection("notes")
    collection.ingest(DOCUMENTS)
    return collection


def test_a_question_finds_its_passage_through_both_channels(collection: Collection) -> None:
    result = collection.search("a dog barked at the moon")
    first = result.hits[0]
    assert (first.record_id, first.ordinal, first.revision, first.title) == ("dog", 0, 1, None)
    assert first.text == DOCUMENTS[1].text
    assert first.metadata == {"kind": "loud"}
    assert {match.channel for match in first.matches} == {"vector", "text"}
    assert result.texts[0] == first.text
    assert first.identity.sort_key() == ("chunk", "dog#0", "1")


def test_a_record_id_is_percent_encoded_in_the_identity(collection: Collection) -> None:
    hit = collection.search("odd quoted text", channels=("text",)).hits[0]
    assert hit.record_id == "odd#one%"
    assert hit.identity.record_id == "odd%23one%25#0"


def test_the_score_is_the_sum_of_weighted_reciprocal_ranks(collection: Collection) -> None:
    for hit in collection.search("cat moon").hits:
        assert hit.score == math.fsum(1.0 / (60.0 + match.rank) for match in hit.matches)


def test_a_search_sends_two_query_statements(engine: sa.Engine, collection: Collection) -> None:
    collection.search("warm up")
    with statements_of(engine) as sent:
        assert len(collection.search("moon").hits) > 1
    assert [each.split()[0] for each in sent] == ["SET", "WITH", "SELECT"]


def test_explain_shows_ranks_parts_of_the_score_and_near_misses(collection: Collection) -> None:
    explanation = collection.search("the moon at night", limit=2).explain()
    assert "1. dog#0 revision 1" in explanation
    assert "text: rank 1, raw score" in explanation
    assert "vector: rank" in explanation
    assert "near misses:" in explanation
    assert "cayu.wrrf.v1" in explanation


def test_the_text_channel_scores_as_bm25(engine: sa.Engine, collection: Collection) -> None:
    """The score of the first hit equals the formula, computed from the stored words alone."""
    hit = collection.search("moon", channels=("text",)).hits[0]
    [(chunks, average)] = rows(engine, "SELECT chunks, average_length FROM cayu.statistics_versions")
    [(length,)] = rows(
        engine,
        "SELECT l.length FROM cayu.chunk_lexemes l JOIN cayu.chunks k USING (collection_id, chunk_id)"
        f" WHERE k.record_id = '{hit.record_id}'",
    )
    idf = math.log(1 + (float(chunks) - 2 + 0.5) / (2 + 0.5))  # type: ignore[arg-type]
    weight = 2.2 / (1 + 1.2 * (0.25 + 0.75 * float(length) / float(average)))  # type: ignore[arg-type]
    assert hit.matches[0].raw_score == pytest.approx(idf * weight, rel=1e-5)


def test_both_channels_report_how_they_came_to_their_hits(collection: Collection) -> None:
    channels = collection.search("moon").diagnostics.channels
    assert channels["vector"].path == "exact"
    assert channels["vector"].eligible == channels["vector"].returned == len(DOCUMENTS)
    assert channels["text"].returned == 2
    assert channels["text"].truncated is False
    assert "standard-1:english:statistics-" in channels["text"].index_version
    assert "hash-32:cosine" in channels["vector"].index_version


@pytest.mark.parametrize(
    "query",
    [
        "the of and",
        "-" * 40,
        "!!! ???",
        "( | & ! <-> :* )",
        "''''",
        "\\",
        "🙂",
        "«»",
        "'; DROP TABLE chunks; --",
    ],
)
def test_a_query_without_searchable_words_gives_an_honest_empty_channel(
    collection: Collection, query: str
) -> None:
    result = collection.search(query)
    channel = result.diagnostics.channels["text"]
    assert channel.returned == 0
    assert channel.reason in ("the query has no searchable words", "no chunk holds any of the words")
    assert len(result.hits) == len(DOCUMENTS)


def test_forty_thousand_words_are_a_query(collection: Collection) -> None:
    result = collection.search(" ".join(f"word{number}" for number in range(40_000)) + " moon")
    assert result.diagnostics.channels["text"].path == "exact"
    assert collection.search("moon " * 40_000).hits[0].record_id in ("cat", "dog")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": " \n"}, "query"),
        ({"query": None}, "query"),
        ({"query": "a\x00b"}, "query"),
        ({"query": "\ud800"}, "query"),
        ({"query": "x" * 1_000_001}, "query"),
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": 2.0}, "limit"),
        ({"candidates": -1}, "candidates"),
        ({"candidates": 10**9}, "candidates"),
        ({"channels": ()}, "channels"),
        ({"channels": ("vector", "vector")}, "channels"),
        ({"channels": ("smell",)}, "channels"),
        ({"max_distance": float("nan")}, "max_distance"),
        ({"timeout": 0}, "timeout"),
        ({"fusion": {"k": 3}}, "fusion"),
    ],
)
def test_a_bad_argument_is_named_before_any_sql(
    engine: sa.Engine, collection: Collection, arguments: dict[str, Any], field: str
) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput) as raised:
        collection.search(**{"query": "moon", **arguments})
    assert raised.value.field == field
    assert sent == []


def test_one_channel_alone_answers(collection: Collection) -> None:
    assert {m.channel for hit in collection.search("moon", channels="text").hits for m in hit.matches} == {
        "text"
    }
    assert len(collection.search("moon", channels=["vector"]).hits) == len(DOCUMENTS)


def test_a_fusion_configuration_decides_the_order(collection: Collection) -> None:
    config = WeightedReciprocalRankFusionConfig(
        configuration_version="words-first", channel_weights={"vector": 0.001, "text": 10.0}
    )
    result = collection.search("rank fusion", fusion=config)
    assert result.hits[0].record_id == "fusion"
    assert result.fusion.diagnostics.configuration_sha256 == config.fingerprint()


@pytest.mark.parametrize(
    "change",
    [{"fused_head_limit": 5}, {"max_candidates_per_channel": 50}, {"channel_weights": {"vector": 1.0}}],
)
def test_a_fusion_that_is_too_small_or_names_other_channels_is_refused(
    collection: Collection, change: dict[str, Any]
) -> None:
    config = WeightedReciprocalRankFusionConfig(
        **{"configuration_version": "small", "channel_weights": {"vector": 1.0, "text": 1.0}, **change}
    )
    with pytest.raises(InvalidInput) as raised:
        collection.search("moon", fusion=config)
    assert raised.value.field == "fusion"


def test_per_record_shows_the_best_passage_of_each_record(engine: sa.Engine) -> None:
    collection = Store(engine, embedder=CountingEmbedder()).collection("long")
    text = "\n\n".join(f"The lighthouse keeper wrote page {number} of the log. " * 6 for number in range(30))
    collection.ingest(
        [Document(text, id="log"), Document("A lighthouse.", id="short"), Document("Tea.", id="tea")]
    )
    result = collection.search("lighthouse keeper", per_record=True, candidates=5, limit=3)
    assert result.hits[0].record_id == "log"
    assert len({hit.record_id for hit in result.hits}) == len(result.hits) == 3
    assert result.hits[0].identity.sort_key() == ("document", "log", "1")


def test_max_distance_cuts_the_vector_channel(collection: Collection) -> None:
    every = collection.search("cat", channels="vector")
    distances = [hit.matches[0].raw_score for hit in every.hits]
    assert distances == sorted(distances)  # type: ignore[type-var]
    cut = collection.search("cat", channels="vector", max_distance=distances[1])
    assert [hit.record_id for hit in cut.hits] == [hit.record_id for hit in every.hits[:2]]


def test_equal_searches_give_equal_results(collection: Collection) -> None:
    first = collection.search("moon night words")
    for _ in range(20):
        again = collection.search("moon night words")
        assert again.fusion.model_dump_json() == first.fusion.model_dump_json()


def test_a_deleted_record_is_not_found_and_its_history_stays(collection: Collection) -> None:
    assert collection.delete(["dog", "unknown"]) == 1
    assert collection.delete("dog") == 0
    assert all(hit.record_id != "dog" for hit in collection.search("dog barked moon").hits)
    assert collection.get("dog") is None
    assert collection.get("dog", revision=1).text == DOCUMENTS[1].text  # type: ignore[union-attr]
    assert [(each.revision, each.deleted) for each in collection.history("dog")] == [(1, False), (2, True)]
    assert collection.count() == len(DOCUMENTS) - 1
    collection.ingest(DOCUMENTS[1])
    assert collection.search("dog barked").hits[0].revision == 3


def test_records_come_in_pages_by_id(collection: Collection) -> None:
    first = collection.records(limit=2)
    rest = collection.records(after=first[-1].record_id)
    assert [each.record_id for each in first + rest] == sorted(document.record_id for document in DOCUMENTS)
    assert collection.list_all() == [each.text for each in first + rest]


def test_an_empty_collection_answers_with_reasons(engine: sa.Engine) -> None:
    result = Store(engine, embedder=CountingEmbedder()).collection("empty").search("anything")
    assert result.hits == ()
    assert result.diagnostics.channels["vector"].reason == "the collection has no vectors yet"
    assert result.diagnostics.channels["text"].reason == "no chunk holds any of the words"


def test_a_collection_looked_up_before_the_first_ingest_finds_what_another_wrote(engine: sa.Engine) -> None:
    early = Store(engine, embedder=CountingEmbedder()).collection("shared")
    Store(engine, embedder=CountingEmbedder()).collection("shared").ingest(DOCUMENTS)
    assert early.search("dog moon").hits[0].record_id == "dog"


def test_a_dropped_collection_is_not_found(engine: sa.Engine, collection: Collection) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    assert store.drop_collection("notes") is True
    assert store.drop_collection("notes") is False
    with pytest.raises(NotFound):
        collection.search("moon")
    with pytest.raises(NotFound):
        store.collection("notes", create=False)
    for table in ("chunks", "revisions", "chunk_lexemes", "chunk_embeddings", "lexeme_statistics", "batches"):
        assert rows(engine, f"SELECT count(*) FROM cayu.{table}") == [(0,)]


def test_tenants_do_not_see_each_other(engine: sa.Engine, collection: Collection) -> None:
    other = Store(engine, embedder=CountingEmbedder()).for_tenant("other")
    assert other.collections() == []
    other.collection("notes").ingest(Document("Only the other tenant says moon.", id="secret"))
    assert [hit.record_id for hit in other.collection("notes").search("moon").hits] == ["secret"]
    assert all(hit.record_id != "secret" for hit in collection.search("moon").hits)


def test_a_timeout_stops_the_statement(engine: sa.Engine, collection: Collection) -> None:
    with engine.connect() as holder:
        holder.execute(sa.text("LOCK TABLE cayu.chunk_lexemes IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(QueryCanceled):
            collection.search("moon", timeout=0.2)
    assert collection.search("moon", timeout=5).hits


def test_an_hnsw_and_a_gin_index_are_built_and_used_on_request(engine: sa.Engine) -> None:
    collection = Store(engine, embedder=CountingEmbedder()).collection("large")
    collection.ingest(
        [Document(f"Note {number} about subject {number % 97}.", id=str(number)) for number in range(600)]
    )
    exact = collection.search("Note 55 about subject 55", candidates=40)
    assert sorted(collection.reindex(min_chunks=500)) == ["gin_metadata_1", "gin_words_1", "hnsw_1_1"]
    assert collection.reindex(min_chunks=500) == []
    near = collection.search("Note 55 about subject 55", candidates=40)
    assert near.diagnostics.channels["vector"].path == "approximate"
    assert near.diagnostics.channels["vector"].returned == 40
    assert near.hits[0].record_id == exact.hits[0].record_id
    forced = collection.search("Note 55 about subject 55", candidates=40, exact=True)
    assert forced.diagnostics.channels["vector"].path == "exact"
    assert forced.fusion == exact.fusion


def test_hnsw_that_comes_back_short_is_answered_exactly(engine: sa.Engine) -> None:
    collection = Store(engine, embedder=CountingEmbedder()).collection("shrunk")
    collection.ingest([Document(f"Note {number}.", id=str(number)) for number in range(300)])
    collection.reindex(min_chunks=100)
    collection.delete([str(number) for number in range(290)])
    result = collection.search("Note 295", candidates=40)
    assert result.diagnostics.channels["vector"].path == "approximate+exact"
    assert result.diagnostics.channels["vector"].returned == 10
