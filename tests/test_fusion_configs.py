"""Fusion configurations have names: a search by name uses them, here, later, and in another process."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg.async_store import AsyncStore
from cayu_pg.collection import Collection
from cayu_pg.errors import Conflict, InvalidInput, NotFound
from cayu_pg.evaluating import JudgedQuery
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.records import Document
from cayu_pg.store import Store
from tests.stores import statements_of

ROOT = Path(__file__).parent.parent
WORDS = ["moon", "cat", "river", "stone", "cloud", "engine", "garden", "letter", "window", "bridge"]
DOCUMENTS = [
    Document(f"The {one} and the {other} of {one}.", id=f"{one}-{other}", metadata={"first": one})
    for one in WORDS
    for other in WORDS
    if one != other
]
# The words name the documents; the vectors know nothing of that.
QUERIES = {f"{one}-{other}": f"{one} {one} {other}" for one in WORDS for other in WORDS if one < other}
QRELS = {query: {query: 2} for query in QUERIES}
TEXT_ONLY = WeightedReciprocalRankFusionConfig(
    configuration_version="words", channel_weights={"text": 0.7}, rrf_k=10.0, fused_head_limit=100
)


class ChanceEmbedder:
    """Vectors by a hash of the whole text, so that no two texts have anything in common."""

    model, dimensions = "chance", 16

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.encode_query(text) for text in texts])

    def encode_query(self, text: str) -> NDArray[np.float32]:
        digest = hashlib.sha512(text.encode()).digest()[: 4 * self.dimensions]
        return (np.frombuffer(digest, dtype="<i4") / 2**31).astype(np.float32)


@pytest.fixture
def store(engine: sa.Engine) -> Iterator[Store]:
    with Store(engine, embedder=ChanceEmbedder()) as opened:
        yield opened


@pytest.fixture
def collection(store: Store) -> Collection:
    found = store.collection("notes")
    found.ingest(DOCUMENTS)
    return found


def test_a_saved_configuration_is_searched_with_by_name(collection: Collection) -> None:
    fingerprint = collection.save_fusion("words", TEXT_ONLY)
    found = collection.search("moon cat", fusion="words")
    assert found.fusion.diagnostics.configuration_sha256 == fingerprint == TEXT_ONLY.fingerprint()
    assert set(found.diagnostics.channels) == {"text"}
    assert found.fusion == collection.search("moon cat", channels=("text",), fusion=TEXT_ONLY).fusion


@pytest.mark.parametrize("k", [1e-300, 0.1 + 0.2, 1e18, 3.0, 60.0])
def test_numbers_come_back_as_they_were(collection: Collection, store: Store, k: float) -> None:
    config = WeightedReciprocalRankFusionConfig(
        configuration_version="1",
        channel_weights={"vector": 1 / 3, "text": 1e-17},
        rrf_k=k,
        feature_weights={"fresh": -0.1},
    )
    collection.save_fusion("odd", config)
    loaded = store.collection("notes").fusion("odd")
    assert loaded == config
    assert loaded.fingerprint() == config.fingerprint()


def test_a_name_is_read_once_for_each_collection_object(collection: Collection, engine: sa.Engine) -> None:
    collection.save_fusion("words", TEXT_ONLY)
    with statements_of(engine) as sent:
        for _ in range(3):
            collection.search("moon", fusion="words")
    assert len([each for each in sent if "fusion_configs" in each]) == 1


def test_saving_again_replaces(collection: Collection, store: Store) -> None:
    collection.save_fusion("best", TEXT_ONLY)
    collection.search("moon", fusion="best")
    other = TEXT_ONLY.model_copy(update={"channel_weights": {"text": 1.0, "vector": 0.5}})
    collection.save_fusion("best", other)
    assert collection.fusion("best") == store.collection("notes").fusion("best") == other


def test_names_belong_to_one_collection_and_tenant(collection: Collection, store: Store) -> None:
    collection.save_fusion("words", TEXT_ONLY)
    for other in (store.collection("others"), store.for_tenant("b").collection("notes")):
        with pytest.raises(NotFound, match="no fusion configuration named 'words'"):
            other.fusion("words")
    with pytest.raises(
        InvalidInput, match="fusion: expected a WeightedReciprocalRankFusionConfig, found str"
    ):
        store.search(["notes"], "moon", fusion="words")  # type: ignore[arg-type]  # the mistake is the point


def test_an_unknown_name_is_not_found(collection: Collection) -> None:
    with pytest.raises(NotFound) as raised:
        collection.search("moon", fusion="nobody")
    assert (raised.value.kind, raised.value.name) == ("fusion configuration", "nobody")


def test_other_mistakes_are_found_before_anything_is_read(collection: Collection, engine: sa.Engine) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput, match="limit"):
        collection.search("moon", fusion="words", limit=0)
    assert sent == []


def test_a_configuration_smaller_than_the_search_raises(collection: Collection) -> None:
    collection.save_fusion("words", TEXT_ONLY)
    with pytest.raises(InvalidInput, match="fused_head_limit of at least limit 101"):
        collection.search("moon", fusion="words", limit=101)


def test_chosen_channels_must_be_those_that_are_weighed(collection: Collection) -> None:
    collection.save_fusion("words", TEXT_ONLY)
    assert collection.search("moon", fusion="words", channels="text").hits
    with pytest.raises(InvalidInput, match="weights for exactly vector"):
        collection.search("moon", fusion="words", channels="vector")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("jsonb_set(config, '{rrf_k}', '61')", "changed after it was saved: expected fingerprint"),
        ("config - 'channel_weights'", "holds none; save it again"),
    ],
)
def test_a_row_changed_by_hand_is_refused(
    collection: Collection, engine: sa.Engine, change: str, complaint: str
) -> None:
    collection.save_fusion("words", TEXT_ONLY)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE cayu.fusion_configs SET config = {change}"))
    with pytest.raises(Conflict, match=complaint):
        collection.search("moon", fusion="words")


def test_what_a_caller_rolls_back_was_never_saved(store: Store, engine: sa.Engine) -> None:
    store.collection("notes").ingest(DOCUMENTS)
    with engine.connect() as connection:
        store.using(connection).collection("notes").save_fusion("words", TEXT_ONLY)
        connection.rollback()
    with pytest.raises(NotFound):
        store.collection("notes").fusion("words")


def test_tuning_leaves_out_vectors_that_know_nothing_and_saves_that(collection: Collection) -> None:
    report = collection.tune(QUERIES, QRELS, name="tuned")
    assert report.gain
    assert report.name == "tuned"
    assert report.config.channel_weights["text"] > 0.5
    assert report.held_out.tuned > report.held_out.equal
    found = collection.search("moon cat", fusion="tuned")
    assert found.fusion.diagnostics.configuration_sha256 == report.fingerprint


def test_tuning_without_a_name_saves_nothing(collection: Collection, engine: sa.Engine) -> None:
    assert collection.tune(QUERIES, QRELS).name is None
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM cayu.fusion_configs")) == 0


def test_without_a_gain_equal_weights_are_saved(collection: Collection) -> None:
    records = [each.record_id for each in DOCUMENTS]
    qrels = {query: {records[place * 37 % len(records)]: 1} for place, query in enumerate(QUERIES)}
    report = collection.tune(QUERIES, qrels, name="tuned")
    assert not report.gain
    assert collection.fusion("tuned").channel_weights == {"text": 1.0, "vector": 1.0}
    ranked, equal = (collection.search("moon cat", fusion=fusion).hits for fusion in ("tuned", None))
    assert [each.identity for each in ranked] == [each.identity for each in equal]


SEARCH = """
import sys
from cayu_pg import Store
from tests.test_fusion_configs import ChanceEmbedder
with Store(sys.argv[1], embedder=ChanceEmbedder()) as store:
    found = store.collection("notes", create=False).search("moon river", fusion="tuned", limit=20)
    sys.stdout.write(found.fusion.model_dump_json())
"""


def test_a_tuned_configuration_gives_the_same_bytes_in_another_process(
    collection: Collection, database_url: str
) -> None:
    collection.tune(QUERIES, QRELS, name="tuned")
    here = collection.search("moon river", fusion="tuned", limit=20).fusion.model_dump_json()
    command = [sys.executable, "-c", SEARCH, database_url]
    there = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert there.stdout == here.encode()


def test_evaluation_measures_channels_equal_weights_and_named_fusions(collection: Collection) -> None:
    collection.save_fusion("words", TEXT_ONLY)
    done: list[tuple[int, int]] = []
    report = collection.evaluate(
        QUERIES, QRELS, fusions=["words"], progress=lambda *state: done.append(state)
    )
    assert list(report.measured) == ["vector", "text", "equal", "words"]
    measured = {name: each.evaluation for name, each in report.measured.items()}
    assert measured["words"].ndcg == measured["text"].ndcg > measured["vector"].ndcg
    assert measured["text"].queries.keys() == QUERIES.keys()
    assert report.measured["words"].fingerprint == TEXT_ONLY.fingerprint()
    assert report.measured["equal"].latency.p50 > 0
    gain = report.differences["words"]
    assert gain.mean == pytest.approx(measured["words"].ndcg - measured["equal"].ndcg)
    assert gain.low > 0
    assert done[-1] == (4 * len(QUERIES), 4 * len(QUERIES))


def test_a_query_may_be_narrowed_by_a_filter(collection: Collection) -> None:
    query = JudgedQuery("q", "cat moon", {"first": "moon"})
    report = collection.evaluate([query], {"q": {"moon-cat": 1}, "not asked": {"x": 1}})
    assert report.measured["text"].evaluation.ndcg == 1
    assert list(report.measured["text"].evaluation.queries) == ["q"]


def test_only_the_documents_of_a_ranking_count_not_their_chunks(store: Store) -> None:
    collection = store.collection("long")
    collection.ingest(
        [Document("cat " * 400, id="many"), Document("cat dog", id="one")], chunk_size=100, chunk_overlap=0
    )
    report = collection.evaluate({"q": "cat"}, {"q": {"one": 1, "many": 1}}, k=2)
    assert report.measured["text"].evaluation.ndcg == 1


@pytest.mark.parametrize(
    ("queries", "complaint"),
    [({"other": "x"}, "at least one that qrels judges"), ([JudgedQuery("q", "x")] * 2, "ids of their own")],
)
def test_queries_without_judgements_or_with_one_id_are_refused(
    collection: Collection, queries: dict[str, str], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        collection.evaluate(queries, {"q": {"d": 1}})


def test_bad_names_and_depths_are_refused_before_anything_is_asked(
    collection: Collection, engine: sa.Engine
) -> None:
    for act in (
        lambda: collection.tune(QUERIES, QRELS, name="text"),
        lambda: collection.tune(QUERIES, QRELS, name=" "),
        lambda: collection.evaluate(QUERIES, QRELS, fusions=["equal"]),
        lambda: collection.evaluate(QUERIES, QRELS, k=0),
    ):
        with statements_of(engine) as sent, pytest.raises(InvalidInput):
            act()
        assert sent == []


def test_the_async_door_tunes_and_searches_alike(collection: Collection, database_url: str) -> None:
    async def work() -> tuple[str, str]:
        async with AsyncStore(database_url, embedder=ChanceEmbedder()) as store:
            notes = await store.collection("notes")
            await notes.save_fusion("words", TEXT_ONLY)
            assert await notes.fusion("words") == TEXT_ONLY
            report = await notes.tune(QUERIES, QRELS, name="tuned")
            assert (await notes.evaluate(QUERIES, QRELS, fusions=["tuned"])).differences["tuned"].low > 0
            found = await notes.search("moon river", fusion="tuned")
            return report.model_dump_json(), found.fusion.model_dump_json()

    tuned, found = asyncio.run(work())
    assert tuned == collection.tune(QUERIES, QRELS, name="tuned").model_dump_json()
    assert found == collection.search("moon river", fusion="tuned").fusion.model_dump_json()
