"""The vector channel: never silently fewer than k, whichever path answers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from cayu_pg.collection import Collection
from cayu_pg.errors import InvalidFilter, InvalidInput, StaleContinuation
from cayu_pg.records import Document
from cayu_pg.sql import vector_channel
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, rows, statements_of

SIZE = 3_000


class RandomEmbedder(CountingEmbedder):
    """Unit vectors from the text's hash: no structure, which is hard for an approximate index."""

    def encode_documents(self, texts: Any) -> Any:
        return np.stack([self.encode_query(text) for text in texts])

    def encode_query(self, text: str) -> Any:
        seed = int.from_bytes(text.encode()[:8].ljust(8), "big") ^ hash_of(text)
        vector = np.random.default_rng(seed).standard_normal(self.dimensions).astype(np.float32)
        return vector / np.linalg.norm(vector)


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def documents(count: int = SIZE) -> list[Document]:
    return [
        Document(
            f"Passage number {number}.",
            id=f"p{number}",
            metadata={"rare": number % 1000 == 0, "third": number % 3, "number": number},
        )
        for number in range(count)
    ]


@pytest.fixture
def store(engine: sa.Engine) -> Store:
    return Store(engine, embedder=RandomEmbedder())


@pytest.fixture
def large(store: Store, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """A collection with an HNSW index, in a world where a scan pays off below 100 eligible chunks only."""
    monkeypatch.setattr("cayu_pg.sql.channels.exact_below", lambda chunks, candidates: 100)
    collection = store.collection("large")
    collection.ingest(documents())
    collection.reindex(min_chunks=1000)
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("ANALYZE"))
    return collection


def distances(result: Any) -> list[float]:
    return [hit.matches[0].raw_score for hit in result.hits]


def search(collection: Collection, **options: Any) -> Any:
    return collection.search("Passage number 77.", channels="vector", **options)


def path(result: Any) -> str:
    return str(result.diagnostics.channels["vector"].path)


def test_without_filter_the_index_answers_and_order_is_right(large: Collection) -> None:
    near, exact = search(large, candidates=50), search(large, candidates=50, exact=True)
    assert (path(near), path(exact)) == ("approximate", "exact")
    assert distances(near) == sorted(distances(near))
    found = {hit.record_id for hit in near.hits} & {hit.record_id for hit in exact.hits}
    assert len(found) >= 9
    assert near.hits[0].record_id == exact.hits[0].record_id == "p77"


def test_few_eligible_chunks_are_scanned_and_all_come_back(large: Collection) -> None:
    result = search(large, where={"rare": True}, candidates=40)
    channel = result.diagnostics.channels["vector"]
    assert (channel.path, channel.eligible, channel.returned) == ("exact", 3, 3)
    assert channel.reason == "only 3 chunks are eligible"


def test_many_eligible_chunks_come_through_the_index_by_iterative_scan(large: Collection) -> None:
    result = search(large, where={"third": 1}, candidates=100, limit=100)
    assert path(result) == "approximate+iterative"
    assert len(result.hits) == 100
    assert {hit.metadata["third"] for hit in result.hits} == {1}


def test_an_index_that_comes_back_short_is_followed_by_an_exact_scan(
    large: Collection, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayu_pg.sql.channels.exact_below", lambda chunks, candidates: 0)
    result = search(large, where={"number": {"lt": 60}}, candidates=60, limit=60)
    assert path(result) in ("approximate+exact", "approximate+iterative")
    assert sorted(hit.metadata["number"] for hit in result.hits) == list(range(60))
    short = search(large, where={"rare": True}, candidates=60)
    assert path(short) == "approximate+exact"
    assert len(short.hits) == 3
    assert "the index returned" in short.diagnostics.channels["vector"].reason


def test_more_than_a_thousand_candidates_come_back(large: Collection) -> None:
    result = search(large, candidates=1500, limit=1500)
    assert len(result.hits) == 1500
    assert distances(result) == sorted(distances(result))


def test_results_are_equal_on_twenty_repeats(large: Collection) -> None:
    first = search(large, where={"third": 2}, candidates=80).fusion.model_dump_json()
    assert all(
        search(large, where={"third": 2}, candidates=80).fusion.model_dump_json() == first for _ in range(20)
    )


def test_a_filtered_search_is_two_query_statements_too(large: Collection, engine: sa.Engine) -> None:
    for where in ({"rare": True}, {"third": 1}):
        search(large, where=where)
        with statements_of(engine) as sent:
            search(large, where=where)
        assert [each.split()[0] for each in sent] == ["SET", "WITH", "SELECT"]


def test_per_record_gives_k_distinct_records_through_the_index(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = store.collection("long")
    paragraphs = [[f"Record {record} paragraph {place}." for place in range(40)] for record in range(60)]
    collection.ingest(
        [Document("\n\n".join(each), id=f"r{place}") for place, each in enumerate(paragraphs)],
        chunk_size=30,
        chunk_overlap=0,
    )
    collection.reindex(min_chunks=1000)
    result = collection.search(
        "Record 7 paragraph 3.", channels="vector", per_record=True, candidates=50, limit=50
    )
    assert len({hit.record_id for hit in result.hits}) == 50
    exact = collection.search(
        "Record 7 paragraph 3.", channels="vector", per_record=True, candidates=50, limit=50, exact=True
    )
    assert result.hits[0].record_id == exact.hits[0].record_id


@pytest.mark.parametrize("distance", ["cosine", "inner_product", "l2"])
def test_every_distance_orders_as_numpy_does(store: Store, distance: Any) -> None:
    collection = store.collection(distance, distance=distance)
    collection.ingest(documents(200))
    embedder = RandomEmbedder()
    asked = embedder.encode_query("Passage number 77.")
    vectors = embedder.encode_documents([each.text for each in documents(200)])
    by_distance = {
        "cosine": 1 - vectors @ asked,
        "inner_product": -(vectors @ asked),
        "l2": np.linalg.norm(vectors - asked, axis=1),
    }[distance]
    result = search(collection, limit=20)
    expected = [f"p{number}" for number in np.argsort(by_distance, kind="stable")[:20]]
    assert [hit.record_id for hit in result.hits] == expected
    assert distances(result) == pytest.approx(np.sort(by_distance)[:20], abs=1e-6)
    collection.reindex(min_chunks=100)
    assert path(search(collection)) == "approximate"
    assert search(collection).hits[0].record_id == "p77"


def test_a_binary_space_is_scored_again_by_full_vectors(engine: sa.Engine) -> None:
    collection = Store(engine, embedder=RandomEmbedder(256)).collection("bits", quantization="binary")
    collection.ingest(documents(1500))
    assert any(name.startswith("hnsw") for name in collection.reindex(min_chunks=1000))
    [(definition,)] = rows(engine, "SELECT definition FROM cayu.index_health WHERE index_name LIKE 'hnsw%'")
    assert "bit_hamming_ops" in str(definition)
    near, exact = search(collection, candidates=100), search(collection, candidates=100, exact=True)
    assert path(near) == "approximate"
    assert near.hits[0] == exact.hits[0]
    assert len({h.record_id for h in near.hits} & {h.record_id for h in exact.hits}) >= 6


def test_a_condition_on_the_documented_columns_is_a_filter(large: Collection) -> None:
    k = large.chunks
    result = search(large, where=k.c.record_id.in_(["p5", "p6"]) & (k.c.metadata["third"].as_integer() == 0))
    assert [hit.record_id for hit in result.hits] == ["p6"]


def test_a_filter_counts_in_both_channels(large: Collection) -> None:
    result = large.search("Passage number 6", where={"third": 0}, limit=50)
    assert {hit.metadata["third"] for hit in result.hits} == {0}
    assert {match.channel for hit in result.hits for match in hit.matches} == {"vector", "text"}


def test_a_bad_filter_is_refused_before_any_sql(large: Collection, engine: sa.Engine) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidFilter, match="contains"):
        search(large, where={"third": {"like": 1}})
    assert sent == []


def test_pages_neither_repeat_nor_skip(large: Collection) -> None:
    seen: list[str] = []
    token = None
    while True:
        page = large.search("Passage number 77.", limit=7, continuation=token)
        seen += [hit.record_id for hit in page.hits]
        token = page.continuation
        if token is None:
            break
    whole = large.search("Passage number 77.", limit=50)
    assert seen == [hit.record_id for hit in whole.hits]
    assert len(set(seen)) == len(seen) == 50


def test_a_token_of_changed_data_or_of_another_search_is_refused(large: Collection) -> None:
    first = large.search("Passage number 77.", limit=7)
    for change in ({"query": "another"}, {"limit": 8}, {"exact": True}, {"where": {"third": 1}}):
        with pytest.raises(InvalidInput) as raised:
            large.search(
                **{"query": "Passage number 77.", "limit": 7, **change}, continuation=first.continuation
            )
        assert raised.value.field == "continuation"
    for nonsense in ("", "abc", "!!!", "bnVsbA", 5):
        with pytest.raises(InvalidInput):
            large.search("Passage number 77.", limit=7, continuation=nonsense)  # type: ignore[arg-type]
    large.ingest(Document("Something new.", id="new"))
    with pytest.raises(StaleContinuation):
        large.search("Passage number 77.", limit=7, continuation=first.continuation)


def test_several_collections_are_searched_as_one(store: Store) -> None:
    store.collection("handbook").ingest(
        [Document("Keys are rotated often.", id="same"), Document("Tea.", id="t")]
    )
    store.collection("tick/ets").ingest([Document("Please rotate my keys.", id="same")])
    result = store.search(["handbook", "tick/ets"], "rotate keys", limit=3)
    names = ["vector:handbook", "text:handbook", "vector:tick/ets", "text:tick/ets"]
    assert sorted(result.diagnostics.channels) == sorted(names)
    assert {hit.identity.record_id for hit in result.hits} == {
        "handbook/same#0",
        "tick%2Fets/same#0",
        "handbook/t#0",
    }
    texts = {(hit.collection, hit.record_id): hit.text for hit in result.hits}
    assert texts["tick/ets", "same"] == "Please rotate my keys."
    with pytest.raises(InvalidInput):
        store.search([], "rotate")
    with pytest.raises(InvalidInput):
        store.search("handbook", "rotate")
    with pytest.raises(InvalidInput, match="options"):
        store.search(["handbook"], "rotate", colour="red")  # type: ignore[call-arg]


def test_half_of_the_vectors_equal_still_gives_a_total_order(engine: sa.Engine) -> None:
    class Same(CountingEmbedder):
        def encode_documents(self, texts: Any) -> Any:
            return np.ones((len(texts), self.dimensions), dtype=np.float32)

    collection = Store(engine, embedder=Same()).collection("ties")
    collection.ingest([Document(f"Text {number}.", id=f"{number:02}") for number in range(30)])
    result = collection.search("Text", channels="vector", limit=10)
    assert [hit.record_id for hit in result.hits] == [f"{number:02}" for number in range(10)]


def test_the_operators_are_those_of_pgvector() -> None:
    assert vector_channel.OPERATORS == {"cosine": "<=>", "inner_product": "<#>", "l2": "<->"}


def test_recall_is_measured_on_the_users_own_vectors(large: Collection) -> None:
    report = large.measure_recall(sample=10)
    assert report.sample == 10
    assert list(report.recall) == [40, 100, 200, 400, 800]
    assert report.recall[800] >= report.recall[40] - 0.05
    assert report.recommended is None or report.recall[report.recommended] >= 0.99
    assert large.measure_recall(sample=5, where={"third": 1}).recall[400] > 0.5


def test_recall_without_an_index_is_refused(store: Store) -> None:
    collection = store.collection("small")
    collection.ingest("A text.")
    with pytest.raises(InvalidInput, match="reindex"):
        collection.measure_recall()


def test_a_large_collection_without_indexes_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cayu_pg.sql.indexes", "cayu_pg.ranked_rows"):
        monkeypatch.setattr(f"{module}.MIN_CHUNKS", 100)
    collection = store.collection("large")
    report = collection.ingest(documents(150))
    assert len(report.advice) == 2
    assert all("cayu-pg reindex -c large" in each for each in report.advice)
    channels = collection.search("Passage number 7.").diagnostics.channels
    assert all("reindex()" in str(each.reason) for each in channels.values())
    collection.reindex(min_chunks=100)
    assert collection.ingest(documents(151)).advice == []
    assert all(each.reason is None for each in collection.search("number 7").diagnostics.channels.values())
