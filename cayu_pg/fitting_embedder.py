"""Which of the embedders at hand belongs to an embedding space: while a collection changes its model there are two."""

from __future__ import annotations

from collections.abc import Sequence

from cayu_pg.embedding import Embedder
from cayu_pg.errors import DimensionMismatch
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.spaces import Maker, Space


def maker_of(embedder: Embedder) -> Maker:
    """What the vectors of an embedder are kept under."""
    return Maker(embedder.model, embedder.dimensions)


def embedder_of(space: Space, embedders: Sequence[Embedder]) -> Embedder | None:
    """The first embedder that makes the vectors of the space, or None."""
    # The name first: to tell its dimensions a model may have to be loaded.
    fitting = (e for e in embedders if e.model == space.model and e.dimensions == space.dimensions)
    return next(fitting, None)


def active_embedder(collection: CollectionRow, embedders: Sequence[Embedder]) -> Embedder:
    """The embedder for the collection's active space, the first while there is none; DimensionMismatch names both."""
    if collection.space is None:
        return embedders[0]
    found = embedder_of(collection.space, embedders)
    if found is None:
        raise DimensionMismatch(
            "embedder",
            f"{collection.space.maker}, which made the vectors of {collection.name!r}",
            " and ".join(dict.fromkeys(str(maker_of(each)) for each in embedders)),
        )
    return found
