"""Features of a collection: what they may be, what they are worth for a hit, and how they move a ranking."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cayu_pg.async_store import AsyncStore
from cayu_pg.cli import main
from cayu_pg.collection import Collection
from cayu_pg.errors import Conflict, InvalidInput, NotFound, StaleContinuation
from cayu_pg.features import Measure, NumericField, Recency, Signals, parse_features, stored_features
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.query import SearchResult
from cayu_pg.records import Document
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, scalar, statements_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STARS = NumericField(field="stars", lowest=0, highest=5)


@pytest.fixture
def collection(engine: sa.Engine) -> Collection:
    return Store(engine, embedder=CountingEmbedder()).collection("notes")


def recency(age: Any, **settings: Any) -> float:
    feature = Recency(half_life=timedelta(days=10), field="date", **settings)
    return feature.value(Signals(None, {"date": age}), NOW)


def stars(number: Any, **settings: Any) -> float:
    feature = NumericField(field="stars", **{"lowest": 0, "highest": 5, **settings})
    return feature.value(Signals(None, {"stars": number}), NOW)


def fusion(channels: tuple[str, ...] = ("vector", "text"), **weights: float) -> Any:
    return WeightedReciprocalRankFusionConfig(
        configuration_version="weighed",
        channel_weights=dict.fromkeys(channels, 1.0),
        feature_weights=weights,
    )


def rated(**ratings: Any) -> list[Document]:
    """Documents with the same words and so many stars each."""
    return [
        Document(f"The garden of {name}.", id=name, metadata={"stars": number})
        for name, number in ratings.items()
    ]


def by_record(result: SearchResult) -> dict[str, dict[str, float]]:
    return {hit.record_id: dict(hit.features) for hit in result.hits}


# --- values


def test_recency_halves_with_every_half_life() -> None:
    assert recency("2026-01-01T00:00:00Z") == 1.0
    assert recency("2025-12-22T00:00:00+00:00") == 0.5
    assert recency("2025-12-12") == 0.25
    assert recency("0001-01-01") == 0.0


def test_a_time_without_a_zone_is_utc_and_one_to_come_is_now() -> None:
    assert recency("2025-12-22T00:00:00") == recency("2025-12-22T02:00:00+02:00") == 0.5
    assert recency("2026-06-01") == 1.0


@pytest.mark.parametrize("told", [None, True, 1_735_689_600, "", "yesterday", "2025", "2025-13-01", [], {}])
def test_metadata_that_say_no_time_have_the_value_for_missing(told: object) -> None:
    assert recency(told) == 0.0
    assert recency(told, missing=0.3) == 0.3


def test_recency_without_a_field_is_that_of_the_last_change() -> None:
    feature = Recency(half_life=30)
    assert feature.half_life == timedelta(days=30)
    assert feature.value(Signals(NOW - timedelta(days=30), {}), NOW) == 0.5


def test_a_number_is_scaled_between_the_bounds_and_held_there() -> None:
    assert [stars(n) for n in (-1, 0, 1.25, 5, 9, 10**400)] == [0.0, 0.0, 0.25, 1.0, 1.0, 1.0]
    assert stars(3, lowest=-1, highest=3) == 1.0


def test_a_logarithmic_scale_tells_orders_of_magnitude_apart() -> None:
    values = [stars(n, highest=999, scale="logarithmic") for n in (0, 9, 99, 999)]
    assert values == pytest.approx([0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize("told", [None, True, "4", [4], {"stars": 4}])
def test_metadata_that_hold_no_number_have_the_value_for_missing(told: object) -> None:
    assert stars(told) == 0.0
    assert stars(told, missing=0.5) == 0.5


@given(
    st.floats(-1e150, 1e150),
    st.floats(1e-300, 1e150),
    st.integers() | st.floats(allow_nan=False),
    st.sampled_from(["linear", "logarithmic"]),
)
def test_every_number_gives_a_value_that_fusion_takes(
    lowest: float, span: float, number: float, scale: Any
) -> None:
    if lowest + span > lowest:
        feature = NumericField(field="n", lowest=lowest, highest=lowest + span, scale=scale)
        assert 0.0 <= Measure({"n": feature}, NOW).values(Signals(None, {"n": number}))["n"] <= 1.0


@given(st.datetimes(), st.timedeltas(timedelta(microseconds=1), timedelta(days=365_000)))
def test_every_time_gives_a_value_that_fusion_takes(told: datetime, half_life: timedelta) -> None:
    feature = Recency(half_life=half_life, field="t")
    assert 0.0 <= feature.value(Signals(None, {"t": told.isoformat()}), NOW) <= 1.0


# --- declarations


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), 1e9, True, None, "soon"])
def test_a_half_life_that_is_none_is_refused(days: object) -> None:
    with pytest.raises(ValidationError):
        Recency(half_life=days)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lowest", "highest"), [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf")), (-1e308, 1e308), ("0", 1)]
)
def test_bounds_that_are_no_range_are_refused(lowest: Any, highest: Any) -> None:
    with pytest.raises(ValidationError):
        NumericField(field="n", lowest=lowest, highest=highest)


@pytest.mark.parametrize("missing", [-0.1, 1.1, float("nan")])
def test_a_value_for_missing_that_fusion_would_refuse_is_refused(missing: float) -> None:
    with pytest.raises(ValidationError):
        Recency(half_life=1, missing=missing)


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=365_000)), st.floats(0, 1))
def test_features_are_read_back_as_they_were_stored(half_life: timedelta, missing: float) -> None:
    features = {"recency": Recency(half_life=half_life, missing=missing), "stars": STARS}
    assert parse_features(stored_features(features), "notes") == features


def test_declared_features_are_kept_and_replaced_as_a_whole(collection: Collection) -> None:
    assert collection.features() == {}
    collection.declare_features({"stars": STARS, "recency": Recency(half_life=7)})
    assert collection.features() == {"stars": STARS, "recency": Recency(half_life=7)}
    collection.declare_features({"stars": STARS})
    assert collection.features() == {"stars": STARS}
    collection.declare_features({})
    assert collection.features() == {}


@pytest.mark.parametrize(
    "features", [None, [STARS], {"stars": 5}, {"stars": {"kind": "number"}}, {" stars": STARS}, {1: STARS}]
)
def test_what_is_no_declaration_is_refused_before_any_statement(
    collection: Collection, engine: sa.Engine, features: Any
) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput):
        collection.declare_features(features)
    assert sent == []


def test_more_features_than_a_hit_can_carry_are_refused(collection: Collection) -> None:
    with pytest.raises(InvalidInput, match="at most 32, found 33"):
        collection.declare_features({f"f{number}": STARS for number in range(33)})


def test_features_of_a_dropped_collection_are_not_declared(collection: Collection, engine: sa.Engine) -> None:
    Store(engine).drop_collection("notes")
    with pytest.raises(NotFound):
        collection.declare_features({"stars": STARS})


def test_features_changed_by_hand_are_a_conflict_until_they_are_declared_again(
    collection: Collection, engine: sa.Engine
) -> None:
    collection.ingest(rated(ann=1))
    with engine.begin() as connection:
        connection.execute(
            sa.text("""UPDATE cayu.collections SET features = '{"stars": {"kind": "moon"}}'""")
        )
    for ask in (lambda: collection.search("garden"), collection.features):
        with pytest.raises(Conflict, match="declare them again"):
            ask()
    collection.declare_features({"stars": STARS})
    assert by_record(collection.search("garden")) == {"ann": {"stars": 0.2}}


# --- searches


def test_hits_carry_the_features_and_the_explanation_shows_them(collection: Collection) -> None:
    collection.ingest([*rated(ann=1, bob=4.5), Document("The garden.", id="cid")])
    collection.declare_features({"stars": STARS})
    result = collection.search("garden")
    assert by_record(result) == {"ann": {"stars": 0.2}, "bob": {"stars": 0.9}, "cid": {"stars": 0.0}}
    assert {c.feature_adjustment for c in result.fusion.candidates} == {0.0}
    assert "features: stars 0.9000" in result.explain()
    assert f"features measured at {result.diagnostics.now and result.diagnostics.now.isoformat()}" in (
        result.explain()
    )


def test_a_feature_weight_moves_the_ranking_by_what_it_says(collection: Collection) -> None:
    collection.ingest(rated(ann=0, bob=1, cid=5, dan=3, eve="many"))
    collection.declare_features({"stars": STARS})
    best = collection.search("garden", fusion=fusion(stars=1.0))
    assert [hit.record_id for hit in best.hits][:3] == ["cid", "dan", "bob"]
    assert [c.feature_adjustment for c in best.fusion.candidates[:3]] == [1.0, 0.6, 0.2]
    worst = collection.search("garden", fusion=fusion(stars=-1.0))
    assert worst.hits[-1].record_id == "cid"


def test_a_record_that_changed_is_newer_than_one_that_did_not(
    collection: Collection, engine: sa.Engine
) -> None:
    collection.ingest(rated(ann=1, bob=1, cid=1))
    with engine.begin() as connection:  # as if a year had passed
        connection.execute(sa.text("UPDATE cayu.batches SET recorded_at = recorded_at - interval '365 days'"))
    collection.ingest(Document("The garden of ann.", id="ann", metadata={"stars": 2}))
    collection.declare_features({"recency": Recency(half_life=365)})
    result = collection.search("garden", fusion=fusion(recency=1.0))
    values = by_record(result)
    assert result.hits[0].record_id == "ann"
    assert values["ann"]["recency"] == pytest.approx(1.0, abs=1e-4)
    assert values["bob"]["recency"] == values["cid"]["recency"] == pytest.approx(0.5, abs=1e-4)


def test_recency_follows_from_the_time_that_the_diagnostics_say(collection: Collection) -> None:
    collection.ingest(Document("The garden.", id="ann", metadata={"date": "2025-06-01"}))
    collection.declare_features({"recency": Recency(half_life=1_000, field="date")})
    result = collection.search("garden")
    assert result.diagnostics.now is not None
    days = (result.diagnostics.now - datetime(2025, 6, 1, tzinfo=UTC)) / timedelta(days=1)
    assert result.hits[0].features["recency"] == pytest.approx(0.5 ** (days / 1_000), abs=1e-9)


def test_a_search_with_features_sends_no_further_statement(collection: Collection, engine: sa.Engine) -> None:
    collection.ingest(rated(ann=1, bob=2))
    with statements_of(engine) as plain:
        result = collection.search("garden")
    assert (result.diagnostics.now, by_record(result)) == (None, {"ann": {}, "bob": {}})
    collection.declare_features({"stars": STARS, "recency": Recency(half_life=1)})
    with statements_of(engine) as featured:
        collection.search("garden", fusion=fusion(stars=1.0, recency=0.1))
    assert len(featured) == len(plain) == 3  # the settings, the channels, the texts
    assert "signals" not in plain[1]


def test_records_carry_features_as_chunks_do(collection: Collection) -> None:
    text = "The garden. " * 40
    collection.ingest(
        [Document(text, id=name, metadata={"stars": n}) for name, n in (("ann", 1), ("bob", 5))],
        chunk_size=60,
        chunk_overlap=0,
    )
    collection.declare_features({"stars": STARS})
    result = collection.search("garden", per_record=True, fusion=fusion(stars=1.0))
    assert list(by_record(result).items()) == [("bob", {"stars": 1.0}), ("ann", {"stars": 0.2})]


def test_a_search_of_the_past_sees_the_features_of_that_time(collection: Collection) -> None:
    collection.declare_features({"stars": STARS, "recency": Recency(half_life=1)})
    collection.ingest(rated(ann=1))
    collection.ingest(rated(ann=4, bob=5))
    collection.delete("bob")
    history = collection.history("ann")
    then = collection.search("garden", as_of=history[0].sequence)
    assert by_record(then) == {"ann": {"stars": 0.2, "recency": 1.0}}
    assert then.diagnostics.now == history[0].recorded_at
    assert collection.search("garden", as_of=1).fusion == then.fusion
    assert by_record(collection.search("garden", as_of=2))["bob"]["stars"] == 1.0
    assert collection.search("garden", as_of=0).diagnostics.now is None


def test_collections_searched_as_one_each_bring_their_own_features(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    first, second, third = (store.collection(name) for name in ("first", "second", "third"))
    for collection in (first, second, third):
        collection.ingest(rated(ann=5))
    first.declare_features({"stars": STARS, "recency": Recency(half_life=1)})
    second.declare_features({"stars": NumericField(field="stars", lowest=0, highest=10)})
    channels = tuple(f"{kind}:{name}" for kind in ("vector", "text") for name in ("first", "second", "third"))
    result = store.search(["first", "second", "third"], "garden", fusion=fusion(channels, stars=1.0))
    assert [(hit.collection, hit.features.get("stars")) for hit in result.hits] == [
        ("first", 1.0),
        ("second", 0.5),
        ("third", None),
    ]


def test_pages_measure_recency_at_the_same_moment(collection: Collection) -> None:
    collection.ingest(rated(**{f"r{number}": 1 for number in range(6)}))
    collection.declare_features({"recency": Recency(half_life=timedelta(milliseconds=5))})
    whole = fusion(recency=0.01)
    first = collection.search("garden", limit=3, fusion=whole)
    second = collection.search("garden", limit=3, fusion=whole, continuation=first.continuation)
    assert second.diagnostics.now == first.diagnostics.now
    assert second.fusion == first.fusion
    assert {hit.record_id for hit in (*first.hits, *second.hits)} == {f"r{n}" for n in range(6)}


def test_a_page_does_not_go_on_with_other_features(collection: Collection) -> None:
    collection.ingest(rated(ann=1, bob=2))
    collection.declare_features({"stars": STARS})
    first = collection.search("garden", limit=1)
    collection.declare_features({"stars": NumericField(field="stars", lowest=0, highest=2)})
    with pytest.raises(StaleContinuation):
        collection.search("garden", limit=1, continuation=first.continuation)


def test_a_reranker_orders_what_the_features_brought(collection: Collection) -> None:
    class ByLength:
        model = "length"

        def score(self, query: str, documents: Any) -> list[float]:
            return [float(len(text)) for text in documents]

    collection.ingest(rated(ann=5, barbara=0))
    collection.declare_features({"stars": STARS})
    result = collection.search("garden", rerank=ByLength(), fusion=fusion(stars=1.0))
    assert [(hit.record_id, hit.fused_rank, hit.features["stars"]) for hit in result.hits] == [
        ("barbara", 2, 0.0),
        ("ann", 1, 1.0),
    ]


def test_features_reach_hits_of_the_approximate_index_and_of_corrected_words(collection: Collection) -> None:
    collection.ingest(rated(**{f"name{number}": number % 6 for number in range(60)}))
    collection.refresh_statistics()
    collection.reindex(min_chunks=10)
    collection.declare_features({"stars": STARS})
    result = collection.search("gardn", fuzzy=True, candidates=20)
    assert result.diagnostics.channels["vector"].path == "approximate"
    assert result.diagnostics.channels["text"].corrections == {"gardn": "garden"}
    assert all(hit.features["stars"] == (int(hit.record_id[4:]) % 6) / 5 for hit in result.hits)


def test_features_declared_elsewhere_count_at_once(engine: sa.Engine) -> None:
    mine = Store(engine, embedder=CountingEmbedder()).collection("notes")
    theirs = Store(engine, embedder=CountingEmbedder()).collection("notes")
    mine.ingest(rated(ann=1))
    assert by_record(mine.search("garden")) == {"ann": {}}
    theirs.declare_features({"stars": STARS})
    assert by_record(mine.search("garden")) == {"ann": {"stars": 0.2}}
    theirs.declare_features({"rating": STARS})
    theirs.save_fusion("rated", fusion(rating=1.0))
    assert by_record(mine.search("garden", fusion="rated")) == {"ann": {"rating": 0.2}}
    theirs.declare_features({})
    assert by_record(mine.search("garden")) == {"ann": {}}


def test_a_caller_rolls_a_declaration_back(engine: sa.Engine) -> None:
    store = Store(engine, embedder=CountingEmbedder())
    store.collection("notes").ingest(rated(ann=1))
    with engine.connect() as connection:
        inside = store.using(connection).collection("notes")
        inside.declare_features({"stars": STARS})
        assert by_record(inside.search("garden")) == {"ann": {"stars": 0.2}}
        connection.rollback()
    assert store.collection("notes").features() == {}
    assert scalar(engine, "SELECT features::text FROM cayu.collections") == "{}"


def test_a_weight_for_a_feature_that_is_not_declared_is_refused(collection: Collection) -> None:
    collection.ingest(rated(ann=1))
    with pytest.raises(InvalidInput, match=r"\(there are none\), found feature_weights for stars"):
        collection.search("garden", fusion=fusion(stars=1.0))
    collection.declare_features({"recency": Recency(half_life=1)})
    collection.save_fusion("rated", fusion(stars=1.0, recency=1.0))
    with pytest.raises(InvalidInput, match=r"\(recency\), found feature_weights for stars"):
        collection.search("garden", fusion="rated")


def test_tuning_finds_the_weight_of_a_feature_that_tells_what_is_right(collection: Collection) -> None:
    subjects = [f"subject{number}" for number in range(40)]
    collection.ingest(
        Document(f"The {subject} says {copy}.", id=f"{subject}-{copy}", metadata={"stars": copy})
        for subject in subjects
        for copy in range(6)
    )
    collection.declare_features({"stars": STARS})
    qrels = {subject: {f"{subject}-5": 1} for subject in subjects}
    report = collection.tune({subject: subject for subject in subjects}, qrels, name="tuned")
    assert report.gain
    assert report.config.feature_weights["stars"] > 0
    assert report.held_out.tuned > report.held_out.equal
    assert f"stars {report.config.feature_weights['stars']:g}" in str(report)
    result = collection.search("subject7", fusion="tuned")
    assert result.hits[0].record_id == "subject7-5"
    assert result.fusion.diagnostics.configuration_sha256 == report.fingerprint


def test_a_list_of_collections_names_their_features(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(database_url, embedder=CountingEmbedder()) as store:
        store.collection("notes").declare_features({"stars": STARS, "recency": Recency(half_life=1)})
        assert [list(each.features) for each in store.collections()] == [["stars", "recency"]]
    assert main(["collections", "--url", database_url]) == 0
    assert "stars, recency" in capsys.readouterr().out


def test_the_async_door_declares_features_too(database_url: str) -> None:
    async def work() -> SearchResult:
        async with AsyncStore(database_url, embedder=CountingEmbedder()) as store:
            collection = await store.collection("notes")
            await collection.ingest(rated(ann=1))
            await collection.declare_features({"stars": STARS})
            assert await collection.features() == {"stars": STARS}
            return await collection.search("garden")

    assert by_record(asyncio.run(work())) == {"ann": {"stars": 0.2}}
