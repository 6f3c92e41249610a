"""How long it takes to cut a text of one million characters into chunks.

    python benchmarks/splitting.py [--reference PYTHON]

PYTHON is the interpreter of an environment that has aimu==0.38.0; the same code then runs there, in turns with ours.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

ROUNDS = 5
RUNS = 5
SIZE = 1_000_000


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, text and settings of each case."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghij", k=chance.randint(2, 9))) for _ in range(2_000)]
    line = " ".join(chance.choices(words, k=SIZE // 5))[:SIZE]
    paragraphs = "\n\n".join(line[place : place + 650] for place in range(0, SIZE, 650))
    yield "paragraphs", paragraphs, {}
    yield (
        "paragraphs, 200 words / 40",
        paragraphs,
        {"chunk_size": 200, "chunk_overlap": 40, "length_function": words_in},
    )
    yield "words in one line", line, {}
    yield "words in one line, 200 / 50", line, {"chunk_size": 200, "chunk_overlap": 50}
    yield "one-character words", "a " * (SIZE // 2), {}
    yield "one-character words, 1000 / 900", "a " * (SIZE // 2), {"chunk_overlap": 900}
    yield "unbroken", "x" * SIZE, {}
    yield "200,000 chunks of one character", "x" * 200_000, {"chunk_size": 1, "chunk_overlap": 0}


def words_in(text: str) -> int:
    return len(text.split())


def measure(module: str, function: str) -> dict[str, float]:
    """The median milliseconds of each case."""
    split = getattr(import_module(module), function)
    return {name: statistics.median(milliseconds(split, text, settings)) for name, text, settings in cases()}


def milliseconds(split: Any, text: str, settings: dict[str, Any]) -> Iterator[float]:
    for _ in range(RUNS):
        start = time.perf_counter()
        split(text, **settings)
        yield (time.perf_counter() - start) * 1e3


def run(interpreter: str, module: str, function: str) -> dict[str, float]:
    command = [interpreter, __file__, "--measure", module, function]
    medians: dict[str, float] = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", metavar="PYTHON", help="interpreter that has aimu==0.38.0")
    parser.add_argument("--measure", nargs=2, metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    ours = (sys.executable, "cayu_pg.splitting")
    sides = {"split_text": (*ours, "split_text"), "split_spans": (*ours, "split_spans")}
    if options.reference:
        sides["aimu"] = (options.reference, "aimu.rag", "split_text")
    rounds: list[dict[str, dict[str, float]]] = [
        {name: run(*side) for name, side in sides.items()} for _ in range(ROUNDS)
    ]
    for case, _, _ in cases():
        medians = {name: statistics.median(measured[name][case] for measured in rounds) for name in sides}
        print(f"{case}: " + ", ".join(f"{name} {median:.1f} ms" for name, median in medians.items()))


if __name__ == "__main__":
    main()
