"""Features of a collection, evidence beside a fusion configuration, and the view of a model change.

Revision ID: cayu_0002
Revises: cayu_0001
"""

from __future__ import annotations

from alembic import op

from cayu_pg.migrating import escaped, migration_target

revision = "cayu_0002"
down_revision = "cayu_0001"
branch_labels = None
depends_on = None

# Columns and constraints in statements of their own: a distributed engine refuses them together.
UPGRADE = (
    "ALTER TABLE {schema}.collections ADD COLUMN features JSONB DEFAULT '{{}}'::jsonb NOT NULL",
    """ALTER TABLE {schema}.collections
    ADD CONSTRAINT ck_collections_features CHECK (jsonb_typeof(features) = 'object')""",
    "COMMENT ON COLUMN {schema}.collections.features IS 'Signals that hits carry into the fusion, by name.'",
    "ALTER TABLE {schema}.fusion_configs ADD COLUMN evidence JSONB",
    """COMMENT ON COLUMN {schema}.fusion_configs.evidence IS
    'What it was earned from: a tuning, a calibration, or null.'""",
    "ALTER TABLE {schema}.statistics_versions DROP COLUMN newest_chunk_id",
    """CREATE UNIQUE INDEX ix_embedding_spaces_collection_id ON {schema}.embedding_spaces (collection_id)
    WHERE state = 'building'""",
    """CREATE VIEW {schema}.embedding_progress WITH (security_invoker = true) AS
SELECT c.tenant, c.name AS collection, s.space_id, s.model, s.dimensions, s.state, n.chunks,
       e.embedded, n.chunks - e.embedded AS pending
FROM {schema}.collections c
JOIN {schema}.embedding_spaces s ON s.collection_id = c.id
CROSS JOIN LATERAL (SELECT count(*) AS chunks FROM {schema}.chunks k WHERE k.collection_id = c.id) n
CROSS JOIN LATERAL (SELECT count(*) AS embedded FROM {schema}.chunk_embeddings e
                    WHERE e.collection_id = c.id AND e.space_id = s.space_id) e""",
    """COMMENT ON VIEW {schema}.embedding_progress IS
    'How many chunks, earlier revisions included, have a vector in each embedding space.'""",
)

DOWNGRADE = (
    "DROP VIEW {schema}.embedding_progress",
    "DROP INDEX {schema}.ix_embedding_spaces_collection_id",
    "ALTER TABLE {schema}.statistics_versions ADD COLUMN newest_chunk_id BIGINT DEFAULT 0 NOT NULL",
    "ALTER TABLE {schema}.statistics_versions ALTER COLUMN newest_chunk_id DROP DEFAULT",
    "COMMENT ON COLUMN {schema}.statistics_versions.newest_chunk_id IS 'No newer chunk was counted.'",
    "ALTER TABLE {schema}.fusion_configs DROP COLUMN evidence",
    "ALTER TABLE {schema}.collections DROP COLUMN features",
)


def upgrade() -> None:
    """Add what a collection declares, what a configuration was earned from, and the view."""
    _run(UPGRADE)


def downgrade() -> None:
    """Take it away again."""
    _run(DOWNGRADE)


def _run(statements: tuple[str, ...]) -> None:
    schema = migration_target(op.get_context()).schema
    for statement in statements:
        op.execute(escaped(statement.format(schema=schema)))
