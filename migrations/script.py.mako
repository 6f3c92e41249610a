"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from __future__ import annotations

from alembic import op

from cayu_pg.migrating import migration_target

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    target = migration_target(op.get_context())
    ${upgrades if upgrades else ""}


def downgrade() -> None:
    target = migration_target(op.get_context())
    ${downgrades if downgrades else ""}
