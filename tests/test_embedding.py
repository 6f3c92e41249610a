"""Embedders, and which vectors are accepted."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cayu_pg import embedding
from cayu_pg.embedding import (
    DEFAULT_MODEL,
    HashEmbedder,
    SentenceTransformerEmbedder,
    check_vectors,
    configured_dimensions,
    find_model,
)
from cayu_pg.errors import CayuPgError, DimensionMismatch, InvalidInput, MissingDependency

TEXTS = ["A cat sat on the mat.", "The cats are sitting on mats.", "Stock prices fell sharply today."]


def similarity(embedder: HashEmbedder | SentenceTransformerEmbedder, one: str, other: str) -> float:
    return float(embedder.encode_query(one) @ embedder.encode_query(other))


@pytest.fixture(scope="module")
def mini_lm() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder()


def test_hash_embedder_is_named_by_its_dimensions() -> None:
    assert (HashEmbedder().model, HashEmbedder().dimensions) == ("hash-64", 64)
    assert HashEmbedder(7).encode_documents(TEXTS).shape == (3, 7)


def test_hash_embedder_gives_the_same_bits_everywhere() -> None:
    vectors = HashEmbedder().encode_documents([*TEXTS, "Schöne Grüße", "!?", ""])

    digest = hashlib.sha256(vectors.astype("<f4").tobytes()).hexdigest()
    assert digest == "5293052a01e6904ff75daa4fb2489e15a388ba49a4bcf21159a6ebeeeb175a38"


def test_hash_embedder_puts_similar_texts_near() -> None:
    embedder = HashEmbedder()

    assert similarity(embedder, TEXTS[0], TEXTS[1]) > 0.4
    assert similarity(embedder, TEXTS[0], TEXTS[2]) < 0.3
    assert similarity(embedder, "ПРИВЕТ, Мир!", "привет мир") == pytest.approx(1)


def test_hash_embedder_tells_texts_without_words_apart() -> None:
    assert similarity(HashEmbedder(), "!!!", "???") < 0.5


@given(st.lists(st.text(), max_size=8), st.integers(1, 70))
def test_hash_vectors_have_length_one_and_do_not_depend_on_the_batch(texts: list[str], size: int) -> None:
    embedder = HashEmbedder(size)
    vectors = embedder.encode_documents(texts)

    assert vectors.shape == (len(texts), size)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert all(np.array_equal(embedder.encode_query(t), v) for t, v in zip(texts, vectors, strict=True))


def test_more_texts_than_fit_one_slice_keep_their_order() -> None:
    texts = [f"text number {number}" for number in range(1300)]

    vectors = HashEmbedder().encode_documents(texts)

    assert np.array_equal(vectors[1299], HashEmbedder().encode_query("text number 1299"))


def test_hash_embedder_needs_a_dimension() -> None:
    with pytest.raises(InvalidInput, match="dimensions: expected a number of 1 or more, found 0"):
        HashEmbedder(0)


def test_packaged_model_knows_its_dimensions_without_torch_or_weights() -> None:
    code = (
        "import sys; from cayu_pg.embedding import SentenceTransformerEmbedder as E;"
        "print(E().dimensions, E().model, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["384", DEFAULT_MODEL, "False"]


def test_loading_and_encoding_say_nothing() -> None:
    code = (
        "from cayu_pg.embedding import SentenceTransformerEmbedder as E;"
        "e = E(); e.encode_documents(['one', 'two']); e.encode_query('three')"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_sentences_of_one_meaning_are_near(mini_lm: SentenceTransformerEmbedder) -> None:
    assert similarity(mini_lm, TEXTS[0], TEXTS[1]) > 0.6
    assert similarity(mini_lm, TEXTS[0], TEXTS[2]) < 0.3


def test_encoded_rows_are_unit_float32_in_the_order_of_the_texts(
    mini_lm: SentenceTransformerEmbedder,
) -> None:
    texts = ["short", TEXTS[0] * 20, "short", TEXTS[2]]

    vectors = mini_lm.encode_documents(texts)

    assert (vectors.shape, vectors.dtype) == ((4, 384), np.float32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.allclose(mini_lm.encode_query(text), vector, atol=1e-5)


def test_equal_texts_are_encoded_once(
    mini_lm: SentenceTransformerEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    transformer = mini_lm._transformer
    original = transformer.encode_document

    def watched(texts: list[str], **options: object) -> object:
        seen.extend(texts)
        return original(texts, **options)

    monkeypatch.setattr(transformer, "encode_document", watched)
    vectors = mini_lm.encode_documents(["twice", "once", "twice"])

    assert seen == ["twice", "once"]
    assert np.array_equal(vectors[0], vectors[2])


def test_no_texts_give_no_rows(mini_lm: SentenceTransformerEmbedder) -> None:
    assert mini_lm.encode_documents([]).shape == (0, 384)


def test_threads_may_share_an_embedder(mini_lm: SentenceTransformerEmbedder) -> None:
    texts = [f"{TEXTS[number % 3]} {number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(mini_lm.encode_query, texts))
    assert np.allclose(together, mini_lm.encode_documents(texts), atol=1e-5)


def test_embedders_of_one_model_share_its_weights(mini_lm: SentenceTransformerEmbedder) -> None:
    assert SentenceTransformerEmbedder()._transformer is mini_lm._transformer


def test_prefixes_are_put_before_questions_and_documents(mini_lm: SentenceTransformerEmbedder) -> None:
    prefixed = SentenceTransformerEmbedder(query_prefix="query: ", document_prefix="passage: ")

    assert np.allclose(prefixed.encode_query("cat"), mini_lm.encode_query("query: cat"), atol=1e-5)
    assert np.allclose(prefixed.encode_documents(["cat"])[0], mini_lm.encode_query("passage: cat"), atol=1e-5)


def test_prompts_of_the_model_are_used(
    mini_lm: SentenceTransformerEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = mini_lm.encode_query("ask: cat"), mini_lm.encode_query("doc: cat")
    monkeypatch.setattr(mini_lm._transformer, "prompts", {"query": "ask: ", "document": "doc: "})

    assert np.allclose(mini_lm.encode_query("cat"), expected[0], atol=1e-5)
    assert np.allclose(mini_lm.encode_documents(["cat"])[0], expected[1], atol=1e-5)


def test_a_model_can_be_a_folder(mini_lm: SentenceTransformerEmbedder) -> None:
    local = SentenceTransformerEmbedder(find_model(DEFAULT_MODEL))

    assert local.dimensions == 384
    assert np.array_equal(local.encode_query("cat"), mini_lm.encode_query("cat"))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CayuPgError, match="cannot be loaded"):
        SentenceTransformerEmbedder(str(tmp_path)).encode_query("cat")


def test_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingDependency, match=r"pip install 'cayu-pg\[models\]'"):
        SentenceTransformerEmbedder(str(tmp_path)).encode_query("cat")


def test_without_the_carrying_package_the_name_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, embedding.CARRIED[DEFAULT_MODEL], None)
    assert find_model(DEFAULT_MODEL) == DEFAULT_MODEL


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"config.json": {"hidden_size": 768}}, 768),
        ({"modules.json": ["Transformer", "Pooling"], "Pooling/config.json": {"embedding_dimension": 5}}, 5),
        ({"modules.json": ["Transformer", "Pooling", "Dense"]}, None),
        (
            {
                "modules.json": ["Transformer", "Pooling"],
                "Pooling/config.json": {
                    "word_embedding_dimension": 5,
                    "pooling_mode_cls_token": True,
                    "pooling_mode_mean_tokens": True,
                },
            },
            None,
        ),
    ],
)
def test_dimensions_come_from_the_configuration_where_it_is_sure(
    files: dict[str, object], expected: int | None, tmp_path: Path
) -> None:
    (tmp_path / "Pooling").mkdir()
    for name, content in files.items():
        if isinstance(content, list):
            content = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in content]
        (tmp_path / name).write_text(json.dumps(content))
    assert configured_dimensions(tmp_path) == expected


@pytest.mark.parametrize(
    "given",
    [
        [[1, 2], [3, 4]],
        ((1.0, 2.0), (3.0, 4.0)),
        np.array([[1, 2], [3, 4]], dtype=np.float64),
        np.array([[1, 2], [3, 4]], dtype=np.float16),
        np.array([[1, 3], [2, 4]], dtype=np.float32).T,
        [np.array([1.0, 2.0]), (3, 4)],
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
        [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])],
    ],
)
def test_any_form_of_vectors_becomes_contiguous_float32(given: object) -> None:
    vectors = check_vectors(given, count=2, dimensions=2, field="vectors")

    assert vectors.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous


def test_fitting_vectors_are_not_copied() -> None:
    given = np.ones((3, 4), dtype=np.float32)
    assert np.shares_memory(check_vectors(given, count=3, dimensions=4, field="vectors"), given)


def test_no_vectors_are_fine_where_none_are_wanted() -> None:
    assert check_vectors([], count=0, dimensions=4, field="vectors").shape == (0, 4)


@pytest.mark.parametrize("given", [np.ones((1, 768)), [[1.0] * 768], torch.ones(1, 768)])
def test_wrong_dimensions_are_refused_with_both_numbers(given: object) -> None:
    with pytest.raises(DimensionMismatch, match="vectors: expected 384 dimensions, found 768"):
        check_vectors(given, count=1, dimensions=384, field="vectors")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1.0, 2.0]], "expected 2 vectors, found 1"),
        ([1.0, 2.0], "expected one vector a row, found numbers"),
        (np.ones((2, 2, 2)), "expected one vector a row, found rows of 2 dimensions"),
        ([[1.0, 2.0], [3.0]], "expected 2 dimensions, found 1"),
        ([["1", "2"], ["3", "4"]], "expected numbers, found"),
        ([[None, 2.0], [3.0, 4.0]], "expected numbers, found object values"),
        ([[True, True], [True, False]], "expected numbers, found bool values"),
        ([[1.0, 2.0], [float("nan"), 4.0]], "found NaN in row 1"),
        ([[1.0, float("inf")], [3.0, 4.0]], "found infinity in row 0"),
        ([[1.0, 1e300], [3.0, 4.0]], "found infinity in row 0"),
        ([[1.0, 1e25], [3.0, 4.0]], "found a vector too long for float32 in row 0"),
        ([[1.0, 2.0], [0.0, 0.0]], "found a zero vector in row 1"),
        ([[1.0, 2.0], [1e-30, 0.0]], "found a zero vector in row 1"),
    ],
)
def test_unusable_vectors_are_refused_by_name(given: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^vectors: .*{message}"):
        check_vectors(given, count=2, dimensions=2, field="vectors")
