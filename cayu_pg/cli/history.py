"""`cayu-pg history`: the revisions of a record, and how their texts differ."""

from __future__ import annotations

import difflib
import json
from argparse import Namespace
from itertools import pairwise

from cayu_pg.cli import printing
from cayu_pg.cli.commands import open_store
from cayu_pg.embedding import HashEmbedder
from cayu_pg.errors import NotFound
from cayu_pg.records import Revision


def run_history(options: Namespace) -> int:
    """`cayu-pg history ID`."""
    with open_store(options) as store:
        # History needs no vectors; any embedder will do.
        collection = store.collection(options.collection, embedder=HashEmbedder(), create=False)
        revisions = collection.history(options.record_id)
    if not revisions:
        raise NotFound("record", options.record_id)
    if options.json:
        print(json.dumps([each.model_dump(mode="json") for each in revisions]))
    elif options.diff:
        print("\n".join(line for before, after in pairwise(revisions) for line in differences(before, after)))
    else:
        printing.print_table(
            ["revision", "sequence", "recorded", "title", "text"], [_row(each) for each in revisions]
        )
    return 0


def differences(before: Revision, after: Revision) -> list[str]:
    """A unified diff between the texts of two revisions."""
    return list(
        difflib.unified_diff(
            (before.text or "").splitlines(),
            (after.text or "").splitlines(),
            f"revision {before.revision}",
            f"revision {after.revision}{' (deleted)' if after.deleted else ''}",
            f"{before.recorded_at:%Y-%m-%d %H:%M:%S%z}",
            f"{after.recorded_at:%Y-%m-%d %H:%M:%S%z}",
            lineterm="",
        )
    )


def _row(revision: Revision) -> list[str]:
    text = "deleted" if revision.text is None else f"{len(revision.text)} characters"
    recorded = f"{revision.recorded_at:%Y-%m-%d %H:%M:%S%z}"
    return [str(revision.revision), str(revision.sequence), recorded, revision.title or "-", text]
