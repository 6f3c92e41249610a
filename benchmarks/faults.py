"""Faults at every message between client and server, in every operation, and what became of the rows.

    python -m benchmarks.faults [--every 1] [--only ingest search ...]

Starts a server of its own. A fault is one message that is hurt in one run of an operation; after it the tables are
checked and the operation is done again. `--every 3` takes every third message, and others for each kind of fault, so
that still each message is hurt by some.
"""

from __future__ import annotations

import argparse
import time

from cayu_pg import migrate
from tests.conftest import embedded_server, new_database, temporary_folder
from tests.fault_proxy import KINDS, Fault, Kind, fault_proxy
from tests.faulted import OPERATIONS, Ground, Operation, Tally, injure, messages_of


def measured(server: str, kind: type[Operation], fault: Kind, every: int) -> tuple[int, Tally]:
    with (
        new_database(server) as url,
        temporary_folder() as folder,
        fault_proxy(url, folder) as proxy,
    ):
        migrate(url)
        operation = kind(Ground.on(proxy, url))
        messages = messages_of(operation)
        # A little beyond the end, for statistics are refreshed in some runs and not in others.
        first = 1 + KINDS.index(fault) % every
        tally = injure(operation, [Fault(fault, n) for n in range(first, messages + 10, every)])
        operation.ground.close()
    return messages, tally


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="hurt every n-th message")
    parser.add_argument("--only", nargs="+", help="names of operations")
    options = parser.parse_args()
    print("| operation | messages | fault | injected | went on | our error | rows lost | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with embedded_server() as server:
        for operation in OPERATIONS:
            if options.only and operation.name not in options.only:
                continue
            for fault in KINDS:
                began = time.perf_counter()
                messages, tally = measured(server, operation, fault, options.every)
                injected = tally.outcomes.total() - tally.outcomes["untouched"]
                done = tally.outcomes["done"]
                seconds = time.perf_counter() - began
                print(
                    f"| {operation.name} | {messages} | {fault} | {injected} | {done} | {injected - done}"
                    f" | {tally.lost} | {seconds:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
