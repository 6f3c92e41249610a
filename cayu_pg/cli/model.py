"""`cayu-pg model`: which models a collection has vectors of, and going over to another."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict

from cayu_pg.changing_model import ChangeProgress
from cayu_pg.cli import printing
from cayu_pg.cli.commands import open_embedder, open_existing, open_store
from cayu_pg.collection import Collection

SUMMARY = "show the embedding models of a collection, or change to another"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What `cayu-pg model` takes beside the options of every command."""
    command.add_argument("to", nargs="?", metavar="MODEL", help="change to this model, by name or path")
    command.add_argument("-c", "--collection", default="documents", help="collection (%(default)s)")
    command.add_argument("--drop", metavar="MODEL", help="delete the vectors of a model that is not in use")
    command.set_defaults(model=None)


def run_model(options: argparse.Namespace) -> int:
    """`cayu-pg model [MODEL]`."""
    with open_store(options) as store:
        collection = open_existing(store, options)
        done = _act(collection, options)
        spaces = collection.spaces()
    if options.json:
        facts = [{**asdict(each), "pending": each.pending} for each in spaces]
        print(json.dumps({**done, "spaces": facts}))
        return 0
    print("".join(f"{name.replace('_', ' ')}: {value}\n" for name, value in done.items()), end="")
    printing.print_table(
        ["model", "dimensions", "state", "chunks", "pending"],
        [
            [each.model, str(each.dimensions), each.state, str(each.chunks), str(each.pending)]
            for each in spaces
        ],
    )
    return 0


def _act(collection: Collection, options: argparse.Namespace) -> dict[str, object]:
    done: dict[str, object] = {}
    if options.to is not None:
        progress = None if options.json or not sys.stderr.isatty() else _line()
        done |= collection.change_embedder(open_embedder(options.to), progress=progress).model_dump(
            mode="json"
        )
    if options.drop is not None:
        done["vectors_dropped"] = collection.drop_space(options.drop)
    return done


def _line() -> Callable[[ChangeProgress], None]:
    def show(state: ChangeProgress) -> None:
        rate = state.filled / state.seconds if state.seconds else 0.0
        left = f", {state.pending / rate:.0f} s left" if rate else ""
        end = "" if state.pending else "\n"
        print(
            f"\r{state.filled} chunks ({rate:.0f}/s), {state.pending} pending{left}   ",
            end=end,
            file=sys.stderr,
        )

    return show
