"""Collections and what belongs to each as a whole: embedding spaces, fusion configurations, word statistics."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from cayu_pg.sql.columns import belongs, created, key, next_of, tenant


def collection_tables(metadata: sa.MetaData) -> tuple[sa.Table, ...]:
    """The tables of collections, their embedding spaces and fusion configurations, and their word statistics."""
    build = (_collections, _embedding_spaces, _fusion_configs, _statistics_versions, _lexeme_statistics)
    return tuple(table(metadata) for table in build)


def _collections(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "collections",
        metadata,
        sa.Column(
            "id",
            sa.BigInteger,
            server_default=next_of(metadata, "collection_id_seq"),
            autoincrement=False,
            comment="Short key used in every other table.",
        ),
        *tenant(),
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
        created(),
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


def _embedding_spaces(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "embedding_spaces",
        metadata,
        key(),
        sa.Column(
            "space_id",
            sa.BigInteger,
            server_default=next_of(metadata, "space_id_seq"),
            nullable=False,
            comment="Key of the space.",
        ),
        *tenant(),
        sa.Column("model", sa.Text, nullable=False, comment="Name of the embedding model."),
        sa.Column("dimensions", sa.Integer, nullable=False, comment="Length of every vector."),
        sa.Column("distance", sa.Text, nullable=False, comment="cosine, inner_product or l2."),
        sa.Column(
            "quantization", sa.Text, nullable=False, comment="What the vector index holds: none, binary."
        ),
        sa.Column("fingerprint", sa.Text, nullable=False, comment="SHA-256 of model, size and distance."),
        sa.Column("state", sa.Text, nullable=False, comment="building, active or retired."),
        created(),
        sa.PrimaryKeyConstraint("collection_id", "space_id"),
        belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
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


def _fusion_configs(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "fusion_configs",
        metadata,
        key(),
        sa.Column("name", sa.Text, nullable=False, comment="Name given to search(fusion=...)."),
        *tenant(),
        sa.Column("config", JSONB, nullable=False, comment="WeightedReciprocalRankFusionConfig as JSON."),
        sa.Column("fingerprint", sa.Text, nullable=False, comment="SHA-256 of the canonical configuration."),
        created(),
        sa.Column("evidence", JSONB, comment="What it was earned from: a tuning, a calibration, or null."),
        sa.PrimaryKeyConstraint("collection_id", "name"),
        belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        sa.CheckConstraint("jsonb_typeof(config) = 'object'", name="config"),
        comment="Named fusion configurations.",
    )


def _statistics_versions(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "statistics_versions",
        metadata,
        key(),
        sa.Column("version", sa.Integer, nullable=False, comment="Counts up with each refresh."),
        *tenant(),
        sa.Column("weights_version", sa.Integer, nullable=False, comment="The chunk_lexemes rows it reads."),
        sa.Column("chunks", sa.BigInteger, nullable=False, comment="Current chunks counted (N of BM25)."),
        sa.Column("average_length", sa.Double, nullable=False, comment="Mean words a chunk, of the weights."),
        sa.Column("sequence", sa.BigInteger, nullable=False, comment="The last write that was counted."),
        created(),
        sa.PrimaryKeyConstraint("collection_id", "version"),
        belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        comment="What one version of the word statistics was computed from.",
    )


def _lexeme_statistics(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "lexeme_statistics",
        metadata,
        key(),
        sa.Column("version", sa.Integer, nullable=False, comment="The statistics version."),
        sa.Column("lexeme", sa.Text(collation="C"), nullable=False, comment="A word as tsvector keeps it."),
        *tenant(),
        sa.Column("document_frequency", sa.BigInteger, nullable=False, comment="Chunks that hold it."),
        sa.Column("max_weight", sa.REAL, nullable=False, comment="Largest weight in any of them."),
        sa.PrimaryKeyConstraint("collection_id", "version", "lexeme"),
        belongs(["collection_id", "tenant"], "collections", ["id", "tenant"]),
        comment="How often each word occurs in a collection.",
    )
