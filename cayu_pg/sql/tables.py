"""The one description of the schema: what alembic compares against and every statement is built from.

Rules that keep a distributed engine possible (each table is distributed by its first key column): that column
is in every key, foreign key and WHERE; no IDENTITY, no triggers, no reg* columns; every constraint is named.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB, REGCLASS, TSVECTOR, UUID
from sqlalchemy.types import UserDefinedType

DEFAULT_SCHEMA = "cayu"
T = TypeVar("T")

NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(referred_table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}


class ExtensionType(UserDefinedType[Any]):
    """A type of the `vector` extension, named with the schema that the extension lives in."""

    cache_ok = True

    def __init__(self, name: str, extension_schema: str, dimensions: int | None = None) -> None:
        self.name = name
        self.extension_schema = extension_schema
        self.dimensions = dimensions

    def get_col_spec(self, **_: object) -> str:
        """The type as DDL and casts spell it."""
        size = "" if self.dimensions is None else f"({self.dimensions:d})"
        return f"{quoted(self.extension_schema)}.{self.name}{size}"


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


def quoted(identifier: str) -> str:
    """An SQL identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


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
    tables = {
        table.name: table
        for build in (_collections, _statistics, _records, _chunks, _transcripts)
        for table in build(metadata, vector, sparse)
    }
    return Tables(schema=schema, extension_schema=extension_schema, metadata=metadata, **tables)


def build_metadata(schema: str = DEFAULT_SCHEMA, extension_schema: str = "public") -> sa.MetaData:
    """The metadata alone, for alembic."""
    return build_tables(schema, extension_schema).metadata


def _tenant() -> tuple[sa.Column[str], sa.CheckConstraint]:
    return (
        sa.Column("tenant", sa.Text, nullable=False, comment="Whose row this is."),
        sa.CheckConstraint("tenant <> ''", name="tenant"),
    )


def _created(name: str = "created_at") -> sa.Column[Any]:
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        nullable=False,
        server_default=sa.func.now(),
        comment="When the row was written.",
    )


def _key(name: str = "collection_id") -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, comment="The collection; first in every key.")


def _record_id() -> sa.Column[str]:
    return sa.Column("record_id", sa.Text(collation="C"), nullable=False, comment="The document's own id.")


def _belongs(columns: list[str], table: str, referred: list[str]) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(columns, [f"{table}.{name}" for name in referred], ondelete="CASCADE")


def _next(metadata: sa.MetaData, sequence: str) -> sa.TextClause:
    sa.Sequence(sequence, metadata=metadata, schema=metadata.schema)
    literal = f"{quoted(metadata.schema or '')}.{sequence}".replace("'", "''")
    return sa.text(f"nextval('{literal}'::regclass)")


def _collections(metadata: sa.MetaData, *_: ExtensionType) -> tuple[sa.Table, ...]:
    collections = sa.Table(
        "collections",
        metadata,
        sa.Column(
            "id",
            sa.BigInteger,
            server_default=_next(metadata, "collection_id_seq"),
            autoincrement=False,
            comment="Short key used in every other table.",
        ),
        *_tenant(),
        sa.Column("name", sa.Text, nullable=False, comment="What applications call it."),
        sa.Column("text_config", sa.Text, nullable=False, comment="Text search configuration, by name."),
        sa.Column("analyzer", sa.Text, nullable=False, comment="Analyzer that prepares text, with version."),
        sa.Column("k1", sa.Double, nullable=False, comment="BM25 term saturation."),
        sa.Column("b", sa.Double, nullable=False, comment="BM25 length normalisation."),
        sa.Column("distance", sa.Text, nullable=False, comment="How vectors of new spaces are compared."),
        sa.Column("quantization", sa.Text, nullable=False, comment="none or binary, for new spaces."),
        sa.Column("active_space_id", sa.BigInteger, comment="Embedding space that searches use."),
        sa.Column("active_statistics", sa.Integer, comment="Statistics version that searches use."),
        sa.Column(
            "horizon",
            sa.BigInteger,
            nullable=False,
            server_default=sa.text("0"),
            comment="Before this sequence the history was pruned.",
        ),
        _created(),
        sa.Column(
            "features",
            JSONB,
            nullable=False,
            server_default=sa.text("'{}'::jsonb"),
            comment="Signals that hits carry into the fusion, by name.",
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name"),
        sa.UniqueConstraint("id", "tenant"),
        sa.CheckConstraint("name <> ''", name="name"),
        sa.CheckConstraint("k1 >= 0 AND b BETWEEN 0 AND 1", name="bm25"),
        sa.CheckConstraint("jsonb_typeof(features) = 'object'", name="features"),
        sa.CheckConstraint("distance IN ('cosine', 'inner_product', 'l2')", name="distance"),
        sa.CheckConstraint("quantization IN ('none', 'binary')", name="quantization"),
        comment="One searchable set of documents.",
    )
    spaces = sa.Table(
        "embedding_spaces",
        metadata,
        _key(),
        sa.Column(
            "space_id",
            sa.BigInteger,
            server_default=_next(metadata, "space_id_seq"),
            nullable=False,
            comment="Key of the space.",
        ),
        *_tenant(),
        sa.Column("model", sa.Text, nullable=False, comment="Name of the embedding model."),
        sa.Column("dimensions", sa.Integer, nullable=False, comment="Length of every vector."),
        sa.Column("distance", sa.Text, nullable=False, comment="cosine, inner_product or l2."),
        sa.Column(
            "quantization", sa.Text, nullable=False, comment="What the vector index holds: none, binary."
        ),
        sa.Column("fingerprint", sa.Text, nullable=False, comment="SHA-256 of model, size and distance."),
        sa.Column("state", sa.Text, nullable=False, comment="building, active or retired."),
        _created(),
        sa.PrimaryKeyConstraint("collection_id", "space_id"),
        _belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        sa.CheckConstraint("dimensions BETWEEN 1 AND 16000", name="dimensions"),
        sa.CheckConstraint("distance IN ('cosine', 'inner_product', 'l2')", name="distance"),
        sa.CheckConstraint("quantization IN ('none', 'binary')", name="quantization"),
        sa.CheckConstraint("state IN ('building', 'active', 'retired')", name="state"),
        sa.Index(
            None,
            "collection_id",
            unique=True,
            postgresql_where=sa.text("state = 'building'"),
        ),
        comment="One way of turning text into vectors.",
    )
    fusion = sa.Table(
        "fusion_configs",
        metadata,
        _key(),
        sa.Column("name", sa.Text, nullable=False, comment="Name given to search(fusion=...)."),
        *_tenant(),
        sa.Column("config", JSONB, nullable=False, comment="WeightedReciprocalRankFusionConfig as JSON."),
        sa.Column("fingerprint", sa.Text, nullable=False, comment="SHA-256 of the canonical configuration."),
        _created(),
        sa.Column("evidence", JSONB, comment="What it was earned from: a tuning, a calibration, or null."),
        sa.PrimaryKeyConstraint("collection_id", "name"),
        _belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        sa.CheckConstraint("jsonb_typeof(config) = 'object'", name="config"),
        comment="Named fusion configurations.",
    )
    return collections, spaces, fusion


def _statistics(metadata: sa.MetaData, *_: ExtensionType) -> tuple[sa.Table, ...]:
    versions = sa.Table(
        "statistics_versions",
        metadata,
        _key(),
        sa.Column("version", sa.Integer, nullable=False, comment="Counts up with each refresh."),
        *_tenant(),
        sa.Column("weights_version", sa.Integer, nullable=False, comment="The chunk_lexemes rows it reads."),
        sa.Column("chunks", sa.BigInteger, nullable=False, comment="Current chunks counted (N of BM25)."),
        sa.Column("average_length", sa.Double, nullable=False, comment="Mean words a chunk, of the weights."),
        sa.Column("sequence", sa.BigInteger, nullable=False, comment="The last write that was counted."),
        _created(),
        sa.PrimaryKeyConstraint("collection_id", "version"),
        _belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        comment="What one version of the word statistics was computed from.",
    )
    lexemes = sa.Table(
        "lexeme_statistics",
        metadata,
        _key(),
        sa.Column("version", sa.Integer, nullable=False, comment="The statistics version."),
        sa.Column("lexeme", sa.Text(collation="C"), nullable=False, comment="A word as tsvector keeps it."),
        *_tenant(),
        sa.Column("document_frequency", sa.BigInteger, nullable=False, comment="Chunks that hold it."),
        sa.Column("max_weight", sa.REAL, nullable=False, comment="Largest weight in any of them."),
        sa.PrimaryKeyConstraint("collection_id", "version", "lexeme"),
        _belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        comment="How often each word occurs in a collection.",
    )
    return versions, lexemes


def _records(metadata: sa.MetaData, *_: ExtensionType) -> tuple[sa.Table, ...]:
    batches = sa.Table(
        "batches",
        metadata,
        _key(),
        sa.Column(
            "batch_id",
            sa.BigInteger,
            server_default=_next(metadata, "batch_id_seq"),
            nullable=False,
            comment="Key of the write.",
        ),
        *_tenant(),
        sa.Column("sequence", sa.BigInteger, nullable=False, comment="Order of commits in the collection."),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False, comment="Time of the order."),
        sa.Column("chunks_added", sa.Integer, nullable=False, comment="Chunks that came into search."),
        sa.Column("chunks_removed", sa.Integer, nullable=False, comment="Chunks that left it."),
        sa.PrimaryKeyConstraint("collection_id", "batch_id"),
        sa.UniqueConstraint("collection_id", "sequence"),
        _belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        comment="One committed write; its sequence orders revisions.",
    )
    records = sa.Table(
        "records",
        metadata,
        _key(),
        _record_id(),
        *_tenant(),
        sa.Column("record_type", sa.Text, nullable=False, comment="Kind of document."),
        sa.Column("current_revision", sa.Integer, nullable=False, comment="0 until the first is written."),
        sa.Column("deleted_at", sa.DateTime(timezone=True), comment="Set while the record is deleted."),
        _created(),
        sa.PrimaryKeyConstraint("collection_id", "record_id"),
        _belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        sa.CheckConstraint("octet_length(record_id) BETWEEN 1 AND 1024", name="record_id"),
        sa.CheckConstraint("current_revision >= 0", name="current_revision"),
        comment="One document, whatever it says now.",
    )
    revisions = sa.Table(
        "revisions",
        metadata,
        _key(),
        _record_id(),
        sa.Column("revision", sa.Integer, nullable=False, comment="1, 2, ... within the record."),
        *_tenant(),
        sa.Column("batch_id", sa.BigInteger, nullable=False, comment="The write that made it."),
        sa.Column("record_type", sa.Text, nullable=False, comment="Kind of document."),
        sa.Column("title", sa.Text, comment="Title, if it has one."),
        sa.Column("content", sa.Text, comment="The whole text; null says the record was deleted."),
        sa.Column("content_hash", BYTEA, comment="SHA-256 of the text."),
        sa.Column("digest", BYTEA, comment="SHA-256 of text, title, metadata, source, type and cuts."),
        sa.Column("metadata", JSONB, nullable=False, comment="The document's metadata."),
        sa.Column("source", sa.Text, comment="Where it came from."),
        _created("recorded_at"),
        sa.PrimaryKeyConstraint("collection_id", "record_id", "revision"),
        _belongs(["collection_id", "record_id"], "records", ["collection_id", "record_id"]),
        sa.Index(None, "collection_id", "batch_id"),
        sa.CheckConstraint("jsonb_typeof(metadata) = 'object'", name="metadata"),
        sa.CheckConstraint("(content IS NULL) = (content_hash IS NULL)", name="content_hash"),
        comment="What a record said at one time; never changed.",
    )
    return batches, records, revisions


def _chunks(metadata: sa.MetaData, vector: ExtensionType, sparse: ExtensionType) -> tuple[sa.Table, ...]:
    current = "Whether the record's current revision holds it."
    chunks = sa.Table(
        "chunks",
        metadata,
        _key(),
        sa.Column(
            "chunk_id",
            sa.BigInteger,
            server_default=_next(metadata, "chunk_id_seq"),
            nullable=False,
            comment="Key of the chunk.",
        ),
        *_tenant(),
        _record_id(),
        sa.Column("content_hash", BYTEA, nullable=False, comment="SHA-256 of the text."),
        sa.Column("current", sa.Boolean, nullable=False, comment=current),
        sa.Column("metadata", JSONB, nullable=False, comment="Of the current revision, for filters."),
        sa.Column("text", sa.Text, nullable=False, comment="The piece of text that is searched."),
        sa.PrimaryKeyConstraint("collection_id", "chunk_id"),
        sa.UniqueConstraint("collection_id", "content_hash", "record_id"),
        _belongs(["collection_id", "record_id"], "records", ["collection_id", "record_id"]),
        comment="One piece of a record's text.",
    )
    placements = sa.Table(
        "revision_chunks",
        metadata,
        _key(),
        _record_id(),
        sa.Column("revision", sa.Integer, nullable=False, comment="Revision that holds the chunk."),
        sa.Column("ordinal", sa.Integer, nullable=False, comment="Place of the chunk, from 0."),
        *_tenant(),
        sa.Column("chunk_id", sa.BigInteger, nullable=False, comment="The chunk."),
        sa.Column("start_offset", sa.Integer, nullable=False, comment="First character in the content."),
        sa.Column("end_offset", sa.Integer, nullable=False, comment="One past the last character."),
        sa.PrimaryKeyConstraint("collection_id", "record_id", "revision", "ordinal"),
        _belongs(
            ["collection_id", "record_id", "revision"],
            "revisions",
            ["collection_id", "record_id", "revision"],
        ),
        _belongs(["collection_id", "chunk_id"], "chunks", ["collection_id", "chunk_id"]),
        sa.Index(None, "collection_id", "chunk_id", "revision"),
        sa.CheckConstraint("ordinal >= 0 AND start_offset >= 0 AND end_offset > start_offset", name="place"),
        comment="Where each chunk stands in a revision.",
    )
    embeddings = sa.Table(
        "chunk_embeddings",
        metadata,
        _key(),
        sa.Column("chunk_id", sa.BigInteger, nullable=False, comment="The chunk."),
        sa.Column("space_id", sa.BigInteger, nullable=False, comment="The embedding space."),
        *_tenant(),
        sa.Column("current", sa.Boolean, nullable=False, comment=current),
        sa.Column("embedding", vector, nullable=False, comment="The vector, float32."),
        sa.PrimaryKeyConstraint("collection_id", "chunk_id", "space_id"),
        _belongs(["collection_id", "chunk_id"], "chunks", ["collection_id", "chunk_id"]),
        _belongs(["collection_id", "space_id"], "embedding_spaces", ["collection_id", "space_id"]),
        comment="The vectors of chunks; narrow, so that scans stay cheap.",
    )
    lexemes = sa.Table(
        "chunk_lexemes",
        metadata,
        _key(),
        sa.Column("chunk_id", sa.BigInteger, nullable=False, comment="The chunk."),
        sa.Column("weights_version", sa.Integer, nullable=False, comment="Version that gave the weights."),
        *_tenant(),
        sa.Column("current", sa.Boolean, nullable=False, comment=current),
        sa.Column("length", sa.Integer, nullable=False, comment="Words counted, stop words left out."),
        sa.Column("tsv", TSVECTOR, nullable=False, comment="Words with positions, for matching."),
        sa.Column("weights", sparse, nullable=False, comment="BM25 weight at the dimension of each word."),
        sa.PrimaryKeyConstraint("collection_id", "chunk_id", "weights_version"),
        _belongs(["collection_id", "chunk_id"], "chunks", ["collection_id", "chunk_id"]),
        comment="The words of chunks; narrow, so that scans stay cheap.",
    )
    return chunks, placements, embeddings, lexemes


def _transcripts(metadata: sa.MetaData, *_: ExtensionType) -> tuple[sa.Table, ...]:
    def key() -> sa.Column[Any]:
        return sa.Column("transcript_key", UUID, nullable=False, comment="Hash of tenant and transcript id.")

    def position(name: str = "position") -> sa.Column[int]:
        return sa.Column(name, sa.BigInteger, nullable=False, comment="Place in the log, from 0.")

    transcripts = sa.Table(
        "transcripts",
        metadata,
        key(),
        *_tenant(),
        sa.Column("transcript_id", sa.Text, nullable=False, comment="What applications call it."),
        sa.Column("next_position", sa.BigInteger, nullable=False, comment="Position of the next message."),
        sa.Column("metadata", JSONB, nullable=False, comment="Free to use."),
        _created(),
        sa.PrimaryKeyConstraint("transcript_key"),
        sa.CheckConstraint("octet_length(transcript_id) BETWEEN 1 AND 1024", name="transcript_id"),
        sa.CheckConstraint("next_position >= 0", name="next_position"),
        sa.CheckConstraint("jsonb_typeof(metadata) = 'object'", name="metadata"),
        sa.Index(None, "tenant", "transcript_key"),
        comment="One conversation.",
    )
    messages = sa.Table(
        "transcript_messages",
        metadata,
        key(),
        position(),
        *_tenant(),
        sa.Column("role", sa.Text, nullable=False, comment="user, assistant, system or tool."),
        sa.Column("content", JSONB, nullable=False, comment="The parts of the message."),
        sa.Column("idempotency_key", sa.Text, comment="Key of the append that wrote it."),
        _created(),
        sa.PrimaryKeyConstraint("transcript_key", "position"),
        _belongs(["transcript_key"], "transcripts", ["transcript_key"]),
        sa.CheckConstraint("position >= 0", name="position"),
        sa.CheckConstraint("role IN ('user', 'assistant', 'system', 'tool')", name="role"),
        sa.CheckConstraint(
            "jsonb_typeof(content) = 'array' AND jsonb_array_length(content) > 0"
            " AND NOT jsonb_path_exists(content, 'strict $[*] ? (@.type() != \"object\")')",
            name="content",
        ),
        sa.CheckConstraint("char_length(idempotency_key) BETWEEN 1 AND 512", name="idempotency_key"),
        sa.Index(None, "created_at", postgresql_using="brin"),
        comment="One message of a conversation.",
    )
    lexemes = sa.Table(
        "message_lexemes",
        metadata,
        key(),
        position(),
        *_tenant(),
        sa.Column("length", sa.Integer, nullable=False, comment="Words counted."),
        sa.Column("truncated", sa.Boolean, nullable=False, comment="Only the beginning was indexed."),
        sa.Column("tsv", TSVECTOR, nullable=False, comment="Words with positions."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When the words were written; orders them by age.",
        ),
        sa.PrimaryKeyConstraint("transcript_key", "position"),
        _belongs(["transcript_key", "position"], "transcript_messages", ["transcript_key", "position"]),
        sa.CheckConstraint("length >= 0", name="length"),
        sa.Index(None, "tsv", postgresql_using="gin"),
        sa.Index(None, "tenant", "created_at"),
        comment="The words of messages; narrow, so that scans stay cheap.",
    )
    appends = sa.Table(
        "transcript_appends",
        metadata,
        key(),
        sa.Column("key_hash", BYTEA, nullable=False, comment="SHA-256 of the idempotency key."),
        *_tenant(),
        sa.Column("messages_digest", BYTEA, nullable=False, comment="SHA-256 of the messages."),
        position("first_position"),
        position("last_position"),
        _created(),
        sa.PrimaryKeyConstraint("transcript_key", "key_hash"),
        _belongs(["transcript_key"], "transcripts", ["transcript_key"]),
        sa.CheckConstraint(
            "octet_length(key_hash) = 32 AND octet_length(messages_digest) = 32", name="hashes"
        ),
        sa.CheckConstraint("first_position >= 0 AND last_position >= first_position", name="positions"),
        comment="Appends that gave an idempotency key; outlives deleted messages.",
    )
    return transcripts, messages, lexemes, appends
