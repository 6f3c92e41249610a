"""Fusion configurations under a name, as rows that a search can ask for and anyone can read."""

from __future__ import annotations

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.dialects.postgresql import insert

from cayu_pg.errors import Conflict
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.tables import Tables


def save_fusion(
    conn: sa.Connection,
    t: Tables,
    collection: CollectionRow,
    name: str,
    config: WeightedReciprocalRankFusionConfig,
) -> None:
    """Save a configuration, in place of the one that had the name."""
    new = insert(t.fusion_configs).values(
        **collection.key,
        name=name,
        config=config.model_dump(mode="json"),
        fingerprint=config.fingerprint(),
    )
    replaced = {
        "config": new.excluded.config,
        "fingerprint": new.excluded.fingerprint,
        "created_at": sa.func.now(),
    }
    conn.execute(new.on_conflict_do_update(index_elements=["collection_id", "name"], set_=replaced))


def load_fusion(
    conn: sa.Connection, t: Tables, collection_id: int, name: str
) -> WeightedReciprocalRankFusionConfig | None:
    """The configuration of that name, or None; Conflict when the row no longer has its fingerprint."""
    f = t.fusion_configs
    row = conn.execute(
        sa.select(f.c.config, f.c.fingerprint).where(f.c.collection_id == collection_id, f.c.name == name)
    ).one_or_none()
    if row is None:
        return None
    try:
        config = WeightedReciprocalRankFusionConfig.model_validate(row.config)
    except ValidationError as error:
        raise Conflict(f"the row of fusion configuration {name!r} holds none; save it again") from error
    if config.fingerprint() != row.fingerprint:
        raise Conflict(
            f"the row of fusion configuration {name!r} was changed after it was saved: expected fingerprint"
            f" {row.fingerprint}, found {config.fingerprint()}; save it again"
        )
    return config
