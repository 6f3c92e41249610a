"""Runs the migrations: from `alembic`, from `cayu-pg migrate`, or on a connection that the caller passes."""

from alembic import context

from cayu_pg.migrating import run_migrations

run_migrations(context)
