"""What is known of whether the channels fit a collection; a look-up, cheap enough for every ingest."""

from __future__ import annotations

from cayu_pg.calibration import misfit_warning
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.fusion_configs import newest_calibrations
from cayu_pg.sql.tables import Tables
from cayu_pg.steps import Steps, read


def known_misfit(t: Tables, row: CollectionRow) -> Steps[str | None]:
    """What the newest calibration with the present model says against a channel; None when there is nothing."""
    return (yield from known_misfits(t, row.tenant, collection=row.name)).get(row.name)


def known_misfits(t: Tables, tenant: str, *, collection: str | None = None) -> Steps[dict[str, str]]:
    """The same of all of a tenant's collections, or of one, by name, where there is something."""
    found = yield from read(newest_calibrations, t, tenant, collection=collection)
    warnings = {name: misfit_warning(name, each.name, each.evidence) for name, each in found.items()}
    return {name: warning for name, warning in warnings.items() if warning is not None}
