"""Fusion configurations under a name, as rows that a search can ask for and anyone can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
    evidence: Mapping[str, Any] | None,
) -> None:
    """Save a configuration and what it was earned from, in place of the one that had the name."""
    new = insert(t.fusion_configs).values(
        **collection.key,
        name=name,
        config=config.model_dump(mode="json"),
        fingerprint=config.fingerprint(),
        evidence=sa.null() if evidence is None else dict(evidence),
    )
    replaced = {
        "config": new.excluded.config,
        "fingerprint": new.excluded.fingerprint,
        "evidence": new.excluded.evidence,
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


class Calibrated(NamedTuple):
    """The newest configuration that a calibration saved: its name, and what was seen."""

    name: str
    evidence: dict[str, Any]


def newest_calibration(
    conn: sa.Connection, t: Tables, collection_id: int, model: str | None
) -> Calibrated | None:
    """What was last seen of the collection with its present model; None when it was not calibrated since."""
    f = t.fusion_configs
    seen = (f.c.evidence["from"].astext == "calibration") & (f.c.evidence["model"].astext == model)
    row = conn.execute(
        sa.select(f.c.name, f.c.evidence)
        .where(f.c.collection_id == collection_id, seen)
        .order_by(f.c.created_at.desc(), f.c.name)
        .limit(1)
    ).one_or_none()
    return None if row is None else Calibrated(*row)
