"""Cross-encoders: models that read a question and a passage together and say how well they fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from cayu_pg.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

DEFAULT_RERANK_MODEL = "cross-encoder/ms-marco-MiniLM-L-6-v2"


class Reranker(Protocol):
    """What scores passages against a question."""

    @property
    def model(self) -> str:
        """The name of the model, which tells scores of different models apart."""

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        """A score for each document, higher for a better fit: float32 of shape (n,)."""


def check_reranker(field: str, reranker: object) -> None:
    """InvalidInput for what is no Reranker."""
    named = isinstance(getattr(reranker, "model", None), str)
    if not named or not callable(getattr(reranker, "score", None)):
        expected = "True, False or a Reranker" if field == "rerank" else "a Reranker"
        raise InvalidInput(field, expected, f"a value of type {type(reranker).__name__}")


@dataclass(frozen=True)
class CrossEncoderReranker:
    """A cross-encoder of sentence-transformers: a model id, or the path of a folder that holds one.

    The model is loaded at the first score and kept for the life of the process, once for each name.
    """

    model: str = DEFAULT_RERANK_MODEL

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        """A score for each document, float32 of shape (n,); MissingDependency without sentence-transformers."""
        if not documents:
            return np.empty(0, dtype=np.float32)
        with _LOADING:  # or two threads would both load the model
            encoder = _encoder(self.model)
        pairs = [(query, document) for document in documents]
        scores = np.asarray(encoder.predict(pairs, show_progress_bar=False), dtype=np.float32)
        if scores.shape != (len(documents),):
            raise InvalidInput(
                "model", "a cross-encoder that gives one score a pair", f"shape {scores.shape}"
            )
        return scores


_LOADING = Lock()


@cache
def _encoder(model: str) -> CrossEncoder:
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise MissingDependency("sentence-transformers", "models") from error
    encoder: CrossEncoder = CrossEncoder(model)
    return encoder


def rerank(
    query: str, documents: Iterable[str], *, model: str = DEFAULT_RERANK_MODEL, top_n: int | None = None
) -> list[str]:
    """The documents by how well they fit the query, best first; equal scores keep their order.

    `top_n` cuts the list as a slice does, None keeps all. Without documents no model is loaded.
    """
    documents = list(documents)
    scores = CrossEncoderReranker(model).score(query, documents)
    order = np.argsort(-scores, kind="stable")
    return [documents[place] for place in order][:top_n]
