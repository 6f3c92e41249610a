"""Retrieval in the Postgres you already run."""
