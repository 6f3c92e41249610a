from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray

from cayu_pg.collection import Collection
from cayu_pg.errors import InvalidInput
from cayu_pg.records import Document
from cayu_pg.store import Store
from tests.stores import CountingEmbedder


class LongestFirst:
    """Scores by length, and may take its time."""

    model = "longest-first"

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.batches: list[int] = []

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        time.sleep(self.pause)
        self.batches.append(len(documents))
        return np.array([len(document) for document in documents], dtype=np.float32)


@pytest.fixture
def collection(engine: sa.Engine) -> Collection:
    collection = Store(engine, embedder=CountingEmbedder()).collection("notes")
    collection.ingest([Document("word " * (number + 1), id=f"{number:02}") for number in range(40)])
    return collection


def test_a_reranker_orders_the_fused_candidates(collection: Collection) -> None:
    reranker = LongestFirst()
    result = collection.search("word", rerank=reranker, limit=5)
    assert [hit.record_id for hit in result.hits] == ["39", "38", "37", "36", "35"]
    assert result.hits[0].rerank_score == len("word " * 40) - 1
    assert reranker.batches == [16, 16, 8]
    assert result.diagnostics.rerank is not None
    assert result.diagnostics.rerank.applied
    fused = collection.search("word", limit=40)
    ranks = {hit.record_id: place for place, hit in enumerate(fused.hits, start=1)}
    assert [hit.fused_rank for hit in result.hits] == [ranks[hit.record_id] for hit in result.hits]
    assert f"reranked from {result.hits[0].fused_rank} to 1" in result.explain()
    assert result.fusion == fused.fusion or result.fusion.candidates == fused.fusion.candidates[:40]


def test_when_the_time_is_up_the_fused_order_stands(collection: Collection) -> None:
    result = collection.search("word", rerank=LongestFirst(pause=0.05), rerank_seconds=0.06, limit=5)
    assert [hit.record_id for hit in result.hits] == [
        hit.record_id for hit in collection.search("word", limit=5).hits
    ]
    assert result.diagnostics.rerank is not None
    assert not result.diagnostics.rerank.applied
    assert 0 < result.diagnostics.rerank.scored < 40
    assert "the fused order stands" in result.explain()


def test_the_stores_reranker_answers_for_true(engine: sa.Engine, collection: Collection) -> None:
    store = Store(engine, embedder=CountingEmbedder(), reranker=LongestFirst())
    assert store.collection("notes").search("word", rerank=True, limit=1).hits[0].record_id == "39"


def test_pages_of_a_reranked_result_follow_the_reranked_order(collection: Collection) -> None:
    first = collection.search("word", rerank=LongestFirst(), limit=3)
    second = collection.search("word", rerank=LongestFirst(), limit=3, continuation=first.continuation)
    assert [hit.record_id for hit in first.hits + second.hits] == ["39", "38", "37", "36", "35", "34"]


@pytest.mark.parametrize("bad", [1, "yes", None, object()])
def test_what_is_no_reranker_is_refused(collection: Collection, bad: object) -> None:
    with pytest.raises(InvalidInput) as raised:
        collection.search("word", rerank=bad)  # type: ignore[arg-type]
    assert raised.value.field == "rerank"
