"""A soak of some seconds; `python -m benchmarks.soak` runs for ten minutes."""

from __future__ import annotations

import asyncio

from benchmarks.soak import soak_for


def test_a_soak_of_16_workers_has_no_errors_and_leaks_no_connection(database_url: str) -> None:
    soak = asyncio.run(soak_for(5, 16, database_url, every=2))
    assert soak.errors == []
    assert soak.calls.keys() >= {"ingest", "search", "append", "delete"}
    assert max(each.sessions for each in soak.samples) <= 15  # what a pool has at most
