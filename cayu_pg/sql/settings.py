"""Every SET that cayu_pg sends, in one message, and only for the transaction that needs it."""

from __future__ import annotations

import sqlalchemy as sa

MAX_EF_SEARCH = 1000
LOCK_TIMEOUT_MS = 30_000  # of index builds


def set_for_search(
    conn: sa.Connection, *, ef_search: int | None, timeout_ms: int | None, filtered: bool = False
) -> None:
    """Tune the current transaction for one search.

    Values are checked integers written as literals: SET takes no binds, and a distributed engine forwards no
    `set_config()`. The first setting makes such an engine forward the others; plain Postgres ignores it. JIT
    compiles for longer than a search takes. Candidates are scored and sorted again, so HNSW need not keep their order.
    A prepared statement's generic plan takes every filter for a selective one, and sorts all that pass it.
    """
    sets = ["SET LOCAL citus.propagate_set_commands = 'local'", "SET LOCAL jit = off"]
    if ef_search is not None:
        sets.append(f"SET LOCAL hnsw.ef_search = {max(1, min(int(ef_search), MAX_EF_SEARCH)):d}")
        sets.append("SET LOCAL hnsw.iterative_scan = relaxed_order")
    if filtered:
        sets.append("SET LOCAL plan_cache_mode = force_custom_plan")
    if timeout_ms is not None:
        sets.append(f"SET LOCAL statement_timeout = {int(timeout_ms):d}")
    _send(conn, sets)


def set_for_message_search(conn: sa.Connection) -> None:
    """Tune the current transaction for one search in messages, where an index serves whatever is asked for.

    How many messages hold a word is known only with the word: a generic plan, or a scan until enough of them were met,
    may read all. Workers start in more time than a bounded ranking takes.
    """
    _send(
        conn,
        [
            "SET LOCAL citus.propagate_set_commands = 'local'",
            "SET LOCAL jit = off",
            "SET LOCAL enable_seqscan = off",
            "SET LOCAL max_parallel_workers_per_gather = 0",
            "SET LOCAL plan_cache_mode = force_custom_plan",
        ],
    )


def set_for_build(conn: sa.Connection, *, memory_mb: int, workers: int, timeout_ms: int | None) -> None:
    """Give the session's index builds memory and workers; for a connection of our own, outside transactions.

    A build waits for transactions that began before it; it gives up behind one that stays open for long.
    """
    _send(
        conn,
        [
            f"SET maintenance_work_mem = '{int(memory_mb):d}MB'",
            f"SET max_parallel_maintenance_workers = {int(workers):d}",
            f"SET lock_timeout = {LOCK_TIMEOUT_MS:d}",
            f"SET statement_timeout = {int(timeout_ms or 0):d}",
        ],
    )


def set_timeouts(conn: sa.Connection, *, statement_ms: int | None, lock_ms: int | None) -> dict[str, str]:
    """Limit the statements of the current transaction; what the changed settings were before."""
    wanted = {"statement_timeout": statement_ms, "lock_timeout": lock_ms}
    changed = {name: value for name, value in wanted.items() if value is not None}
    asked = ", ".join(f"current_setting('{name}')" for name in changed)
    sets = [f"SET LOCAL {name} = {int(value):d}" for name, value in changed.items()]
    before = conn.exec_driver_sql("; ".join([f"SELECT {asked}", *sets])).one()
    return dict(zip(changed, before, strict=True))


def restore_timeouts(conn: sa.Connection, before: dict[str, str]) -> None:
    """Give the settings back their values of before, which the server has written itself."""
    _send(conn, [f"SET LOCAL {name} = '{value}'" for name, value in before.items()])


def _send(conn: sa.Connection, statements: list[str]) -> None:
    conn.exec_driver_sql("; ".join(statements))
