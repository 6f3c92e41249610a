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


def newest_calibrations(
    conn: sa.Connection, t: Tables, tenant: str, *, collection: str | None = None
) -> dict[str, Calibrated]:
    """What was last seen with its present model of each of the tenant's collections, or of one, by name."""
    c, e, f = t.collections, t.embedding_spaces, t.fusion_configs
    active = (e.c.collection_id == c.c.id) & (e.c.space_id == c.c.active_space_id)
    statement = (
        sa.select(c.c.name.label("collection"), f.c.name, f.c.evidence)
        .select_from(c.join(f, f.c.collection_id == c.c.id).outerjoin(e, active))
        .where(
            c.c.tenant == tenant,
            f.c.evidence["from"].astext == "calibration",
            f.c.evidence["model"].astext.is_not_distinct_from(e.c.model),
        )
        .order_by(c.c.name, f.c.created_at, f.c.name.desc())  # the newest comes last, and stays
    )
    if collection is not None:
        statement = statement.where(c.c.name == collection)
    return {row.collection: Calibrated(row.name, row.evidence) for row in conn.execute(statement)}
