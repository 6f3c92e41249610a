"""`cayu-pg calibrate`: whether model and words fit a collection, and the fusion that follows, without judgements."""

from __future__ import annotations

import argparse
import json

from cayu_pg.calibrating import CALIBRATED, PROBES
from cayu_pg.cli import printing
from cayu_pg.cli.commands import open_existing, open_store

SUMMARY = "find out whether model and words fit a collection, and save the fusion that follows"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What `cayu-pg calibrate` takes beside the options of every command that opens a collection."""
    command.add_argument("--name", default=CALIBRATED, help="save the fusion as (%(default)s)")
    command.add_argument("--probes", type=int, default=PROBES, help="passages to ask for (%(default)s)")


def run_calibrate(options: argparse.Namespace) -> int:
    """`cayu-pg calibrate`."""
    with open_store(options) as store:
        report = open_existing(store, options).calibrate(
            name=options.name, probes=options.probes, progress=printing.counter("asking")
        )
    print(
        json.dumps({**report.model_dump(mode="json"), "fingerprint": report.fingerprint})
        if options.json
        else report
    )
    return 0
