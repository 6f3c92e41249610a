"""20,000 hostile questions to both channels in every mode: no SQL error may come of them.

python benchmarks/fuzz_queries.py [COUNT]
"""

from __future__ import annotations

import collections
import random
import sys
import tempfile
from pathlib import Path
from typing import get_args

from cayu_pg import CayuPgError, Collection, Document, HashEmbedder, InvalidInput, Store
from cayu_pg.text_query import Mode

ALPHABET = (
    "abc ABC 123 \"\"''\\\\--&|!<>()**:.,/_%{}$#@~`^+=?;\t\n\u00e9\u00df\u0434\u05d0\u0639\u4e2d\u65e5\u0e01\u0915"
    "\u0301\u200d\u200b\u202e\ufeff\U0001f600\U0001f469\u200d\U0001f4bb"
)
WHOLE = [
    "-" * 33,
    "| a | b |\n|---|---|\n| 1 | 2 |",
    " ".join(f"word{number}" for number in range(40_000)),
    '"' * 1001,
    "( " * 500,
    "OR " * 500,
    "!" * 2000,
    "&" * 100 + "|" * 100,
    "\U0001f600" * 300,
    "\u05e9\u05dc\u05d5\u05dd \u202e\u0639\u0631\u0628\u064a",
    "a\x00b",
    "lone \ud800 surrogate",
    "<->" * 50,
    "'; DROP SCHEMA cayu CASCADE; --",
]


def query(rng: random.Random) -> str:
    if rng.random() < 0.02:
        return rng.choice(WHOLE)
    return "".join(rng.choices(ALPHABET, k=rng.randint(1, 80)))


def fuzz(collection: Collection, count: int) -> collections.Counter[str]:
    rng = random.Random(1)
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(count):
        asked = query(rng)
        for mode in get_args(Mode):
            outcomes[outcome(collection, asked, mode, fuzzy=number % 3 == 0)] += 1
    return outcomes


def outcome(collection: Collection, asked: str, mode: Mode, *, fuzzy: bool) -> str:
    try:
        result = collection.search(asked, mode=mode, fuzzy=fuzzy, limit=3, candidates=10)
    except InvalidInput:
        return "refused before SQL"
    except CayuPgError as error:
        return f"ERROR {type(error).__name__}: {str(error)[:80]}"
    return "found" if result.diagnostics.channels["text"].returned else "empty channel"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with (
        tempfile.TemporaryDirectory() as temporary,
        Store.embedded(Path(temporary) / "data", embedder=HashEmbedder(8)) as store,
    ):
        collection = store.collection("fuzz", analyzer="ngram", text_config="simple")
        rng = random.Random(2)
        collection.ingest(
            Document("start " + "".join(rng.choices(ALPHABET, k=200)), id=str(number))
            for number in range(200)
        )
        for what, times in fuzz(collection, count).most_common():
            print(f"{times:>7} {what}")


if __name__ == "__main__":
    main()
