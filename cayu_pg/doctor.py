"""The doctor of a store: looks at server, schema and collections in a handful of statements, and changes nothing."""

from __future__ import annotations

from typing import TypeVar

import sqlalchemy as sa

from cayu_pg.errors import CayuPgError, QueryCanceled, Unreachable
from cayu_pg.findings import (
    LONG_SECONDS,
    DoctorReport,
    Finding,
    on_collection,
    on_indexes,
    on_indexes_left_behind,
    on_lost_chunks,
    on_misfit,
    on_replica,
    on_schema,
    on_server,
    on_space,
    report_of,
)
from cayu_pg.fitting_channels import known_misfits
from cayu_pg.fitting_embedder import maker_of
from cayu_pg.migrating import check_revision
from cayu_pg.operations import StoreState
from cayu_pg.sql import collection_health, health
from cayu_pg.sql.engine import unopened
from cayu_pg.sql.indexes import index_health, left_behind
from cayu_pg.sql.replication import log_position
from cayu_pg.sql.spaces import Maker
from cayu_pg.sql.tables import Tables, build_tables
from cayu_pg.steps import ReadReplica, Steps, compute, read
from cayu_pg.timeouts import Timeouts, milliseconds, within

R = TypeVar("R")


def examine(
    state: StoreState, tenant: str, *, pool: sa.Pool, has_replica: bool, timeout: float
) -> Steps[DoctorReport]:
    """A report on the store; what cannot be looked at, or not in `timeout` seconds a statement, is a finding, too."""
    limits = Timeouts(statement_ms=milliseconds("timeout", timeout))
    findings: list[Finding] = []
    yield from within(_look(state, tenant, pool, has_replica, findings), limits)
    return report_of(findings)


def _look(
    state: StoreState, tenant: str, pool: sa.Pool, has_replica: bool, findings: list[Finding]
) -> Steps[None]:
    server = yield from _tried(findings, "server", read(health.server_facts, long_seconds=LONG_SECONDS))
    if server is None:
        return
    findings += on_server(server, unopened(pool))
    if has_replica and not server.is_replica:
        yield from _look_at_replica(findings)
    where = f"schema {state.schema}"
    revision = yield from _tried(findings, where, read(_revision, state.schema))
    if revision is None:
        return
    found = yield from _tried(findings, where, read(health.relations, state.schema))
    findings += on_schema(state.schema, revision, found or [], server.settings)
    if server.extension is not None:
        tables = build_tables(state.schema, server.extension.schema)
        yield from _look_at_collections(state, tables, tenant, findings)


def _look_at_replica(findings: list[Finding]) -> Steps[None]:
    written = yield from _tried(findings, "replica", read(log_position))
    if written is None:
        return
    try:
        findings.append(on_replica((yield ReadReplica(health.replica_facts)), written))
    except Unreachable as error:
        advice = "Until it answers, the primary does."
        findings.append(Finding(level="warning", subject="replica", found=str(error), advice=advice))


def _revision(conn: sa.Connection, schema: str) -> str:
    return check_revision(conn, schema) or "of the application's own chain"


def _look_at_collections(state: StoreState, t: Tables, tenant: str, findings: list[Finding]) -> Steps[None]:
    found = yield from _tried(findings, "collections", read(collection_health.collection_facts, t, tenant))
    if not found:
        return
    sizes = {each.name: each.chunks for each in found}
    makers = yield from _tried(findings, "embedder", compute(_makers, state))
    spaces = yield from _tried(findings, "embedding spaces", read(collection_health.idle_spaces, t, tenant))
    indexes = yield from _tried(findings, "indexes", read(index_health, t, tenant, sizes))
    unowned = yield from _tried(findings, "indexes", read(left_behind, t))
    lost = yield from _tried(findings, "chunks", read(collection_health.lost_chunks, t, tenant, len(found)))
    misfits = yield from _tried(findings, "calibrations", known_misfits(t, tenant))
    for each in found:
        findings += on_collection(each, makers or [])
        findings += on_misfit(each.name, (misfits or {}).get(each.name))
        findings += [on_space(each.name, space) for name, space in spaces or () if name == each.name]
        findings += on_indexes(each, (indexes or {}).get(each.name, ()))
        if lost is not None and each.name in lost:
            findings.append(on_lost_chunks(each, lost[each.name]))
    findings += on_indexes_left_behind(unowned or [])


def _makers(state: StoreState) -> list[Maker]:
    """What the store's own embedders make; without any, each collection is opened with its own."""
    if state.embedder is None:
        return []
    given = (state.embedder, state.next_embedder, *state.successors)
    return [maker_of(each) for each in given if each is not None]


def _tried(findings: list[Finding], subject: str, steps: Steps[R]) -> Steps[R | None]:
    """What the steps give; None when they fail, which is then a finding."""
    try:
        return (yield from steps)
    except QueryCanceled as error:
        advice = "Give it more time, or look when the server has less to do."
        findings.append(
            Finding(level="warning", subject=subject, found=f"not looked at: {error}", advice=advice)
        )
    except CayuPgError as error:
        findings.append(Finding(level="error", subject=subject, found=str(error)))
    return None
