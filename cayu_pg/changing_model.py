"""Changing a collection's embedding model: a second space is filled while the first one answers, then takes over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict

from cayu_pg.arguments import check_callable, check_name
from cayu_pg.embedding import Embedder, check_embedder
from cayu_pg.errors import InvalidInput
from cayu_pg.fitting_embedder import embedder_of, maker_of
from cayu_pg.operations import CollectionState, look_again
from cayu_pg.sql import indexes, model_change
from cayu_pg.sql.locks import WritersAtWork
from cayu_pg.sql.model_change import EmbeddingSpace
from cayu_pg.sql.spaces import Space
from cayu_pg.steps import Steps, answering, compute, maintain, read, write, write_repeatable
from cayu_pg.writing import embed

log = logging.getLogger(__name__)

PAGE = 500  # chunks that are embedded and committed together
DELETED_AT_ONCE = 10_000  # vectors
PASSES = 20  # over what others wrote meanwhile without the new model


class EmbedderChange(BaseModel):
    """What a change of model did; of an interrupted one that was taken up again, the last part.

    `chunks_filled` counts chunks that got a vector of the new model, `embeddings_computed` the texts that it embedded.
    """

    model_config = ConfigDict(frozen=True)

    previous: str | None
    model: str
    dimensions: int
    chunks_filled: int
    embeddings_computed: int
    indexes_built: list[str]
    seconds: float


@dataclass(frozen=True, slots=True)
class ChangeProgress:
    """How far a change of model is, given to `progress` after each batch: chunks done, and left to do."""

    filled: int
    pending: int
    seconds: float


@dataclass(slots=True)
class _Filling:
    """One run of a change: what was counted at its start, and what it has done."""

    space: Space
    embedder: Embedder
    pending: int
    progress: Callable[[ChangeProgress], object] | None
    began: float
    filled: int = 0
    embedded: int = 0

    def add(self, filled: int, embedded: int) -> None:
        self.filled += filled
        self.embedded += embedded
        if self.progress is not None:
            left, spent = max(self.pending - self.filled, 0), time.perf_counter() - self.began
            self.progress(ChangeProgress(self.filled, left, spent))


def change_embedder(
    state: CollectionState, embedder: Embedder, progress: Callable[[ChangeProgress], object] | None
) -> Steps[EmbedderChange]:
    """Fill a space for `embedder`, index it as the present one is, and make it the active one."""
    began = time.perf_counter()
    _check(state, embedder, progress)
    yield from look_again(state)
    previous = state.row.space
    space = None
    if previous is None:
        state.own = (embedder, *state.own)  # the first ingest makes its space
    else:
        space = yield from write_repeatable(
            model_change.start_space, state.tables, state.row, maker_of(embedder)
        )
        if embedder_of(space or previous, state.embedders) is None:
            state.store.successors.append(embedder)
    filled = embedded = 0
    built: list[str] = []
    if space is not None:
        pending = yield from _pending(state, space)
        filling = _Filling(space, embedder, pending, progress, began)
        built = yield from _take_over(state, filling)
        filled, embedded = filling.filled, filling.embedded
    return EmbedderChange(
        previous=None if previous is None else previous.model,
        model=embedder.model,
        dimensions=embedder.dimensions,
        chunks_filled=filled,
        embeddings_computed=embedded,
        indexes_built=built,
        seconds=time.perf_counter() - began,
    )


def _check(state: CollectionState, embedder: Embedder, progress: object) -> None:
    check_embedder("embedder", embedder)
    if progress is not None:
        check_callable("progress", progress)
    if state.store.borrowed:
        found = "one that uses the caller's transaction"
        raise InvalidInput("store", "a store with connections of its own", found)


def _pending(state: CollectionState, space: Space) -> Steps[int]:
    spaces = yield from read(model_change.list_spaces, state.tables, state.row)
    return next((each.pending for each in spaces if each.state == "building"), 0)


def _take_over(state: CollectionState, filling: _Filling) -> Steps[list[str]]:
    """Fill, build the index, and try to go over until nothing has been added without the new model meanwhile."""
    yield from _fill(state, filling)
    built = yield from _build_index(state, filling.space)
    for left in reversed(range(PASSES)):
        try:
            if (yield from _switch(state, filling.space)):
                break
        except WritersAtWork:
            if left == 0:
                raise
        yield from _fill(state, filling)
    else:
        raise WritersAtWork(
            "other processes keep writing without the new model; give them next_embedder, then go on"
        )
    yield from look_again(state)
    log.info("%s answers with %s now", state.row.name, filling.space.maker)
    return built


def _switch(state: CollectionState, space: Space) -> Steps[bool]:
    """Go over to the space if every chunk has its vector there; all of them are looked at before writers must wait."""
    t, row = state.tables, state.row
    until = yield from write_repeatable(model_change.filled_until, t, row.collection_id, space)
    if until is None:
        return False
    return (yield from write_repeatable(model_change.switch_space, t, row, space, filled_until=until))


def _fill(state: CollectionState, filling: _Filling) -> Steps[None]:
    """One pass over the chunks without a vector, in pages that commit one by one."""
    t, collection, after = state.tables, state.row, 0
    number = collection.collection_id
    while True:
        found = yield from read(
            model_change.pending_chunks, t, number, filling.space, after=after, limit=PAGE
        )
        if not found.chunks:
            return
        vectors = (yield from compute(embed, filling.embedder, found.texts)) if found.texts else {}
        filled = yield from write_repeatable(
            model_change.fill_space, t, collection, filling.space, found.chunks, vectors
        )
        filling.add(filled, len(found.texts))
        after = found.chunks[-1][0]


def _build_index(state: CollectionState, space: Space) -> Steps[list[str]]:
    """The new space gets a vector index before it answers, if the present one has one."""
    if not (state.row.has_hnsw or state.store.builds_indexes):
        return []
    return (
        yield from maintain(
            indexes.reindex,
            state.tables,
            replace(state.row, space=space),
            min_chunks=1 if state.row.has_hnsw else indexes.MIN_CHUNKS,
            timeout_ms=None,
        )
    )


@answering
def spaces(state: CollectionState) -> Steps[list[EmbeddingSpace]]:
    """The collection's embedding spaces, oldest first."""
    return (yield from read(model_change.list_spaces, state.tables, state.row))


def drop_space(state: CollectionState, model: str) -> Steps[int]:
    """Delete the vectors of a model that searches do not use; how many."""
    check_name("model", model)
    t, number = state.tables, state.row.collection_id
    deleted = 0
    for space_id in (yield from write(model_change.retire_space, t, state.row, model)):
        if not state.store.borrowed:
            yield from maintain(indexes.drop_vector_index_aside, t, number, space_id)
        while True:
            some = yield from write(model_change.delete_vectors, t, number, space_id, limit=DELETED_AT_ONCE)
            deleted += some
            if some < DELETED_AT_ONCE:
                break
    return deleted
