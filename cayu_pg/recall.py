"""How much the approximate vector index finds of what an exact search finds, on the user's own vectors."""

from __future__ import annotations

import time
from statistics import fmean, median
from typing import NamedTuple

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict

from cayu_pg.errors import InvalidInput
from cayu_pg.ranked_rows import missing_index
from cayu_pg.search_request import Where, check_where
from cayu_pg.sql.channels import Question, ef_search, fetch_channels, sample_vectors
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.filters import compile_filter
from cayu_pg.sql.settings import set_for_search
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, read

TRIED = (40, 100, 200, 400, 800)
GOOD_RECALL = 0.99


class RecallReport(BaseModel):
    """Mean recall at `k`, and median milliseconds of a search, by the number of candidates asked for.

    `recommended` is the fewest candidates of those tried that find at least 99 % of the exact answer, None when none
    does. HNSW's `ef_search` is as large as the candidates.
    """

    model_config = ConfigDict(frozen=True)

    k: int
    sample: int
    recall: dict[int, float]
    milliseconds: dict[int, float]
    exact_milliseconds: float
    recommended: int | None


def check_recall(sample: object, k: object, where: Where | None) -> None:
    """InvalidInput for arguments that `measure_recall` cannot take."""
    if type(sample) is not int or not 1 <= sample <= 10_000:
        raise InvalidInput("sample", "an int from 1 to 10000", repr(sample)[:40])
    if type(k) is not int or not 1 <= k <= min(TRIED):
        raise InvalidInput("k", f"an int from 1 to {min(TRIED)}", repr(k)[:40])
    check_where(where)


def measure_recall(
    t: Tables, collection: CollectionRow, sample: int, k: int, where: Where | None
) -> Steps[RecallReport]:
    """Ask for the neighbours of `sample` stored vectors, exactly and through the index; InvalidInput without one."""
    if collection.space is None or not collection.has_hnsw:
        raise InvalidInput("collection", "one with a vector index", missing_index("vector index", collection))
    vectors = yield from read(sample_vectors, t, collection, sample)
    exact = yield from read(_nearest, t, collection, vectors, k, where, False)
    recall, milliseconds = {}, {}
    for candidates in TRIED:
        found = yield from read(_nearest, t, collection, vectors, candidates, where, True)
        recall[candidates] = _mean_recall(k, found.chunk_ids, exact.chunk_ids)
        milliseconds[candidates] = found.milliseconds
    good = [candidates for candidates in TRIED if recall[candidates] >= GOOD_RECALL]
    return RecallReport(
        k=k,
        sample=len(vectors),
        recall=recall,
        milliseconds=milliseconds,
        exact_milliseconds=exact.milliseconds,
        recommended=good[0] if good else None,
    )


class _Nearest(NamedTuple):
    """Chunk ids, nearest first, for each vector asked, and the median time of an answer."""

    chunk_ids: list[list[int]]
    milliseconds: float


def _nearest(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    vectors: list[str],
    candidates: int,
    where: Where | None,
    approximate: bool,
) -> _Nearest:
    condition = None if where is None else compile_filter(where, t.chunks.c.metadata)
    found, spent = [], []
    for vector in vectors:
        question = Question(vector, None, candidates, approximate, where=condition)
        effort = ef_search(collection, question)
        set_for_search(conn, ef_search=effort, timeout_ms=None, filtered=where is not None)
        began = time.perf_counter()
        rows = fetch_channels(conn, t, collection, question)
        spent.append((time.perf_counter() - began) * 1000)
        found.append([] if rows is None else [row.chunk_id for row in rows.vector])
    return _Nearest(found, median(spent) if spent else 0.0)


def _mean_recall(k: int, found: list[list[int]], exact: list[list[int]]) -> float:
    pairs = [(set(near[:k]), set(far[:k])) for near, far in zip(found, exact, strict=True) if far]
    return fmean(len(near & far) / len(far) for near, far in pairs) if pairs else 1.0
