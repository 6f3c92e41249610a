"""One searchable set of documents: what can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

import sqlalchemy as sa

from cayu_pg import calibrating, changing_model, declaring, named_fusions, operations
from cayu_pg.calibrating import CALIBRATED, PROBES
from cayu_pg.calibration import CalibrationReport
from cayu_pg.changing_model import ChangeProgress, EmbedderChange
from cayu_pg.embedding import Embedder
from cayu_pg.evaluating import (
    EvaluationReport,
    Queries,
    SearchesDone,
    evaluate_collection,
    tune_collection,
)
from cayu_pg.evaluation import Qrels
from cayu_pg.features import CollectionFeature
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.ingesting import Cutting, IngestReport, Progress
from cayu_pg.operations import CollectionState
from cayu_pg.query import SearchResult
from cayu_pg.recall import RecallReport
from cayu_pg.records import Record, Revision
from cayu_pg.reranking import Reranker
from cayu_pg.revising import SyncReport
from cayu_pg.search_request import CHANNELS, SearchOptions, Where
from cayu_pg.sql.indexes import MIN_CHUNKS, IndexProgress
from cayu_pg.sql.model_change import EmbeddingSpace
from cayu_pg.text_query import Mode
from cayu_pg.timeouts import timeouts_of
from cayu_pg.transcript import Run, limited
from cayu_pg.tuning import TuningReport


class Collection:
    """One searchable set of documents."""

    def __init__(self, run: Run, state: CollectionState) -> None:
        self._run = run
        self._state = state

    @property
    def name(self) -> str:
        """What the collection is called in its tenant."""
        return self._state.row.name

    @property
    def model(self) -> str | None:
        """The embedding model whose vectors searches use, as last seen; None before the first ingest."""
        space = self._state.row.space
        return None if space is None else space.model

    @property
    def chunks(self) -> sa.Table:
        """The table `chunks`, whose columns record_id, metadata, text and content_hash a `where` may use."""
        return self._state.tables.chunks

    def with_timeouts(
        self, *, statement_timeout: float | None = None, lock_timeout: float | None = None
    ) -> Collection:
        """The same collection, with timeouts in seconds for what it is asked, as `Store.with_timeouts`."""
        timeouts = timeouts_of(statement_timeout, lock_timeout)
        return Collection(limited(self._run, timeouts), self._state)

    def ingest(
        self,
        documents: object,
        *,
        chunk_size: int = 1000,
        chunk_overlap: int = 200,
        separators: list[str] | None = None,
        length_function: Callable[[str], int] = len,
        on_error: Literal["raise", "skip"] = "raise",
        progress: Progress | None = None,
        defer_indexes: bool = False,
    ) -> IngestReport:
        """Bring documents into the collection: texts, Documents or mappings, one or an iterable of any length.

        Only what differs from what is stored is embedded and written, in batches that commit one by one. With
        `on_error="skip"` a bad document is reported and the rest goes on. `defer_indexes`, for a load that brings most
        of a collection, drops its indexes on vectors, words and metadata and builds them at the end; until then
        searches take longer, and after an error or a crash `reindex` builds them. Raises InvalidInput.
        """
        cutting = Cutting(chunk_size, chunk_overlap, separators, length_function)
        steps = operations.ingest_documents(
            self._state, documents, cutting, on_error, progress, defer_indexes
        )
        return self._run(steps)

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        where: Where | None = None,
        channels: Sequence[str] = CHANNELS,
        candidates: int = 100,
        mode: Mode = "any",
        fuzzy: bool = False,
        fusion: WeightedReciprocalRankFusionConfig | str | None = None,
        rerank: bool | Reranker = False,
        rerank_seconds: float | None = None,
        per_record: bool = False,
        exact: bool = False,
        max_distance: float | None = None,
        as_of: int | datetime | None = None,
        continuation: str | None = None,
        timeout: float | None = None,
        n_results: int | None = None,
    ) -> SearchResult:
        """The `limit` best passages for a question, from both channels fused.

        `where` filters by metadata: a mapping (see `cayu_pg.filters`) or a condition on the columns of `chunks`.
        `candidates` is how many hits each channel may contribute. `mode` is what the text channel asks for: any word,
        all, the phrase, or web for quotes, minus and OR as in search boxes; `fuzzy` lets words that the collection does
        not know stand for the nearest that it knows. `fusion` is a configuration, or the name of a saved one, which by
        default asks the channels that it weighs. `rerank` lets a cross-encoder order the fused
        candidates, unless that takes longer than `rerank_seconds`. `per_record` shows only the best passage of each
        record; `exact` goes past the approximate index; `max_distance` cuts the vector channel. `as_of` (a time with
        zone, or a sequence) searches what stood then, always exactly; a time means the writes `recorded_at` up to then,
        as `history` shows, though a caller's transaction may commit them later. `continuation` is that of an earlier
        result of the same search; `timeout` is in seconds. `n_results` is another name for `limit`.
        """
        options: SearchOptions = {
            "limit": limit if n_results is None else n_results,
            "where": where,
            "channels": channels,
            "candidates": candidates,
            "mode": mode,
            "fuzzy": fuzzy,
            "rerank": rerank,
            "rerank_seconds": rerank_seconds,
            "per_record": per_record,
            "exact": exact,
            "max_distance": max_distance,
            "as_of": as_of,
            "continuation": continuation,
            "timeout": timeout,
        }
        return self._run(named_fusions.search(self._state, query, fusion, options))

    def get(self, record_id: str, *, revision: int | None = None) -> Record | None:
        """The record now, or at a revision; None when it does not exist (there) or is deleted."""
        return self._run(operations.get_record(self._state, record_id, revision))

    def history(self, record_id: str) -> list[Revision]:
        """Every revision of the record, oldest first."""
        return self._run(operations.record_history(self._state, record_id))

    def delete(self, record_ids: str | Sequence[str]) -> int:
        """Take records out of search, their history kept; how many there were."""
        return self._run(operations.delete(self._state, record_ids))

    def sync(
        self,
        documents: object,
        *,
        scope: Where | None = None,
        dry_run: bool = False,
        max_delete: float = 0.2,
        chunk_size: int = 1000,
        chunk_overlap: int = 200,
        separators: list[str] | None = None,
        length_function: Callable[[str], int] = len,
    ) -> SyncReport:
        """Ingest the documents, then delete the records that are not among them.

        `scope` is a filter that says which records the source answers for, None all. Raises TooManyDeletions, and
        deletes nothing, when more than the share `max_delete` of them would go. `dry_run` only tells.
        """
        cutting = Cutting(chunk_size, chunk_overlap, separators, length_function)
        steps = operations.sync_documents(self._state, documents, cutting, scope, dry_run, max_delete)
        return self._run(steps)

    def restore(self, record_id: str, revision: int) -> int:
        """Make what a revision said current again, as a new revision; its number. Raises NotFound."""
        return self._run(operations.restore(self._state, record_id, revision))

    def prune(self, *, keep_last: int | None = None, older_than: datetime | None = None) -> int:
        """Delete revisions that are not current: all but the last `keep_last`, those that ended before `older_than`.

        Given both, those that meet both. How many went; searches as of before then raise HistoryPruned.
        """
        return self._run(operations.prune(self._state, keep_last, older_than))

    def erase(self, record_ids: str | Sequence[str]) -> int:
        """Delete records for good, with every revision, chunk, vector and word; how many there were.

        Raises Conflict when their words could not leave the statistics, as another refresh was at work; erase again to
        finish. In a transaction of yours the bytes stay until a vacuum after the commit: erase the same ids again.
        """
        return self._run(operations.erase(self._state, record_ids))

    def count(self) -> int:
        """How many records there are."""
        return self._run(operations.count(self._state))

    def records(self, *, after: str | None = None, limit: int = 100) -> list[Record]:
        """A page of records in the order of their ids, from behind the id `after`."""
        return self._run(operations.records(self._state, after, limit))

    def store(self, content: str) -> str:
        """Ingest one text; the id of its record."""
        return self._run(operations.store_text(self._state, content))

    def list_all(self) -> list[str]:
        """The texts of all records in the order of their ids."""
        return self._run(operations.list_all(self._state))

    def reindex(self, *, min_chunks: int = MIN_CHUNKS, timeout: float | None = None) -> list[str]:
        """Build the indexes that a collection of this size wants and lacks; the names of those built.

        Searches and writers go on meanwhile; a build that broke off is done anew. Waits while another reindex of the
        store is at work. `timeout` is in seconds, for each index. Needs a connection to the server itself,
        not to a pooler.
        """
        return self._run(operations.reindex(self._state, min_chunks, timeout))

    def index_progress(self) -> IndexProgress | None:
        """How far the build of an index is, for a thread or task beside that of `reindex`; None when there is none."""
        return self._run(operations.index_progress(self._state))

    def save_fusion(self, name: str, config: WeightedReciprocalRankFusionConfig) -> str:
        """Save a configuration for `search(fusion=name)`, in place of the one that had the name; its fingerprint."""
        return self._run(named_fusions.save(self._state, name, config))

    def fusion(self, name: str) -> WeightedReciprocalRankFusionConfig:
        """The configuration saved under that name; read once, so that others' changes show in a new Collection.

        Raises NotFound, and Conflict when somebody has changed the row by hand.
        """
        return self._run(named_fusions.load(self._state, name))

    def evaluate(
        self,
        queries: Queries,
        qrels: Qrels,
        *,
        fusions: Sequence[str] = (),
        k: int = 10,
        recall_k: int = 100,
        progress: SearchesDone | None = None,
    ) -> EvaluationReport:
        """nDCG, recall, MRR, MAP and latency of each channel, of equal weights, and of the fusions of these names.

        `queries` are texts by id, or JudgedQuery; `qrels` holds for each query the grades of records by their ids.
        Each query is asked again for each channel and fusion.
        """
        steps = evaluate_collection(self._state, queries, qrels, fusions, k, recall_k, progress)
        return self._run(steps)

    def tune(
        self,
        queries: Queries,
        qrels: Qrels,
        *,
        name: str | None = None,
        held_out: Iterable[str] | None = None,
        k: int = 10,
        candidates: int = 100,
        progress: SearchesDone | None = None,
    ) -> TuningReport:
        """Find the channel weights, k and feature weights with the best nDCG@`k`, and say whether that is a gain.

        Tuned on some queries and checked on those `held_out`, by default every second one; without a gain beyond noise
        the weights stay equal. With a `name` the outcome is saved for `search(fusion=name)`.
        """
        steps = tune_collection(self._state, queries, qrels, name, held_out, k, candidates, progress)
        return self._run(steps)

    def declare_features(self, features: Mapping[str, CollectionFeature]) -> None:
        """Let the hits of every search carry these features, by name, and no others; `{}` for none.

        A fusion weighs them by its `feature_weights`; `tune` finds weights that are a gain. Takes effect at once, also
        for collections that are open elsewhere.
        """
        self._run(declaring.declare_features(self._state, features))

    def features(self) -> dict[str, CollectionFeature]:
        """The features that are declared, by name."""
        return self._run(declaring.declared_features(self._state))

    def calibrate(
        self, *, name: str = CALIBRATED, probes: int = PROBES, progress: SearchesDone | None = None
    ) -> CalibrationReport:
        """Without judgements: whether each channel finds the collection's own passages, and the fusion that follows.

        A fifth of the words of up to `probes` passages, and the titles of their records, are asked of each channel.
        One that finds less than half of what the other does is left out; else the weights are equal. Saved under
        `name` for `search(fusion=name)`; nothing else is written. The same collection gives the same report.
        """
        return self._run(calibrating.calibrate(self._state, name, probes, progress))

    def misfit(self) -> str | None:
        """What the newest calibration with the present model says against a channel; None when there is nothing."""
        return self._run(operations.misfit(self._state))

    def change_embedder(
        self, embedder: Embedder, *, progress: Callable[[ChangeProgress], object] | None = None
    ) -> EmbedderChange:
        """Go over to another embedding model while searches and ingests go on.

        A second space is filled in batches that commit one by one: interrupted, call it again and it goes on. Then one
        UPDATE makes it the active one. Ingests of this store write the vectors of both meanwhile; other processes do,
        and follow, when their store or collection has it as `next_embedder`. The old vectors stay until `drop_space`,
        so that going back costs only what is new.
        """
        return self._run(changing_model.change_embedder(self._state, embedder, progress))

    def spaces(self) -> list[EmbeddingSpace]:
        """The models of the collection's vectors, oldest first, and how many chunks lack a vector of each."""
        return self._run(changing_model.spaces(self._state))

    def drop_space(self, model: str) -> int:
        """Delete the vectors of a model that is no longer, or not yet, the active one; how many."""
        return self._run(changing_model.drop_space(self._state, model))

    def refresh_statistics(self) -> bool:
        """Compute the word statistics anew; False when somebody else is at it."""
        return self._run(operations.refresh_statistics(self._state))

    def measure_recall(self, *, sample: int = 100, k: int = 10, where: Where | None = None) -> RecallReport:
        """How much of the exact answer the vector index finds, asked with `sample` stored vectors."""
        return self._run(operations.recall(self._state, sample, k, where))
