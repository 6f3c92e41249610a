"""Documents: the writes that brought them, records with their revisions, and chunks with vectors and words."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSONB, TSVECTOR

from cayu_pg.sql.columns import belongs, created, key, next_of, record_id, tenant
from cayu_pg.sql.identifiers import ExtensionType

CURRENT = "Whether the record's current revision holds it."


def document_tables(
    metadata: sa.MetaData, vector: ExtensionType, sparse: ExtensionType
) -> tuple[sa.Table, ...]:
    """The tables of writes, records, revisions and chunks, and of the vectors and words of those."""
    build = (_batches, _records, _revisions, _chunks, _revision_chunks)
    return (
        *(table(metadata) for table in build),
        _chunk_embeddings(metadata, vector),
        _chunk_lexemes(metadata, sparse),
    )


def _batches(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "batches",
        metadata,
        key(),
        sa.Column(
            "batch_id",
            sa.BigInteger,
            server_default=next_of(metadata, "batch_id_seq"),
            nullable=False,
            comment="Key of the write.",
        ),
        *tenant(),
        sa.Column("sequence", sa.BigInteger, nullable=False, comment="Order of commits in the collection."),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False, comment="Time of the order."),
        sa.Column("chunks_added", sa.Integer, nullable=False, comment="Chunks that came into search."),
        sa.Column("chunks_removed", sa.Integer, nullable=False, comment="Chunks that left it."),
        sa.PrimaryKeyConstraint("collection_id", "batch_id"),
        sa.UniqueConstraint("collection_id", "sequence"),
        belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        comment="One committed write; its sequence orders revisions.",
    )


def _records(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "records",
        metadata,
        key(),
        record_id(),
        *tenant(),
        sa.Column("record_type", sa.Text, nullable=False, comment="Kind of document."),
        sa.Column("current_revision", sa.Integer, nullable=False, comment="0 until the first is written."),
        sa.Column("deleted_at", sa.DateTime(timezone=True), comment="Set while the record is deleted."),
        created(),
        sa.PrimaryKeyConstraint("collection_id", "record_id"),
        belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        sa.CheckConstraint("octet_length(record_id) BETWEEN 1 AND 1024", name="record_id"),
        sa.CheckConstraint("current_revision >= 0", name="current_revision"),
        comment="One document, whatever it says now.",
    )


def _revisions(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "revisions",
        metadata,
        key(),
        record_id(),
        sa.Column("revision", sa.Integer, nullable=False, comment="1, 2, ... within the record."),
        *tenant(),
        sa.Column("batch_id", sa.BigInteger, nullable=False, comment="The write that made it."),
        sa.Column("record_type", sa.Text, nullable=False, comment="Kind of document."),
        sa.Column("title", sa.Text, comment="Title, if it has one."),
        sa.Column("content", sa.Text, comment="The whole text; null says the record was deleted."),
        sa.Column("content_hash", BYTEA, comment="SHA-256 of the text."),
        sa.Column("digest", BYTEA, comment="SHA-256 of text, title, metadata, source, type and cuts."),
        sa.Column("metadata", JSONB, nullable=False, comment="The document's metadata."),
        sa.Column("source", sa.Text, comment="Where it came from."),
        created("recorded_at"),
        sa.PrimaryKeyConstraint("collection_id", "record_id", "revision"),
        belongs(["collection_id", "record_id"], "records", ["collection_id", "record_id"]),
        sa.Index(None, "collection_id", "batch_id"),
        sa.CheckConstraint("jsonb_typeof(metadata) = 'object'", name="metadata"),
        sa.CheckConstraint("(content IS NULL) = (content_hash IS NULL)", name="content_hash"),
        comment="What a record said at one time; never changed.",
    )


def _chunks(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "chunks",
        metadata,
        key(),
        sa.Column(
            "chunk_id",
            sa.BigInteger,
            server_default=next_of(metadata, "chunk_id_seq"),
            nullable=False,
            comment="Key of the chunk.",
        ),
        *tenant(),
        record_id(),
        sa.Column("content_hash", BYTEA, nullable=False, comment="SHA-256 of the text."),
        sa.Column("current", sa.Boolean, nullable=False, comment=CURRENT),
        sa.Column("metadata", JSONB, nullable=False, comment="Of the current revision, for filters."),
        sa.Column("text", sa.Text, nullable=False, comment="The piece of text that is searched."),
        sa.PrimaryKeyConstraint("collection_id", "chunk_id"),
        sa.UniqueConstraint("collection_id", "content_hash", "record_id"),
        belongs(["collection_id", "record_id"], "records", ["collection_id", "record_id"]),
        comment="One piece of a record's text.",
    )


def _revision_chunks(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "revision_chunks",
        metadata,
        key(),
        record_id(),
        sa.Column("revision", sa.Integer, nullable=False, comment="Revision that holds the chunk."),
        sa.Column("ordinal", sa.Integer, nullable=False, comment="Place of the chunk, from 0."),
        *tenant(),
        sa.Column("chunk_id", sa.BigInteger, nullable=False, comment="The chunk."),
        sa.Column("start_offset", sa.Integer, nullable=False, comment="First character in the content."),
        sa.Column("end_offset", sa.Integer, nullable=False, comment="One past the last character."),
        sa.PrimaryKeyConstraint("collection_id", "record_id", "revision", "ordinal"),
        belongs(
            ["collection_id", "record_id", "revision"],
            "revisions",
            ["collection_id", "record_id", "revision"],
        ),
        belongs(["collection_id", "chunk_id"], "chunks", ["collection_id", "chunk_id"]),
        sa.Index(None, "collection_id", "chunk_id", "revision"),
        sa.CheckConstraint("ordinal >= 0 AND start_offset >= 0 AND end_offset > start_offset", name="place"),
        comment="Where each chunk stands in a revision.",
    )


def _chunk_embeddings(metadata: sa.MetaData, vector: ExtensionType) -> sa.Table:
    return sa.Table(
        "chunk_embeddings",
        metadata,
        key(),
        sa.Column("chunk_id", sa.BigInteger, nullable=False, comment="The chunk."),
        sa.Column("space_id", sa.BigInteger, nullable=False, comment="The embedding space."),
        *tenant(),
        sa.Column("current", sa.Boolean, nullable=False, comment=CURRENT),
        sa.Column("embedding", vector, nullable=False, comment="The vector, float32."),
        sa.PrimaryKeyConstraint("collection_id", "chunk_id", "space_id"),
        belongs(["collection_id", "chunk_id"], "chunks", ["collection_id", "chunk_id"]),
        belongs(["collection_id", "space_id"], "embedding_spaces", ["collection_id", "space_id"]),
        comment="The vectors of chunks; narrow, so that scans stay cheap.",
    )


def _chunk_lexemes(metadata: sa.MetaData, sparse: ExtensionType) -> sa.Table:
    return sa.Table(
        "chunk_lexemes",
        metadata,
        key(),
        sa.Column("chunk_id", sa.BigInteger, nullable=False, comment="The chunk."),
        sa.Column("weights_version", sa.Integer, nullable=False, comment="Version that gave the weights."),
        *tenant(),
        sa.Column("current", sa.Boolean, nullable=False, comment=CURRENT),
        sa.Column("length", sa.Integer, nullable=False, comment="Words counted, stop words left out."),
        sa.Column("tsv", TSVECTOR, nullable=False, comment="Words with positions, for matching."),
        sa.Column("weights", sparse, nullable=False, comment="BM25 weight at the dimension of each word."),
        sa.PrimaryKeyConstraint("collection_id", "chunk_id", "weights_version"),
        belongs(["collection_id", "chunk_id"], "chunks", ["collection_id", "chunk_id"]),
        comment="The words of chunks; narrow, so that scans stay cheap.",
    )
