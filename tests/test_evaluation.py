"""The measures are those of trec_eval, the intervals tell noise from gain, and latencies are told in percentiles."""

from __future__ import annotations

import math
import random
from statistics import fmean

import ir_measures
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import AP, RR, R, nDCG

from cayu_pg.errors import InvalidInput
from cayu_pg.evaluation import (
    bootstrap_interval,
    evaluate,
    latency,
    measure,
    ndcg,
    paired_bootstrap,
    ranking_of,
)

DOCUMENTS = [f"d{number}" for number in range(30)]
# Few different scores, so that there are ties; grades below 0 and documents nobody judged occur.
scores = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 6).map(float), max_size=30)
grades = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(-1, 3), min_size=1, max_size=20)


def test_ndcg_has_linear_gain() -> None:
    value = ndcg(["a", "b", "c"], {"a": 1, "c": 3})
    assert value == pytest.approx((1 + 3 / math.log2(4)) / (3 + 1 / math.log2(3)))


def test_recall_and_ndcg_look_only_so_deep() -> None:
    found = measure(["x", "y", "a"], {"a": 1}, k=2, recall_k=2)
    assert (found.ndcg, found.recall) == (0, 0)
    assert found.reciprocal_rank == found.average_precision == pytest.approx(1 / 3)


@given(
    st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), st.tuples(scores, grades), min_size=1),
    st.integers(1, 12),
    st.integers(1, 40),
)
def test_measures_agree_with_ir_measures(
    queries: dict[str, tuple[dict[str, float], dict[str, int]]], k: int, recall_k: int
) -> None:
    qrels = {query: judged for query, (_, judged) in queries.items()}
    run = {query: scored for query, (scored, _) in queries.items()}
    ours = evaluate(
        {query: ranking_of(scored) for query, scored in run.items()}, qrels, k=k, recall_k=recall_k
    )
    wanted = [nDCG @ k, R @ recall_k, RR, AP]
    # trec_eval has no queries without results, and ir_measures counts them as 0 only if others have some.
    for metric in ir_measures.iter_calc(wanted, qrels, run) if any(run.values()) else ():
        mine = ours.queries[metric.query_id]
        value = {
            wanted[0]: mine.ndcg,
            wanted[1]: mine.recall,
            RR: mine.reciprocal_rank,
            AP: mine.average_precision,
        }[metric.measure]
        assert abs(value - metric.value) < 1e-9


def test_means_agree_with_ir_measures_on_a_large_random_run() -> None:
    dice = random.Random(7)
    qrels = {str(q): {d: dice.choice([0, 0, 1, 2]) for d in dice.sample(DOCUMENTS, 12)} for q in range(80)}
    run = {str(q): {d: float(dice.randrange(8)) for d in dice.sample(DOCUMENTS, 20)} for q in range(75)}
    ours = evaluate({query: ranking_of(scored) for query, scored in run.items()}, qrels)
    theirs = ir_measures.calc_aggregate([nDCG @ 10, R @ 100, RR, AP], qrels, run)
    assert abs(ours.ndcg - theirs[nDCG @ 10]) < 1e-9
    assert abs(ours.recall - theirs[R @ 100]) < 1e-9
    assert abs(ours.mrr - theirs[RR]) < 1e-9
    assert abs(ours.map - theirs[AP]) < 1e-9


def test_queries_without_results_or_without_anything_relevant_count_zero() -> None:
    found = evaluate({"1": ["a"], "3": ["a"]}, {"1": {"a": 1}, "2": {"a": 1}, "3": {"a": 0}})
    assert [each.ndcg for each in found.queries.values()] == [1, 0, 0]
    assert found.mrr == pytest.approx(1 / 3)


def test_no_judgements_are_refused() -> None:
    with pytest.raises(InvalidInput, match="qrels"):
        evaluate({}, {})


def values(*numbers: float) -> dict[str, float]:
    return {str(place): number for place, number in enumerate(numbers)}


def test_paired_bootstrap_sees_a_small_but_steady_gain() -> None:
    dice = random.Random(1)
    before = values(*(dice.random() for _ in range(200)))
    after = {query: value + 0.01 + dice.gauss(0, 0.02) for query, value in before.items()}
    difference = paired_bootstrap(before, after)
    assert 0 < difference.low < 0.01 < difference.high < 0.02
    assert not difference.within_noise
    assert paired_bootstrap(after, before).high < 0


def test_paired_bootstrap_calls_chance_noise() -> None:
    dice = random.Random(2)
    before, after = (values(*(dice.random() for _ in range(200))) for _ in range(2))
    difference = paired_bootstrap(before, after)
    assert difference.within_noise
    assert difference.mean == pytest.approx(fmean(after.values()) - fmean(before.values()))
    assert paired_bootstrap(before, before) == difference.model_copy(update={"mean": 0, "low": 0, "high": 0})


def test_same_seed_gives_the_same_interval() -> None:
    dice = random.Random(4)
    before, after = (values(*(dice.random() for _ in range(60))) for _ in range(2))
    assert paired_bootstrap(before, after, seed=5) == paired_bootstrap(before, after, seed=5)
    assert paired_bootstrap(before, after, seed=5) != paired_bootstrap(before, after, seed=6)


def test_higher_confidence_gives_a_wider_interval() -> None:
    sample = [random.Random(3).random() for _ in range(50)]
    narrow, wide = (bootstrap_interval(sample, confidence=c) for c in (0.8, 0.99))
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


def test_only_the_same_queries_can_be_compared() -> None:
    with pytest.raises(InvalidInput, match="each of the 2 queries"):
        paired_bootstrap(values(0, 1), values(0, 1, 1))


def test_latency_is_told_in_percentiles() -> None:
    found = latency([float(number) for number in range(1, 102)])
    assert (found.p50, found.p90, found.p99, found.longest) == (51, 91, 100, 101)
