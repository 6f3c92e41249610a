"""Cross-encoders: recorded cases with a stand-in, and a real, tiny model built here."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cayu_pg import reranking
from cayu_pg.errors import InvalidInput, MissingDependency
from cayu_pg.reranking import DEFAULT_RERANK_MODEL, CrossEncoderReranker, Reranker, rerank
from tests.golden import Case, decode, each, read

CASES = [case for case in read("pipeline.jsonl") if case["call"] == "rerank"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "dogs", "sleep", "bark", "all", "day", "why"]


@pytest.fixture(autouse=True)
def _no_model_is_kept() -> Iterator[None]:
    reranking._encoder.cache_clear()
    yield
    reranking._encoder.cache_clear()


class StandIn(ModuleType):
    """In place of sentence_transformers: encoders that answer from a table and note what they are asked."""

    def __init__(self, scores: dict[str, float]) -> None:
        super().__init__("sentence_transformers")
        self.scores, self.loaded, self.used, self.pairs = scores, [], [], []
        self.CrossEncoder = self.load

    def load(self, model: str) -> Any:
        self.loaded.append(model)
        encoder = ModuleType(model)
        encoder.predict = lambda pairs, **_: self.predict(model, pairs)
        return encoder

    def predict(self, model: str, pairs: list[tuple[str, str]]) -> list[float]:
        self.used.append(model)
        self.pairs += map(list, pairs)
        return [self.scores[document] for _, document in pairs]


def stand_in(monkeypatch: pytest.MonkeyPatch, scores: dict[str, float]) -> StandIn:
    module = StandIn(scores)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return module


@each([case for case in CASES if "result" in case])
def test_documents_are_ordered_as_recorded(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    encoders = stand_in(monkeypatch, decode(case["scores"] or {}, {}))
    for _ in range(case.get("times", 1)):
        found = rerank(case["query"], decode(case["documents"], {}), **case["kwargs"])
    assert found == case["result"]
    assert (encoders.used, encoders.pairs) == (case["used"], case["pairs"])
    assert encoders.loaded == case.get("loaded", encoders.loaded)


def test_replayed_data_is_complete() -> None:
    assert len(CASES) == 22


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingDependency, match=r"pip install 'cayu-pg\[models\]'"):
        rerank("q", ["a"])
    assert rerank("q", []) == []


def test_default_model_is_the_published_one() -> None:
    assert DEFAULT_RERANK_MODEL == CrossEncoderReranker().model == "cross-encoder/ms-marco-MiniLM-L-6-v2"


def test_scores_that_are_no_numbers_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, {"a": float("nan"), "b": -1.0, "c": 1.0})
    assert rerank("q", ["a", "b", "c"]) == ["c", "b", "a"]


def save_model(folder: Path, labels: int) -> str:
    """A cross-encoder of one small random layer, as sentence-transformers reads it from a folder."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS), encoding="utf-8")
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        initializer_range=1.0,  # large, so that scores differ
        num_labels=labels,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return str(folder)


DOCUMENTS = ["cats sleep all day", "dogs bark", "cats bark all day", "why dogs sleep"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return save_model(tmp_path / "tiny", labels=1)


def test_real_model_scores_each_pair(model: str) -> None:
    reranker: Reranker = CrossEncoderReranker(model)
    scores = reranker.score("why cats sleep", DOCUMENTS)
    assert (scores.dtype, scores.shape) == (np.float32, (4,))
    assert len(set(scores.tolist())) == 4
    alone = [float(reranker.score("why cats sleep", [document])[0]) for document in DOCUMENTS]
    assert scores.tolist() == pytest.approx(alone, abs=1e-5)
    assert reranker.score("why", []).shape == (0,)


def test_real_model_orders_documents_by_its_scores(model: str) -> None:
    scores = CrossEncoderReranker(model).score("why cats sleep", DOCUMENTS)
    expected = sorted(DOCUMENTS, key=dict(zip(DOCUMENTS, -scores, strict=True)).__getitem__)
    assert rerank("why cats sleep", DOCUMENTS, model=model) == expected
    assert rerank("why cats sleep", DOCUMENTS, model=model, top_n=2) == expected[:2]


def test_model_is_loaded_once_for_all_rerankers(model: str) -> None:
    CrossEncoderReranker(model).score("why", DOCUMENTS)
    CrossEncoderReranker(model).score("why", DOCUMENTS)
    assert reranking._encoder.cache_info().misses == 1


def test_model_with_several_scores_a_pair_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    several = save_model(tmp_path / "several", labels=3)
    with pytest.raises(InvalidInput, match=r"one score a pair, found shape \(4, 3\)"):
        rerank("why", DOCUMENTS, model=several)
