"""The one description of the schema: what alembic compares against and every statement is built from.

Rules that keep a distributed engine possible (each table is distributed by its first key column): that column
is in every key, foreign key and WHERE; no IDENTITY, no triggers, no reg* columns; every constraint is named.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, REGCLASS

from cayu_pg.sql.collection_tables import collection_tables
from cayu_pg.sql.document_tables import document_tables
from cayu_pg.sql.identifiers import ExtensionType, quoted
from cayu_pg.sql.transcript_tables import transcript_tables

DEFAULT_SCHEMA = "cayu"
T = TypeVar("T")

NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(referred_table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables of one schema, and the schema that the `vector` extension lives in."""

    schema: str
    extension_schema: str
    metadata: sa.MetaData
    collections: sa.Table
    embedding_spaces: sa.Table
    statistics_versions: sa.Table
    lexeme_statistics: sa.Table
    fusion_configs: sa.Table
    batches: sa.Table
    records: sa.Table
    revisions: sa.Table
    chunks: sa.Table
    revision_chunks: sa.Table
    chunk_embeddings: sa.Table
    chunk_lexemes: sa.Table
    transcripts: sa.Table
    transcript_messages: sa.Table
    message_lexemes: sa.Table
    transcript_appends: sa.Table

    def vector(self, name: str = "vector", dimensions: int | None = None) -> ExtensionType:
        """The extension's type `name`, for casts."""
        return ExtensionType(name, self.extension_schema, dimensions)

    def operator(self, symbol: str) -> str:
        """The extension's operator spelled so that no search path is needed."""
        return f"OPERATOR({quoted(self.extension_schema)}.{symbol})"

    def next_of(self, sequence: str) -> sa.ColumnElement[int]:
        """The next number of one of the schema's sequences."""
        # SQLAlchemy caches next_value() by the name alone: stores of two schemas on one engine would share it.
        name = f"{quoted(self.schema)}.{quoted(sequence)}"
        return sa.func.nextval(sa.cast(sa.literal(name, sa.Text), REGCLASS), type_=sa.BigInteger)


def sql_text(t: Tables, template: str, **parts: str | int) -> sa.TextClause:
    """`template` with the names `{schema}` and `{extension}` and other `parts` filled in; `:name` is a bind.

    Casts may be written `::type`, and a colon in a name is only that.
    """
    names = {"schema": quoted(t.schema), "extension": quoted(t.extension_schema)}
    names = {key: name.replace(":", r"\:") for key, name in names.items()}
    given = {key: str(part).replace("::", r"\:\:") for key, part in parts.items()}
    return sa.text(template.replace("::", r"\:\:").format(**names, **given))


def one_of(column: sa.ColumnElement[T], values: Collection[T]) -> sa.ColumnElement[bool]:
    """`column = ANY(array)`: any number of values in one bind."""
    array = sa.bindparam(None, list(values), type_=ARRAY(column.type))
    return column == sa.func.any(array)


@lru_cache(maxsize=64)
def build_tables(schema: str = DEFAULT_SCHEMA, extension_schema: str = "public") -> Tables:
    """All tables, built for one schema name; translate maps would not reach COPY and raw SQL."""
    metadata = sa.MetaData(schema=schema, naming_convention=NAMING)
    vector = ExtensionType("vector", extension_schema)
    sparse = ExtensionType("sparsevec", extension_schema)
    tables = (
        *collection_tables(metadata),
        *document_tables(metadata, vector, sparse),
        *transcript_tables(metadata),
    )
    by_name = {table.name: table for table in tables}
    return Tables(schema=schema, extension_schema=extension_schema, metadata=metadata, **by_name)


def build_metadata(schema: str = DEFAULT_SCHEMA, extension_schema: str = "public") -> sa.MetaData:
    """The metadata alone, for alembic."""
    return build_tables(schema, extension_schema).metadata
