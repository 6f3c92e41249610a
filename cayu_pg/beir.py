"""Reading test collections in the layout of BEIR: corpus and queries as JSON Lines, judgements as a table.

    corpus.jsonl[.gz]            {"_id": ..., "title": ..., "text": ..., "metadata": {...}}
    queries.jsonl[.gz]           {"_id": ..., "text": ..., "metadata": {...}}
    qrels/<split>.tsv, qrels.tsv   query, document, grade; or as TREC has it: query, iteration, document, grade

`id` stands for `_id` and `meta` for `metadata` where a folder has those. Layout: N. Thakur et al.: BEIR, NeurIPS 2021.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from cayu_pg.errors import InvalidInput

SPLITS = ("test", "dev", "train")  # in the order in which one is chosen


class BeirQuery(NamedTuple):
    """A query of a test collection."""

    id: str
    text: str
    metadata: dict[str, Any]


def read_corpus(folder: Path) -> Iterator[dict[str, Any]]:
    """The documents as `ingest` takes them; a text is the title, a space, and the text."""
    for where, row in _rows(folder, "corpus"):
        title, text = row.get("title") or "", row.get("text") or ""
        if not isinstance(title, str) or not isinstance(text, str):
            raise InvalidInput(where, "a title and a text that are strings", "others")
        yield {"id": _id(where, row), "text": f"{title} {text}".strip(), "metadata": _metadata(where, row)}


def read_queries(folder: Path) -> list[BeirQuery]:
    """The queries in the order of the file."""
    found = []
    for where, row in _rows(folder, "queries"):
        text = row.get("text")
        if not isinstance(text, str):
            raise InvalidInput(where, "a text", "none")
        found.append(BeirQuery(_id(where, row), text, _metadata(where, row)))
    return found


def read_qrels(folder: Path, split: str | None = None) -> dict[str, dict[str, int]]:
    """The grade of each judged document by query; of the split test, dev or train unless one is named."""
    path = _qrels_path(folder, split)
    found: dict[str, dict[str, int]] = {}
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split("\t") if "\t" in line else line.split()
            if line.strip() and not (number == 1 and _is_header(fields)):
                query, document, grade = _judgement(f"{path.name}:{number}", fields)
                if found.setdefault(query, {}).setdefault(document, grade) != grade:
                    raise InvalidInput(f"{path.name}:{number}", f"one grade for {document}", "another")
    if not found:
        raise InvalidInput("qrels", "judgements", f"none in {path.name}")
    return found


def _qrels_path(folder: Path, split: str | None) -> Path:
    names = [f"qrels/{each}.tsv" for each in (SPLITS if split is None else (split,))]
    names += ["qrels.tsv"] if split is None else []
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise InvalidInput("folder", f"one with {' or '.join(names)}", f"none in {folder.name}")


def _is_header(fields: list[str]) -> bool:
    return not fields[-1].strip().lstrip("+-").isdigit()


def _judgement(where: str, fields: list[str]) -> tuple[str, str, int]:
    if len(fields) not in (3, 4):
        raise InvalidInput(where, "three or four columns", str(len(fields)))
    try:
        return fields[0].strip(), fields[-2].strip(), int(fields[-1])
    except ValueError:
        raise InvalidInput(where, "a whole number as grade", repr(fields[-1].strip())[:40]) from None


def _rows(folder: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with where it stands."""
    with _opened(folder, name) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{name}.jsonl:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidInput(where, "JSON", str(error)[:80]) from None
            if not isinstance(row, dict):
                raise InvalidInput(where, "a JSON object", type(row).__name__)
            yield where, row


def _opened(folder: Path, name: str) -> TextIO:
    packed, plain = folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl"
    if packed.is_file():
        return gzip.open(packed, "rt", encoding="utf-8-sig")
    if plain.is_file():
        return plain.open(encoding="utf-8-sig")
    raise InvalidInput("folder", f"one with {plain.name} or {packed.name}", f"neither in {folder.name}")


def _id(where: str, row: dict[str, Any]) -> str:
    found = row.get("_id", row.get("id"))
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str):
        raise InvalidInput(where, "an _id or id", "none")
    return found


def _metadata(where: str, row: dict[str, Any]) -> dict[str, Any]:
    found = row.get("metadata") or row.get("meta") or {}
    if not isinstance(found, dict):
        raise InvalidInput(where, "metadata that is an object", type(found).__name__)
    return found
