"""Failures: a connection that is cut, goes down, loses or delays a message, at any message of an operation.

A sample of messages; `python -m benchmarks.faults` takes every one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import new_database, temporary_folder
from tests.fault_proxy import KINDS, Fault, fault_proxy
from tests.faulted import (
    OPERATIONS,
    Append,
    AsyncAppend,
    Ground,
    KeyedAppend,
    Migrate,
    Operation,
    injure,
    messages_of,
)

FAULTS = 4  # of each operation


@pytest.fixture(scope="module")
def ground(server_url: str, migrated_template: str) -> Iterator[Ground]:
    with (
        new_database(server_url, migrated_template) as url,
        temporary_folder() as folder,
        fault_proxy(url, folder) as proxy,
    ):
        ground = Ground.on(proxy, url)
        yield ground
        ground.close()


ERRORS = {"ConnectionLost", "OutcomeUnknown", "Unreachable"}


def named(operation: type[Operation]) -> str:
    return operation.name


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_failures_at_any_message_leave_nothing_half_written_and_the_next_call_works(
    ground: Ground, operation: type[Operation]
) -> None:
    hurt = operation(ground)
    messages = messages_of(hurt)
    faults = [Fault(KINDS[n % len(KINDS)], 1 + n * messages // FAULTS) for n in range(FAULTS)]
    tally = injure(hurt, faults)
    assert tally.lost == 0
    assert tally.outcomes.keys() <= {"done", "untouched", *ERRORS, *hurt.allowed}
    assert ERRORS & tally.outcomes.keys()


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each is not Migrate], ids=named)
def test_failures_of_a_connection_before_the_commit_are_unseen(
    ground: Ground, operation: type[Operation]
) -> None:
    hurt = operation(ground)
    messages = messages_of(hurt)
    tally = injure(hurt, [Fault("cut", messages * share // 8) for share in (4, 6, 7)])
    assert tally.lost == 0
    assert tally.outcomes.keys() - hurt.allowed <= {"done", "untouched"}


@pytest.mark.parametrize("operation", [Append, KeyedAppend, AsyncAppend], ids=named)
def test_failures_during_the_commit_are_told_unless_the_write_can_be_repeated(
    ground: Ground, operation: type[Operation]
) -> None:
    hurt = operation(ground)
    messages = messages_of(hurt)
    tally = injure(hurt, [Fault("cut", n) for n in range(messages - 6, messages + 1)])
    assert tally.lost == 0
    assert ("OutcomeUnknown" in tally.outcomes) is not hurt.repeats
    assert tally.outcomes.keys() <= {"done", "untouched", "OutcomeUnknown"}
