"""Rows into Postgres by binary COPY: encoded once, sent by whichever connection the door holds.

The format is that of the COPY documentation: a signature, then for each row the number of fields and each field as
a length and its binary form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any, Literal

import numpy as np
import psycopg
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.util.concurrency import await_only

from cayu_pg.sql.identifiers import quoted

Kind = Literal["bigint", "integer", "boolean", "text", "bytea", "jsonb", "uuid"]

_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_BLOCK = 1 << 18
_count = Struct(">h").pack
_length = Struct(">i").pack
_bigint = Struct(">iq").pack
_integer = Struct(">ii").pack
_TRUE, _FALSE = b"\x00\x00\x00\x01\x01", b"\x00\x00\x00\x01\x00"


def _bytes(value: bytes) -> bytes:
    return _length(len(value)) + value


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return _length(len(text) + 1) + b"\x01" + text


_ENCODERS: dict[Kind, Callable[[Any], bytes]] = {
    "bigint": lambda value: _bigint(8, value),
    "integer": lambda value: _integer(4, value),
    "boolean": lambda value: _TRUE if value else _FALSE,
    "text": lambda value: _bytes(value.encode()),
    "bytea": _bytes,
    "jsonb": _json,
    "uuid": lambda value: _bytes(value.bytes),
}


def copy_rows(
    conn: sa.Connection, table: sa.Table, columns: dict[str, Kind], rows: Iterable[Sequence[Any]]
) -> None:
    """COPY `rows`, whose values stand in the order of `columns`, into `table`."""
    _send(conn, table, list(columns), _blocks(list(columns.values()), rows))


def copy_embeddings(
    conn: sa.Connection,
    table: sa.Table,
    *,
    collection_id: int,
    space_id: int,
    tenant: str,
    chunk_ids: Sequence[int],
    current: Sequence[bool],
    vectors: NDArray[np.float32],
) -> None:
    """COPY one embedding per chunk; the rows are laid out by numpy, since all have one size."""
    columns = ["collection_id", "chunk_id", "space_id", "tenant", "current", "embedding"]
    encoded = tenant.encode()
    count, dimensions = vectors.shape
    layout = np.dtype(
        [
            ("fields", ">i2"),
            ("collection_length", ">i4"),
            ("collection", ">i8"),
            ("chunk_length", ">i4"),
            ("chunk", ">i8"),
            ("space_length", ">i4"),
            ("space", ">i8"),
            ("tenant_length", ">i4"),
            ("tenant", f"S{len(encoded)}"),
            ("current_length", ">i4"),
            ("current", "i1"),
            ("vector_length", ">i4"),
            ("dimensions", ">u2"),
            ("unused", ">u2"),
            ("vector", ">f4", (dimensions,)),
        ]
    )
    rows = np.zeros(count, dtype=layout)
    rows["fields"] = len(columns)
    rows["collection_length"] = rows["chunk_length"] = rows["space_length"] = 8
    rows["collection"], rows["chunk"], rows["space"] = collection_id, chunk_ids, space_id
    rows["tenant_length"], rows["tenant"] = len(encoded), encoded
    rows["current_length"], rows["current"] = 1, current
    rows["vector_length"], rows["dimensions"] = 4 + 4 * dimensions, dimensions
    rows["vector"] = vectors
    _send(conn, table, columns, [_SIGNATURE + rows.tobytes() + _END])


def _blocks(kinds: list[Kind], rows: Iterable[Sequence[Any]]) -> Iterable[bytes]:
    encoders = [_ENCODERS[kind] for kind in kinds]
    prefix = _count(len(kinds))
    parts, size = [_SIGNATURE], 0
    for row in rows:
        parts.append(prefix)
        for encode, value in zip(encoders, row, strict=True):
            field = _NULL if value is None else encode(value)
            parts.append(field)
            size += len(field)
        if size > _BLOCK:
            yield b"".join(parts)
            parts, size = [], 0
    parts.append(_END)
    yield b"".join(parts)


def _send(conn: sa.Connection, table: sa.Table, columns: list[str], blocks: Iterable[bytes]) -> None:
    names = ", ".join(quoted(name) for name in columns)
    statement = f"COPY {quoted(table.schema or '')}.{quoted(table.name)} ({names}) FROM STDIN (FORMAT binary)"
    driver = conn.connection.driver_connection
    try:
        if isinstance(driver, psycopg.AsyncConnection):
            await_only(_send_async(driver, statement, blocks))
        elif isinstance(driver, psycopg.Connection):
            _send_sync(driver, statement, blocks)
    except psycopg.Error as error:  # COPY goes past SQLAlchemy, which would have done all this
        lost = isinstance(driver, psycopg.BaseConnection) and (driver.closed or driver.broken)
        if lost:
            conn.invalidate(error)
        wrapped = (
            sa.exc.OperationalError if isinstance(error, psycopg.OperationalError) else sa.exc.DBAPIError
        )
        raise wrapped(statement, None, error, connection_invalidated=lost) from error


def _send_sync(driver: psycopg.Connection[Any], statement: str, blocks: Iterable[bytes]) -> None:
    with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for block in blocks:
            copy.write(block)


async def _send_async(driver: psycopg.AsyncConnection[Any], statement: str, blocks: Iterable[bytes]) -> None:
    async with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for block in blocks:
            await copy.write(block)
