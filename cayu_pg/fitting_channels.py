"""What is known of whether the channels fit a collection; a look-up, cheap enough for every ingest."""

from __future__ import annotations

from cayu_pg.calibration import misfit_warning
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.fusion_configs import newest_calibration
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, read


def known_misfit(t: Tables, row: CollectionRow) -> Steps[str | None]:
    """What the newest calibration with the present model says against a channel; None when there is nothing."""
    model = None if row.space is None else row.space.model
    found = yield from read(newest_calibration, t, row.collection_id, model)
    return None if found is None else misfit_warning(row.name, found.name, found.evidence)
