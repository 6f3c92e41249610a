"""Transcripts: conversations, their messages, the words of those, and the appends that named a key."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSONB, TSVECTOR, UUID

from cayu_pg.sql.columns import belongs, created, tenant


def transcript_tables(metadata: sa.MetaData) -> tuple[sa.Table, ...]:
    """The tables of transcripts, their messages with the words of those, and appends by their keys."""
    build = (_transcripts, _transcript_messages, _message_lexemes, _transcript_appends)
    return tuple(table(metadata) for table in build)


def _key() -> sa.Column[Any]:
    return sa.Column("transcript_key", UUID, nullable=False, comment="Hash of tenant and transcript id.")


def _position(name: str = "position") -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, comment="Place in the log, from 0.")


def _transcripts(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "transcripts",
        metadata,
        _key(),
        *tenant(),
        sa.Column("transcript_id", sa.Text, nullable=False, comment="What applications call it."),
        sa.Column("next_position", sa.BigInteger, nullable=False, comment="Position of the next message."),
        sa.Column("metadata", JSONB, nullable=False, comment="Free to use."),
        created(),
        sa.PrimaryKeyConstraint("transcript_key"),
        sa.CheckConstraint("octet_length(transcript_id) BETWEEN 1 AND 1024", name="transcript_id"),
        sa.CheckConstraint("next_position >= 0", name="next_position"),
        sa.CheckConstraint("jsonb_typeof(metadata) = 'object'", name="metadata"),
        sa.Index(None, "tenant", "transcript_key"),
        comment="One conversation.",
    )


def _transcript_messages(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "transcript_messages",
        metadata,
        _key(),
        _position(),
        *tenant(),
        sa.Column("role", sa.Text, nullable=False, comment="user, assistant, system or tool."),
        sa.Column("content", JSONB, nullable=False, comment="The parts of the message."),
        sa.Column("idempotency_key", sa.Text, comment="Key of the append that wrote it."),
        created(),
        sa.PrimaryKeyConstraint("transcript_key", "position"),
        belongs(["transcript_key"], "transcripts", ["transcript_key"]),
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


def _message_lexemes(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "message_lexemes",
        metadata,
        _key(),
        _position(),
        *tenant(),
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
        belongs(["transcript_key", "position"], "transcript_messages", ["transcript_key", "position"]),
        sa.CheckConstraint("length >= 0", name="length"),
        sa.Index(None, "tsv", postgresql_using="gin"),
        sa.Index(None, "tenant", "created_at"),
        comment="The words of messages; narrow, so that scans stay cheap.",
    )


def _transcript_appends(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "transcript_appends",
        metadata,
        _key(),
        sa.Column("key_hash", BYTEA, nullable=False, comment="SHA-256 of the idempotency key."),
        *tenant(),
        sa.Column("messages_digest", BYTEA, nullable=False, comment="SHA-256 of the messages."),
        _position("first_position"),
        _position("last_position"),
        created(),
        sa.PrimaryKeyConstraint("transcript_key", "key_hash"),
        belongs(["transcript_key"], "transcripts", ["transcript_key"]),
        sa.CheckConstraint(
            "octet_length(key_hash) = 32 AND octet_length(messages_digest) = 32", name="hashes"
        ),
        sa.CheckConstraint("first_position >= 0 AND last_position >= first_position", name="positions"),
        comment="Appends that gave an idempotency key; outlives deleted messages.",
    )
