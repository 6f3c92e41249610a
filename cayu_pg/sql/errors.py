"""What the database refuses, as our errors; judged by SQLSTATE, which every Postgres-like engine sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa

from cayu_pg.errors import (
    CayuPgError,
    Conflict,
    ConnectionLost,
    DatabaseError,
    NotMigrated,
    OutcomeUnknown,
    QueryCanceled,
    Unreachable,
)

_UNREACHABLE = ("08", "57P", "53300", "28", "3D000")
_CANCELED = ("57014", "55P03", "25P03", "25P04")
_MISSING = ("42P01", "3F000")
_CONFLICT = ("40001", "40P01", "23505")


@contextmanager
def translated() -> Iterator[None]:
    """Turn SQLAlchemy's database errors into ours, the cause kept."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise translate(error) from error
    except psycopg.OperationalError as error:  # SQLAlchemy lets it through while it prepares a connection
        raise ConnectionLost(f"the connection broke: {error}") from error
    except (sa.exc.PendingRollbackError, sa.exc.ResourceClosedError) as error:
        raise Unreachable("the caller's connection is lost or closed; roll back and take another") from error
    except sa.exc.TimeoutError as error:
        raise Unreachable("no connection of the pool became free in time") from error


@contextmanager
def committing() -> Iterator[None]:
    """The same around a commit, after which a broken connection leaves open what happened."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise OutcomeUnknown("the connection broke during the commit; all was written, or nothing") from error


def translate(error: sa.exc.DBAPIError) -> CayuPgError:
    """The error of ours that says what a database error means to the caller."""
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    reason = (str(error.orig).strip().splitlines() or ["no reason given"])[0]
    if error.connection_invalidated:
        return ConnectionLost(f"the connection broke: {reason}")
    if state is None:
        return _without_state(error, reason)
    if state.startswith(_CANCELED):
        return QueryCanceled(f"the statement was stopped: {reason}", state)
    if state.startswith(_UNREACHABLE):
        return Unreachable(f"the server cannot be used: {reason}")
    if state in _MISSING:
        return NotMigrated(f"the schema is not what this version expects: {reason}; run: cayu-pg migrate")
    if state in _CONFLICT:
        return Conflict(f"a concurrent change won: {reason}")
    return DatabaseError(f"the database refused the statement ({state}): {reason}", state)


def _without_state(error: sa.exc.DBAPIError, reason: str) -> CayuPgError:
    if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError):
        return Unreachable(f"the server cannot be reached: {reason}")
    return DatabaseError(f"the database refused the statement: {reason}")
