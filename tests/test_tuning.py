"""Tuning finds the weights that judgements speak for, and leaves them equal when chance would explain as much."""

from __future__ import annotations

import random

import pytest

from cayu_pg.errors import InvalidInput
from cayu_pg.evaluation import Qrels, ndcg
from cayu_pg.fused import RetrievalFusionResult
from cayu_pg.fusion import WeightedReciprocalRankFusion, WeightedReciprocalRankFusionConfig
from cayu_pg.ranking import RankedRetrievalChannel, RankedRetrievalHit, RetrievalCandidateIdentity
from cayu_pg.tuning import (
    Recording,
    Setting,
    config_of,
    equal_setting,
    ndcgs,
    record,
    tune_recorded,
)

DOCUMENTS = [f"d{number:02}" for number in range(50)]
EQUAL = WeightedReciprocalRankFusionConfig(
    configuration_version="equal", channel_weights={"text": 1.0, "vector": 1.0}, fused_head_limit=200
)


def channel(
    name: str, ranking: list[str], features: dict[str, float] | None = None
) -> RankedRetrievalChannel:
    """A channel that ranks documents; `features` gives some of them the feature `fresh`."""
    hits = [
        RankedRetrievalHit(
            identity=RetrievalCandidateIdentity(record_type="document", record_id=document, revision="1"),
            rank=rank,
            representation="made",
            content_hash=document,
            features={} if features is None else {"fresh": features.get(document, 0.0)},
        )
        for rank, document in enumerate(ranking, start=1)
    ]
    return RankedRetrievalChannel(channel=name, index_version="1", candidate_limit=100, hits=tuple(hits))


def fused(*channels: RankedRetrievalChannel) -> RetrievalFusionResult:
    return WeightedReciprocalRankFusion().fuse(channels, EQUAL)


def ranking_with(dice: random.Random, wanted: str, place: int) -> list[str]:
    """A random ranking of 30 documents with one of them at a place."""
    others = dice.sample([each for each in DOCUMENTS if each != wanted], 29)
    return [*others[: place - 1], wanted, *others[place - 1 :]]


def two_channels(
    seed: int, text: tuple[int, int], vector: tuple[int, int], queries: int = 60
) -> tuple[Recording, Qrels]:
    """Queries with one relevant document each, which a channel ranks somewhere from its first to its last place."""
    dice = random.Random(seed)
    results, qrels = {}, {}
    for query in map(str, range(queries)):
        wanted = dice.choice(DOCUMENTS)
        results[query] = fused(
            channel("text", ranking_with(dice, wanted, dice.randint(*text))),
            channel("vector", ranking_with(dice, wanted, dice.randint(*vector))),
        )
        qrels[query] = {wanted: 1}
    return record(results), qrels


def random_judgements(seed: int, queries: int = 100) -> tuple[Recording, Qrels]:
    dice = random.Random(seed)
    results, qrels = {}, {}
    for query in map(str, range(queries)):
        text, vector = (channel(name, dice.sample(DOCUMENTS, 30)) for name in ("text", "vector"))
        results[query] = fused(text, vector)
        qrels[query] = {each: dice.randint(1, 3) for each in dice.sample(DOCUMENTS, 4)}
    return record(results), qrels


def test_a_poor_channel_is_left_out() -> None:
    report = tune_recorded(*two_channels(1, text=(1, 2), vector=(25, 30)))
    assert report.gain
    assert report.config == report.tuned
    assert report.config.channel_weights["text"] > 0.8
    assert report.held_out.tuned > report.held_out.equal
    assert "held-out queries" in str(report)


def test_a_useless_channel_gets_no_weight_at_all() -> None:
    recording, _ = two_channels(1, text=(1, 2), vector=(25, 30))
    config = config_of(recording, Setting((1.0, 0.0), 10.0, ()), "tuned", 100)
    assert config.channel_weights == {"text": 1.0}


def test_equally_good_channels_stay_equal() -> None:
    report = tune_recorded(*two_channels(2, text=(1, 10), vector=(1, 10)))
    assert not report.gain
    assert report.config.channel_weights == {"text": 1.0, "vector": 1.0}
    assert report.config.rrf_k == 60
    assert str(report).startswith("no gain, equal weights stay")


def test_random_judgements_are_no_gain() -> None:
    reports = [tune_recorded(*random_judgements(seed)) for seed in range(20)]
    assert sum(not report.gain for report in reports) >= 19
    # It was tempting: on the training queries something always looks better.
    assert all(report.training.tuned >= report.training.equal for report in reports)
    assert any(report.training.tuned > report.training.equal + 0.01 for report in reports)


def test_a_feature_that_marks_the_relevant_gets_weight() -> None:
    dice = random.Random(3)
    results, qrels = {}, {}
    for query in map(str, range(60)):
        wanted = dice.choice(DOCUMENTS)
        features = {wanted: 1.0}
        rankings = [ranking_with(dice, wanted, dice.randint(1, 20)) for _ in range(2)]
        results[query] = fused(
            channel("text", rankings[0], features), channel("vector", rankings[1], features)
        )
        qrels[query] = {wanted: 1}
    report = tune_recorded(record(results), qrels)
    assert report.gain
    assert report.config.feature_weights["fresh"] > 0
    assert report.held_out.tuned == pytest.approx(1)


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.3, 0.7), (0.9, 0.1), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("rrf_k", [10.0, 60.0])
def test_settings_are_measured_as_the_fusion_would_rank(weights: tuple[float, float], rrf_k: float) -> None:
    dice = random.Random(4)
    for _ in range(20):
        features = {each: dice.choice([0.0, 0.25, 1.0]) for each in DOCUMENTS}
        channels = [channel(name, dice.sample(DOCUMENTS, 30), features) for name in ("text", "vector")]
        recording = record({"q": fused(*channels)})
        setting = Setting(weights, rrf_k, (0.01,))
        config = config_of(recording, setting, "tried", 100)
        result = WeightedReciprocalRankFusion().fuse(
            [each for each in channels if each.channel in config.channel_weights], config
        )
        grades = {each: dice.randint(-1, 3) for each in dice.sample(DOCUMENTS, 15)}
        expected = ndcg([each.identity.record_id for each in result.candidates], grades)
        assert ndcgs(recording.queries["q"], grades, [setting])[0] == pytest.approx(expected, abs=1e-12)


def test_three_channels_can_be_tuned() -> None:
    dice = random.Random(5)
    results, qrels = {}, {}
    for query in map(str, range(40)):
        wanted = dice.choice(DOCUMENTS)
        places = {"a": 1, "b": 20, "c": 28}
        channels = [channel(name, ranking_with(dice, wanted, place)) for name, place in places.items()]
        weights = dict.fromkeys(places, 1.0)
        results[query] = WeightedReciprocalRankFusion().fuse(
            channels, EQUAL.model_copy(update={"channel_weights": weights})
        )
        qrels[query] = {wanted: 1}
    recording = record(results)
    assert equal_setting(recording).weights == (1 / 3, 1 / 3, 1 / 3)
    report = tune_recorded(recording, qrels)
    assert report.gain
    assert max(report.config.channel_weights, key=report.config.channel_weights.__getitem__) == "a"


def test_held_out_queries_may_be_chosen() -> None:
    recording, qrels = two_channels(6, text=(1, 2), vector=(20, 30), queries=30)
    report = tune_recorded(recording, qrels, held_out=["0", "1", "2", "nobody"])
    assert (report.training.queries, report.held_out.queries) == (27, 3)


def test_nothing_to_train_or_check_on_is_refused() -> None:
    recording, qrels = two_channels(7, text=(1, 2), vector=(1, 2), queries=1)
    with pytest.raises(InvalidInput, match="found 1 and 0"):
        tune_recorded(recording, qrels)


def test_a_cut_ranking_is_refused() -> None:
    channels = [channel("text", DOCUMENTS[:30]), channel("vector", DOCUMENTS[20:])]
    cut = WeightedReciprocalRankFusion().fuse(channels, EQUAL.model_copy(update={"fused_head_limit": 5}))
    with pytest.raises(InvalidInput, match="only the head for 'q'"):
        record({"q": cut})
