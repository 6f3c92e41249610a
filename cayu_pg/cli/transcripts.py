"""`cayu-pg transcript`: print a conversation, or import one from JSON Lines."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from cayu_pg.appending import AppendResult
from cayu_pg.cli.commands import open_store
from cayu_pg.cli.conversation import lines_of, shown
from cayu_pg.errors import InvalidInput, NotFound
from cayu_pg.message_formats import from_json_lines
from cayu_pg.messages import Message
from cayu_pg.transcript import Transcript
from cayu_pg.transcripts import MessagePage, StoredMessage

SUMMARY = "print a conversation; or `transcript import FILE`: bring one in from JSON Lines"
MESSAGES_AT_ONCE = 1000


@dataclass
class Import:
    """What an import did."""

    transcript: str
    appended: int = 0
    already_there: int = 0
    first: int | None = None
    last: int | None = None
    refused: list[dict[str, Any]] = field(default_factory=list)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `transcript ID` and `transcript import FILE`, save those that all commands have."""
    command.add_argument("id", metavar="ID", help="the transcript to print, or the word import")
    command.add_argument("file", nargs="?", type=Path, metavar="FILE", help="JSON Lines to import")
    printing = command.add_argument_group("printing")
    printing.add_argument("-n", "--last", type=int, metavar="N", help="only the newest N messages")
    printing.add_argument("--thinking", action="store_true", help="unfold what the model thought")
    printing.add_argument(
        "--skip-invalid", action="store_true", help="pass over rows that were edited into no message"
    )
    importing = command.add_argument_group("importing")
    importing.add_argument("--into", metavar="ID", help="the transcript to append to (the name of the file)")
    importing.add_argument(
        "--format", choices=["cayu", "openai", "anthropic"], default="cayu", help="of each line (%(default)s)"
    )


def run_transcript(options: Namespace) -> int:
    """`cayu-pg transcript ID`, and `cayu-pg transcript import FILE`."""
    if options.file is not None:
        if options.id != "import":
            raise InvalidInput("transcript", "ID, or: import FILE", f"{options.id} {options.file}")
        return run_transcript_import(options)
    with open_store(options) as store:
        transcript = store.transcript(options.id)
        if transcript.next_position() == 0:
            raise NotFound("transcript", options.id)
        skipped = 0
        for page in _pages(transcript, options):
            skipped += len(page.skipped)
            for stored in page:
                print(as_json(stored) if options.json else _as_text(stored, thinking=options.thinking))
    if skipped:
        print(f"cayu-pg: passed over {skipped} rows that hold no message", file=sys.stderr)
    return 0


def run_transcript_import(options: Namespace) -> int:
    """`cayu-pg transcript import FILE`; 1 when a line was refused, the others are kept all the same."""
    done = Import(transcript=options.into or options.file.stem)
    with open_store(options) as store:
        try:
            _import_file(store.transcript(done.transcript), options.file, options.format, done)
        except OSError as error:
            raise InvalidInput("FILE", "a readable file", f"{options.file}: {error.strerror}") from error
    for refusal in done.refused:
        print(f"cayu-pg: {options.file}:{refusal['line']}: {shown(refusal['reason'])}", file=sys.stderr)
    print(json.dumps(vars(done)) if options.json else _report(done))
    return 1 if done.refused else 0


def as_json(stored: StoredMessage) -> str:
    """A stored message as one line, which `transcript import` takes back."""
    facts = {
        "position": stored.position,
        "created_at": stored.created_at.isoformat(),
        "idempotency_key": stored.idempotency_key,
        "message": stored.message.model_dump(mode="json"),
    }
    return json.dumps(facts, ensure_ascii=False)


def _as_text(stored: StoredMessage, *, thinking: bool) -> str:
    when = stored.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    head = f"#{stored.position} {stored.message.role.value}  {when}"
    return "\n".join([head, *(f"    {line}" for line in lines_of(stored.message, thinking=thinking))])


def _pages(transcript: Transcript, options: Namespace) -> Iterable[MessagePage]:
    if options.last is None:
        return transcript.pages(on_invalid="skip" if options.skip_invalid else "raise")
    return [transcript.last(options.last, on_invalid="skip" if options.skip_invalid else "raise")]


def _import_file(transcript: Transcript, path: Path, form: Any, done: Import) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Bytes that are no UTF-8 become surrogates, which the line is then refused for.
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        messages = _accepted(map(_bare, file) if form == "cayu" else file, form, done)
        number = 0
        while batch := list(islice(messages, MESSAGES_AT_ONCE)):
            # The same file again finds its messages there, and an import that broke off goes on.
            result = transcript.append(batch, idempotency_key=f"import:{digest}:{form}:{number}")
            _note(done, result, len(batch))
            number += 1


def _accepted(lines: Iterable[str], form: Any, done: Import) -> Iterator[Message]:
    for line in from_json_lines(lines, form):
        if line.refusal is not None:
            done.refused.append({"line": line.number, "reason": str(line.refusal)})
        yield from line.messages


def _bare(line: str) -> str:
    """The message alone, of a line that `transcript ID --json` printed; other lines as they are."""
    if not line.startswith('{"position":'):
        return line
    try:
        return json.dumps(json.loads(line)["message"])
    except (ValueError, KeyError, RecursionError):
        return line  # refused with the reason further on


def _note(done: Import, result: AppendResult, count: int) -> None:
    done.first = result.first if done.first is None else done.first
    done.last = result.last
    if result.replayed:
        done.already_there += count
    else:
        done.appended += count


def _report(done: Import) -> str:
    where = "" if done.first is None else f", positions {done.first} to {done.last}"
    there = f", {done.already_there} were there already" if done.already_there else ""
    refused = f", {len(done.refused)} lines refused" if done.refused else ""
    return f"{done.transcript}: {done.appended} messages appended{there}{where}{refused}"
