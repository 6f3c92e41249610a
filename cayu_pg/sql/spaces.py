"""Embedding spaces: which model made which vectors, and which of them a collection writes and searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from cayu_pg.sql.tables import Tables


class Maker(NamedTuple):
    """What makes the vectors of a space."""

    model: str
    dimensions: int

    def __str__(self) -> str:
        return f"{self.model} with {self.dimensions} dimensions"


@dataclass(frozen=True)
class Space:
    """An embedding space: which model made its vectors, and how they are compared."""

    space_id: int
    model: str
    dimensions: int
    distance: str
    quantization: str = "none"

    @property
    def maker(self) -> Maker:
        """What makes the vectors of this space."""
        return Maker(self.model, self.dimensions)


class Spaces(NamedTuple):
    """The space that searches use, and the one that is being filled to take its place."""

    active: Space | None
    building: Space | None


def spaces_of(conn: sa.Connection, t: Tables, collection_id: int) -> Spaces:
    """The spaces that a collection writes to."""
    s = t.embedding_spaces
    rows = conn.execute(
        sa.select(s.c.state, s.c.space_id, s.c.model, s.c.dimensions, s.c.distance, s.c.quantization).where(
            s.c.collection_id == collection_id, s.c.state.in_(("active", "building"))
        )
    )
    found = {state: Space(*space) for state, *space in rows}
    return Spaces(found.get("active"), found.get("building"))
