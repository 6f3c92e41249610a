"""The commands and their options."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, TypeAlias

from cayu_pg.cli import calibrate, commands, evaluate, history, model, transcripts
from cayu_pg.cli.demo import run_demo
from cayu_pg.defaults import TEXT_CONFIG
from cayu_pg.sql.tables import DEFAULT_SCHEMA

_Kinds: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="cayu-pg",
        description="A retrieval store in the Postgres you already run.",
        epilog="Without --url or CAYU_PG_URL a private embedded PostgreSQL is used.",
    )
    kinds = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(kinds)
    _add_migrate(kinds)
    _add_ingest(kinds)
    _add_search(kinds, "search", "find the passages that answer a question", commands.run_search)
    _add_search(kinds, "explain", "search, and say why the hits stand in this order", commands.run_explain)
    _add_transcript(kinds)
    _add_history(kinds)
    _add_collections(kinds)
    _add_reindex(kinds)
    _add_model(kinds)
    _add_calibrate(kinds)
    _add_evaluate(kinds)
    _add_doctor(kinds)
    _add_embedded(kinds)
    return parser


def _command(kinds: _Kinds, name: str, summary: str, run: object) -> argparse.ArgumentParser:
    command = kinds.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    command.set_defaults(run=run)
    where = command.add_argument_group("where")
    where.add_argument("--url", default=os.environ.get("CAYU_PG_URL"), help="postgresql:// URL of a database")
    where.add_argument("--data", type=Path, help="data directory of the embedded server")
    where.add_argument("--schema", default=DEFAULT_SCHEMA, help="schema of the tables (%(default)s)")
    where.add_argument("--tenant", default="default", help="whose data (%(default)s)")
    return command


def _filter(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return found


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def _collection(command: argparse.ArgumentParser) -> None:
    command.add_argument("-c", "--collection", default="documents", help="collection (%(default)s)")
    command.add_argument(
        "--model",
        help="embedding model by name or path, hash-64 needs none (the collection's own; for a new one "
        "sentence-transformers/all-MiniLM-L6-v2)",
    )


def _add_demo(kinds: _Kinds) -> None:
    command = _command(
        kinds, "demo", "ingest Python's own language reference and ask it three questions", run_demo
    )
    _json(command)


def _add_migrate(kinds: _Kinds) -> None:
    command = _command(kinds, "migrate", "create or upgrade the schema", commands.run_migrate)
    command.add_argument("--revision", default="head", help="head, base, or a revision (%(default)s)")


def _add_ingest(kinds: _Kinds) -> None:
    command = _command(
        kinds, "ingest", "bring files into a collection; only what changed is written", commands.run_ingest
    )
    command.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files and directories")
    _collection(command)
    command.add_argument("--text-config", default=TEXT_CONFIG, help="text search configuration (%(default)s)")
    command.add_argument("--analyzer", help="standard, or ngram for scripts without spaces")
    command.add_argument("--chunk-size", type=int, default=1000, help="characters (%(default)s)")
    command.add_argument("--chunk-overlap", type=int, default=200, help="characters (%(default)s)")
    command.add_argument(
        "--defer-indexes",
        action="store_true",
        help="drop the collection's indexes for a large load, build them after",
    )
    _json(command)


def _add_search(kinds: _Kinds, name: str, summary: str, run: object) -> None:
    command = _command(kinds, name, summary, run)
    command.add_argument("query", help="a question, or words")
    _collection(command)
    command.add_argument("-n", "--limit", type=int, default=5, help="hits (%(default)s)")
    command.add_argument("--channel", action="append", choices=["vector", "text"], help="only this channel")
    command.add_argument("--mode", choices=["any", "all", "phrase", "web"], default="any", help="of words")
    command.add_argument("--fuzzy", action="store_true", help="take unknown words for the nearest known ones")
    command.add_argument("--where", type=_filter, metavar="JSON", help='filter, such as \'{"lang": "en"}\'')
    command.add_argument("--per-record", action="store_true", help="the best passage of each record")
    command.add_argument("--exact", action="store_true", help="without the approximate index")
    command.add_argument("--fusion", metavar="NAME", help="fuse as this saved configuration says")
    _json(command)


def _add_transcript(kinds: _Kinds) -> None:
    command = _command(kinds, "transcript", transcripts.SUMMARY, transcripts.run_transcript)
    transcripts.add_arguments(command)
    _json(command)


def _add_history(kinds: _Kinds) -> None:
    command = _command(
        kinds, "history", "list the revisions of a record, or show how they differ", history.run_history
    )
    command.add_argument("record_id", metavar="ID", help="the record")
    command.add_argument("-c", "--collection", default="documents", help="collection (%(default)s)")
    command.add_argument("--diff", action="store_true", help="show what each revision changed in the text")
    _json(command)


def _add_collections(kinds: _Kinds) -> None:
    command = _command(
        kinds, "collections", "list the collections and what they hold", commands.run_collections
    )
    _json(command)


def _add_reindex(kinds: _Kinds) -> None:
    command = _command(
        kinds, "reindex", "build the indexes that a collection wants and lacks", commands.run_reindex
    )
    _collection(command)
    command.add_argument("--min-chunks", type=int, help="build from this size on")
    command.add_argument("--timeout", type=float, metavar="SECONDS", help="give up an index after this long")
    _json(command)


def _add_model(kinds: _Kinds) -> None:
    command = _command(kinds, "model", model.SUMMARY, model.run_model)
    model.add_arguments(command)
    _json(command)


def _add_calibrate(kinds: _Kinds) -> None:
    command = _command(kinds, "calibrate", calibrate.SUMMARY, calibrate.run_calibrate)
    _collection(command)
    calibrate.add_arguments(command)
    _json(command)


def _add_evaluate(kinds: _Kinds) -> None:
    command = _command(kinds, "evaluate", evaluate.SUMMARY, evaluate.run_evaluate)
    evaluate.add_arguments(command)
    _json(command)


def _add_doctor(kinds: _Kinds) -> None:
    command = _command(
        kinds, "doctor", "say what is wrong or slow, and what to do about it", commands.run_doctor
    )
    command.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="of each statement (%(default)g)"
    )
    _json(command)


def _add_embedded(kinds: _Kinds) -> None:
    command = kinds.add_parser("embedded", help="start, stop or look at the embedded server")
    command.add_argument("action", choices=["start", "stop", "status"])
    command.add_argument("--data", type=Path, help="data directory of the embedded server")
    _json(command)
    command.set_defaults(run=commands.run_embedded)
