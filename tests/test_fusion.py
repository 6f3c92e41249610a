"""Weighted reciprocal-rank fusion: recorded cases in tests/data, an independent formula, and what is refused."""

import pickle
import time
from fractions import Fraction
from math import isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cayu_pg import fusion, ranking
from cayu_pg.canonical_json import canonical_json
from cayu_pg.errors import InvalidInput
from cayu_pg.fusion import (
    WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION,
    RetrievalFusionResult,
    WeightedReciprocalRankFusion,
    WeightedReciprocalRankFusionConfig,
)
from cayu_pg.ranking import RankedRetrievalChannel, RankedRetrievalHit
from tests.golden import Case, decode, each, exact, read

NAMES = {**vars(ranking), **vars(fusion)}
FUSIONS = [case for case in read("wrrf.jsonl.gz") if "channels" in case]


def fuse(*channels: RankedRetrievalChannel, **config: Any) -> RetrievalFusionResult:
    weights = {each.channel: 1.0 for each in channels}
    fields = {"configuration_version": "v1", "channel_weights": weights, **config}
    return WeightedReciprocalRankFusion().fuse(channels, WeightedReciprocalRankFusionConfig(**fields))


def hit(record: str, rank: int, **features: float) -> RankedRetrievalHit:
    return RankedRetrievalHit.model_validate(
        {
            "identity": {"record_type": "chunk", "record_id": record, "revision": "1"},
            "rank": rank,
            "representation": "text",
            "content_hash": "h",
            "features": features,
        }
    )


def channel(name: str, *hits: RankedRetrievalHit, **fields: Any) -> RankedRetrievalChannel:
    return RankedRetrievalChannel(
        **{"channel": name, "index_version": "v1", "candidate_limit": 100} | fields, hits=hits
    )


def replay(case: Case, *, turned: bool = False) -> RetrievalFusionResult:
    given = decode(case["channels"], NAMES)
    channels = [recorded_channel(each, turned) for each in given] if isinstance(given, list) else given
    config = decode(case["config"], NAMES)
    if type(config) is dict and not case.get("raw_config"):
        config = WeightedReciprocalRankFusionConfig(**config)
    if turned:
        channels.reverse()
    if case.get("channels_as") == "generator":
        channels = iter(channels)
    return WeightedReciprocalRankFusion().fuse(channels, config)


def recorded_channel(given: Any, turned: bool) -> Any:
    if type(given) is not dict:
        return given
    hits = [RankedRetrievalHit(**each) if type(each) is dict else each for each in given.get("hits", ())]
    return RankedRetrievalChannel(**given | {"hits": hits[::-1] if turned else hits})


ERRORS = {"ValidationError": ValidationError, "TypeError": TypeError, "ValueError": ValueError}


@each([case for case in FUSIONS if "result" in case])
def test_fusion_gives_the_recorded_bits(case: Case) -> None:
    assert exact(replay(case).model_dump(mode="json")) == exact(case["result"])


@each([case for case in FUSIONS if "result" in case and isinstance(case["channels"], list)])
def test_order_of_channels_and_hits_has_no_effect(case: Case) -> None:
    assert exact(replay(case, turned=True).model_dump(mode="json")) == exact(case["result"])


@each([case for case in FUSIONS if "error" in case])
def test_what_does_not_fit_is_refused_as_recorded(case: Case) -> None:
    with pytest.raises(ERRORS[case["error"]["type"]]) as refused:
        replay(case)
    if isinstance(refused.value, ValidationError):
        found = {each["loc"][0] if each["loc"] else None for each in refused.value.errors()}
        assert found == {where[0] if where else None for where in case["error"]["fields"]}


def test_replayed_data_is_complete() -> None:
    assert len(FUSIONS) == 211


def test_version_is_the_published_one() -> None:
    assert WEIGHTED_RECIPROCAL_RANK_FUSION_VERSION == "cayu.wrrf.v1"
    assert WeightedReciprocalRankFusion.strategy_version == "cayu.wrrf.v1"


def test_score_is_the_sum_of_weighted_reciprocal_ranks_and_features() -> None:
    result = fuse(
        channel("text", hit("a", 1, trust=0.5)),
        channel("vector", hit("a", 3, trust=0.5)),
        channel_weights={"text": 2, "vector": 1},
        feature_weights={"trust": 0.25, "absent": 9},
        rrf_k=10,
    )
    (candidate,) = result.candidates
    assert candidate.reciprocal_rank_score == 2 / 11 + 1 / 13
    assert candidate.feature_adjustment == 0.125
    assert candidate.score == 2 / 11 + 1 / 13 + 0.125
    assert (candidate.best_rank, candidate.channel_count) == (1, 2)
    assert [match.rank for match in candidate.matches] == [1, 3]


def test_result_says_what_was_left_out_and_why() -> None:
    result = fuse(
        channel("text", hit("a", 1), hit("b", 2), truncated=True, continuation="next"),
        channel("vector", hit("c", 1)),
        fused_head_limit=2,
    )
    diagnostics = result.diagnostics
    assert (diagnostics.unique_candidate_count, diagnostics.omitted_candidate_count) == (3, 1)
    assert diagnostics.truncation_reasons == ("channel:text", "fused_head_limit")
    assert diagnostics.continuation_channels == ("text",)


def test_errors_say_what_was_expected_and_found() -> None:
    with pytest.raises(InvalidInput, match="channels: expected exactly text, vector, found text"):
        fuse(channel("text"), channel_weights={"text": 1, "vector": 1})
    with pytest.raises(InvalidInput, match="features: expected the same in every channel for chunk:a:1"):
        fuse(channel("text", hit("a", 1, trust=1)), channel("vector", hit("a", 1, trust=0)))
    with pytest.raises(InvalidInput, match="candidate_limit: expected at most 9 in channel text, found 100"):
        fuse(channel("text"), max_candidates_per_channel=9)


@pytest.mark.parametrize("field", ["rrf_k", "weight"])
def test_number_too_large_for_a_float_is_refused_at_its_field(field: str) -> None:
    values = {"rrf_k": 10**400} if field == "rrf_k" else {"channel_weights": {"text": 10**400}}
    with pytest.raises(ValidationError) as refused:
        WeightedReciprocalRankFusionConfig(
            **{"configuration_version": "v", "channel_weights": {"text": 1}} | values
        )
    assert refused.value.errors()[0]["loc"][0] in values


def test_fingerprint_is_that_of_the_documented_encoding() -> None:
    config = WeightedReciprocalRankFusionConfig(
        configuration_version="exp-7",
        channel_weights={"b": 0.5, "a": 1},
        rrf_k=0.1 + 0.2,
        feature_weights={"trust": -2.5e-8, "pin": -0.0},
        max_candidates_per_channel=20,
        fused_head_limit=5,
    )
    assert config.fingerprint() == "127f6ee5cb9381d1f80fa39f936945005f855ba89f7cffdaca1257b7a4c05494"


def test_canonical_json_sorts_by_code_point_and_escapes_as_little_as_json_allows() -> None:
    value = {"\U0001f600": 1e16, "\uffee": 100.5, "t\tb\u0001\u007f": 3, "a": {"": 5e-324}}
    expected = '{"a":{"":5e-324},"t\\tb\\u0001\u007f":3,"\uffee":1005e-1,"\U0001f600":10000000000000000}'
    assert canonical_json(value) == expected.encode()


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-9e18, max_value=9e18))
def test_canonical_number_reads_back_as_the_same_number(number: float) -> None:
    assert float(canonical_json(number)) == number


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 1e19])
def test_integral_number_beyond_64_bits_has_no_canonical_encoding(number: float) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        canonical_json(number)


def test_copied_configuration_is_validated_anew() -> None:
    config = WeightedReciprocalRankFusionConfig(configuration_version="v", channel_weights={"text": 1})
    assert config.model_copy(update={"rrf_k": 1}).rrf_k == 1.0
    assert pickle.loads(pickle.dumps(config)) == config.model_copy(deep=True) == config
    with pytest.raises(ValidationError, match="rrf_k"):
        config.model_copy(update={"rrf_k": 0})


def test_configuration_changed_behind_its_back_is_refused() -> None:
    config = WeightedReciprocalRankFusionConfig(configuration_version="v", channel_weights={"text": 1})
    object.__setattr__(config, "rrf_k", -60.0)
    with pytest.raises(ValidationError, match="rrf_k"):
        WeightedReciprocalRankFusion().fuse((channel("text"),), config)


NAMED = ("recency", "text", "vector")
numbers = st.floats(1e-6, 1e6)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[RankedRetrievalChannel], WeightedReciprocalRankFusionConfig]:
    features = {record: draw(st.dictionaries(st.sampled_from("pq"), st.floats(0, 1))) for record in "abcdef"}
    channels = []
    for name in NAMED:
        records = draw(st.lists(st.sampled_from("abcdef"), unique=True))
        ranks = draw(st.lists(st.integers(1, 100), unique=True, min_size=len(records), max_size=len(records)))
        hits = [hit(record, rank, **features[record]) for record, rank in zip(records, ranks, strict=True)]
        channels.append(channel(name, *hits))
    config = WeightedReciprocalRankFusionConfig(
        configuration_version="v",
        channel_weights={name: draw(numbers) for name in NAMED},
        feature_weights=draw(st.dictionaries(st.sampled_from("pqr"), st.floats(-10, 10))),
        rrf_k=draw(numbers),
        fused_head_limit=draw(st.integers(1, 6)),
    )
    return channels, config


@given(inputs(), st.randoms(use_true_random=False))
def test_fusion_depends_on_what_is_ranked_not_on_how_it_is_listed(given: Any, chance: Any) -> None:
    channels, config = given
    shuffled = [
        each.model_copy(update={"hits": tuple(chance.sample(each.hits, len(each.hits)))}) for each in channels
    ]
    chance.shuffle(shuffled)
    strategy = WeightedReciprocalRankFusion()
    expected, found = strategy.fuse(channels, config), strategy.fuse(shuffled, config)
    assert exact(found.model_dump(mode="json")) == exact(expected.model_dump(mode="json"))


@given(inputs())
def test_validated_channels_give_the_same_without_a_second_look(given: Any) -> None:
    channels, config = given
    strategy = WeightedReciprocalRankFusion()
    assert strategy.fuse_validated(channels, config) == strategy.fuse(channels, config)


@given(inputs())
def test_scores_equal_the_formula_in_fractions_rounded_once(given: Any) -> None:
    channels, config = given
    result = WeightedReciprocalRankFusion().fuse(channels, config)
    for candidate in result.candidates:
        ranks = {
            each.channel: found.rank
            for each in channels
            for found in each.hits
            if found.identity == candidate.identity
        }
        quotients = [config.channel_weights[name] / (config.rrf_k + rank) for name, rank in ranks.items()]
        products = [
            weight * candidate.features.get(name, 0.0) for name, weight in config.feature_weights.items()
        ]
        assert candidate.reciprocal_rank_score == float(sum(map(Fraction, quotients)))
        assert candidate.feature_adjustment == float(sum(map(Fraction, products)))
        assert candidate.score == candidate.reciprocal_rank_score + candidate.feature_adjustment
        whole = sum(
            Fraction(config.channel_weights[name]) / (Fraction(config.rrf_k) + rank)
            for name, rank in ranks.items()
        )
        assert isclose(candidate.reciprocal_rank_score, whole, rel_tol=1e-12)


@given(inputs())
def test_candidates_are_ordered_and_cut(given: Any) -> None:
    channels, config = given
    result = WeightedReciprocalRankFusion().fuse(channels, config)
    unique = {found.identity for each in channels for found in each.hits}
    places = [
        (-each.score, each.best_rank, -each.channel_count, each.identity.sort_key())
        for each in result.candidates
    ]
    assert places == sorted(places)
    assert len(places) == min(config.fused_head_limit, len(unique))


def test_fusion_is_linear_in_the_hits() -> None:
    def seconds(count: int) -> float:
        channels = [
            channel(name, *(hit(f"{n}", n) for n in range(1, count)), candidate_limit=count) for name in "ab"
        ]
        config = WeightedReciprocalRankFusionConfig(
            configuration_version="v", channel_weights={"a": 1, "b": 1}, max_candidates_per_channel=count
        )
        times = []
        for _ in range(3):
            start = time.perf_counter()
            WeightedReciprocalRankFusion().fuse(channels, config)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(8_000) < 30 * seconds(1_000)  # 8 times the hits; squared it would be 64
