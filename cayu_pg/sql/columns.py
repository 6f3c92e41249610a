"""Columns, constraints and defaults that tables share."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cayu_pg.sql.identifiers import quoted


def tenant() -> tuple[sa.Column[str], sa.CheckConstraint]:
    """Whose row it is, and that it is said."""
    return (
        sa.Column("tenant", sa.Text, nullable=False, comment="Whose row this is."),
        sa.CheckConstraint("tenant <> ''", name="tenant"),
    )


def created(name: str = "created_at") -> sa.Column[Any]:
    """When the row was written."""
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        nullable=False,
        server_default=sa.func.now(),
        comment="When the row was written.",
    )


def key() -> sa.Column[int]:
    """The collection, first in the key of each of its tables."""
    return sa.Column(
        "collection_id", sa.BigInteger, nullable=False, comment="The collection; first in every key."
    )


def record_id() -> sa.Column[str]:
    """The id of a record, in the order of its bytes."""
    return sa.Column("record_id", sa.Text(collation="C"), nullable=False, comment="The document's own id.")


def belongs(columns: list[str], table: str, referred: list[str]) -> sa.ForeignKeyConstraint:
    """The reference to the row that this one goes with when it is deleted."""
    return sa.ForeignKeyConstraint(columns, [f"{table}.{name}" for name in referred], ondelete="CASCADE")


def next_of(metadata: sa.MetaData, sequence: str) -> sa.TextClause:
    """The next number of a sequence, as a default; the sequence is made with the tables."""
    sa.Sequence(sequence, metadata=metadata, schema=metadata.schema)
    literal = f"{quoted(metadata.schema or '')}.{sequence}".replace("'", "''")
    return sa.text(f"nextval('{literal}'::regclass)")
