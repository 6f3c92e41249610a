"""Judged queries asked of a collection: to measure its channels and fusions, and to tune the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from cayu_pg import named_fusions
from cayu_pg.arguments import check_callable, check_names, kind_of, several
from cayu_pg.embedding import Embedder
from cayu_pg.errors import InvalidInput
from cayu_pg.evaluation import Difference, Evaluation, Latency, Qrels, evaluate, latency, paired_bootstrap
from cayu_pg.fused import RetrievalFusionResult
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.operations import CollectionState
from cayu_pg.query import SearchResult
from cayu_pg.search_request import CHANNELS, MAX_CANDIDATES, MAX_LIMIT, SearchOptions, Where, search_request
from cayu_pg.steps import Steps
from cayu_pg.tuning import TuningReport, record, share_out, tune_recorded

EQUAL = "equal"  # what the fusion with equal weights is called in a report


@dataclass(frozen=True)
class JudgedQuery:
    """A query that judgements name by its id; `where` narrows its search."""

    id: str
    text: str
    where: Where | None = None


Queries: TypeAlias = Mapping[str, str] | Iterable[JudgedQuery]
SearchesDone: TypeAlias = Callable[[int, int], None]  # how many, and of how many


class Measured(BaseModel):
    """How one channel or fusion did, how long its searches took, and the fingerprint of its configuration.

    Latency is that of a search without the embedding of the query, which is the same for all.
    """

    model_config = ConfigDict(frozen=True)

    evaluation: Evaluation
    latency: Latency
    fingerprint: str


class EvaluationReport(BaseModel):
    """What each channel and fusion did by name; `equal` is the fusion with equal weights.

    `differences` holds what each named fusion gains in nDCG over equal weights; `embedding` is how long a query took.
    """

    model_config = ConfigDict(frozen=True)

    collection: str
    embedding: Latency
    measured: dict[str, Measured]
    differences: dict[str, Difference]


@dataclass(frozen=True)
class _Asking:
    """One way to ask the collection."""

    name: str
    channels: Sequence[str] = CHANNELS
    fusion: WeightedReciprocalRankFusionConfig | str | None = None


@dataclass(frozen=True)
class _Answers:
    """The ranking of each query, and the milliseconds that each took to embed and to search."""

    rankings: dict[str, list[str]]
    embedding: list[float]
    searching: list[float]
    fingerprint: str


class _Remembering:
    """The embedder of a collection, asked once for each query: a model may take longer than all searches together."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self.model = inner.model

    @property
    def dimensions(self) -> int:
        return self._inner.dimensions

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._inner.encode_documents(texts)

    def encode_query(self, text: str) -> NDArray[np.float32]:
        if text not in self._vectors:
            self._vectors[text] = self._inner.encode_query(text)
        return self._vectors[text]


def evaluate_collection(
    state: CollectionState,
    queries: Queries,
    qrels: Qrels,
    fusions: Sequence[str],
    k: int,
    recall_k: int,
    progress: SearchesDone | None,
) -> Steps[EvaluationReport]:
    """Ask every judged query of each channel, of equal weights, and of the fusions saved under these names."""
    _check_depths(k=k, recall_k=recall_k)
    if progress is not None:
        check_callable("progress", progress)
    judged = judged_queries(queries, qrels)
    askings = [*(_Asking(name, (name,)) for name in CHANNELS), _Asking(EQUAL)]
    names = free_names(fusions)
    for name in names:
        yield from named_fusions.load(state, name)  # NotFound before the first search, not after many
        askings.append(_Asking(name, fusion=name))
    grades = {query.id: qrels[query.id] for query in judged}
    remembering = replace(state, own=tuple(map(_Remembering, state.embedders)))
    answers: dict[str, _Answers] = {}
    for number, asking in enumerate(askings):
        report = _counter(progress, number * len(judged), len(askings) * len(judged))
        answers[asking.name] = yield from _ask_all(remembering, asking, judged, max(k, recall_k), report)
    measured = {
        name: Measured(
            evaluation=evaluate(each.rankings, grades, k=k, recall_k=recall_k),
            latency=latency(each.searching),
            fingerprint=each.fingerprint,
        )
        for name, each in answers.items()
    }
    before = measured[EQUAL].evaluation.ndcgs()
    return EvaluationReport(
        collection=state.row.name,
        embedding=latency(answers[askings[0].name].embedding),
        measured=measured,
        differences={name: paired_bootstrap(before, measured[name].evaluation.ndcgs()) for name in names},
    )


def tune_collection(
    state: CollectionState,
    queries: Queries,
    qrels: Qrels,
    name: str | None,
    held_out: Iterable[str] | None,
    k: int,
    candidates: int,
    progress: SearchesDone | None,
) -> Steps[TuningReport]:
    """Tune on what the channels answer to the judged queries, and save the outcome under the name."""
    _check_depths(k=k, candidates=candidates)
    if name is not None:
        free_names([name])
    if progress is not None:
        check_callable("progress", progress)
    judged = judged_queries(queries, qrels)
    unseen = None if held_out is None else check_names("held_out", held_out)
    share_out([query.id for query in judged], unseen)  # too few show before the first is asked
    results: dict[str, RetrievalFusionResult] = {}
    for query in judged:
        found = yield from _ask(state, _Asking("all", fusion=_everything(candidates)), query, 1, candidates)
        results[query.id] = found.fusion
        if progress is not None:
            progress(len(results), len(judged))
    report = tune_recorded(
        record(results), qrels, held_out=unseen, k=k, candidates=candidates, version=name or "tuned"
    )
    if name is None:
        return report
    yield from named_fusions.save(state, name, report.config, report.evidence())
    return report.model_copy(update={"name": name})


def judged_queries(queries: Queries, qrels: Qrels) -> list[JudgedQuery]:
    """The queries that have judgements, in their order; InvalidInput when there are none or ids repeat."""
    _check_qrels(qrels)
    found = [query for query in _queries(queries) if query.id in qrels]
    if not found:
        raise InvalidInput("queries", "at least one that qrels judges", "none")
    if len({query.id for query in found}) < len(found):
        raise InvalidInput("queries", "ids of their own", "one id twice")
    return found


def _queries(queries: object) -> list[JudgedQuery]:
    if isinstance(queries, Mapping):
        given: list[object] = [JudgedQuery(id, text) for id, text in queries.items()]
    else:
        given = several("queries", queries, "a mapping of texts, or JudgedQuery")
    checked = []
    for each in given:
        if not isinstance(each, JudgedQuery) or not isinstance(each.id, str):
            raise InvalidInput("queries", "a mapping of texts, or JudgedQuery", kind_of(each))
        search_request(each.text, where=each.where)  # bad ones show before the first is asked
        checked.append(each)
    return checked


def _check_qrels(qrels: object) -> None:
    if not isinstance(qrels, Mapping):
        raise InvalidInput("qrels", "grades of records by query", kind_of(qrels))
    for grades in qrels.values():
        if not isinstance(grades, Mapping) or not all(isinstance(each, int) for each in grades.values()):
            raise InvalidInput("qrels", "a mapping of records to grades for each query", kind_of(grades))


def _ask_all(
    state: CollectionState,
    asking: _Asking,
    judged: list[JudgedQuery],
    limit: int,
    report: Callable[[int], None],
) -> Steps[_Answers]:
    # The first search loads the model and warms caches: nobody waits for that again. Its query is none that is asked,
    # so that the time of embedding is that of all.
    warm = replace(judged[0], text=f"{judged[0].text} ?")
    result = yield from _ask(state, asking, warm, limit, limit)
    rankings, embedding, searching = {}, [], []
    for query in judged:
        result = yield from _ask(state, asking, query, limit, limit)
        rankings[query.id] = [hit.record_id for hit in result.hits]
        spent = result.diagnostics
        embedding.append(spent.embedding_milliseconds)
        searching.append(spent.total_milliseconds - spent.embedding_milliseconds)
        report(len(rankings))
    return _Answers(rankings, embedding, searching, result.fusion.diagnostics.configuration_sha256)


def _ask(
    state: CollectionState, asking: _Asking, query: JudgedQuery, limit: int, candidates: int
) -> Steps[SearchResult]:
    # Judgements are about documents, so each is ranked once, by its best chunk.
    options: SearchOptions = {
        "limit": limit,
        "candidates": candidates,
        "channels": asking.channels,
        "where": query.where,
        "per_record": True,
    }
    return (yield from named_fusions.search(state, query.text, asking.fusion, options))


def _everything(candidates: int) -> WeightedReciprocalRankFusionConfig:
    """A fusion that keeps every candidate of both channels."""
    return WeightedReciprocalRankFusionConfig(
        configuration_version="recording",
        channel_weights=dict.fromkeys(CHANNELS, 1.0),
        max_candidates_per_channel=candidates,
        fused_head_limit=candidates * len(CHANNELS),
    )


def _counter(progress: SearchesDone | None, before: int, total: int) -> Callable[[int], None]:
    return lambda done: None if progress is None else progress(before + done, total)


def free_names(fusions: Sequence[str]) -> list[str]:
    """Each name once; InvalidInput for one that a report gives to something else."""
    reserved = (*CHANNELS, EQUAL)
    names = list(dict.fromkeys(check_names("fusion", fusions)))
    for name in names:
        if name in reserved:
            raise InvalidInput("fusion", f"a name other than {', '.join(reserved)}", repr(name))
    return names


def _check_depths(**depths: int) -> None:
    for field, value in depths.items():
        most = MAX_CANDIDATES if field == "candidates" else MAX_LIMIT
        if type(value) is not int or not 1 <= value <= most:
            raise InvalidInput(field, f"an int from 1 to {most}", repr(value)[:40])
