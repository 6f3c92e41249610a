"""How long it takes to fuse two channels of 100 hits, and how that grows with the hits.

    python benchmarks/fusion.py [--reference PYTHON]

PYTHON is the interpreter of an environment that has cayu==0.15.0; the same code then runs there, in turns with
ours, and the ratio of the medians is printed. Models are built outside the timing.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

OURS = ["cayu_pg.ranking", "cayu_pg.fusion"]
MODELS = (
    "RankedRetrievalChannel",
    "RankedRetrievalHit",
    "RetrievalCandidateIdentity",
    "WeightedReciprocalRankFusion",
    "WeightedReciprocalRankFusionConfig",
)
ROUNDS = 5
RUNS = 100
CASES = {
    "2 channels x 100 hits": (2, 100, 0),
    "2 channels x 100 hits, 2 features": (2, 100, 2),
    "5 channels x 200 hits, 2 features": (5, 200, 2),
}
GROWTH = (1_000, 2_000, 4_000, 8_000, 16_000)


def prepare(models: Any, channels: int, hits: int, features: int) -> Callable[[], Any]:
    """A call that fuses channels sharing some records: 2 x 100 hits have 137 candidates."""
    chance = random.Random(7)
    names = [f"channel-{number}" for number in range(channels)]
    weights = dict.fromkeys((f"feature-{number}" for number in range(features)), 0.01)
    config = models.WeightedReciprocalRankFusionConfig(
        configuration_version="benchmark",
        channel_weights=dict.fromkeys(names, 1.0),
        feature_weights=weights,
        max_candidates_per_channel=hits,
    )
    records = range(hits * 137 // 100)
    built = tuple(
        models.RankedRetrievalChannel(
            channel=name,
            index_version="v1",
            candidate_limit=hits,
            hits=[hit(models, record, rank, features) for rank, record in enumerate(chosen, start=1)],
        )
        for name, chosen in zip(names, [records[:hits], *choices(chance, records, hits)], strict=False)
    )
    strategy = models.WeightedReciprocalRankFusion()
    return lambda: strategy.fuse(built, config)


def choices(chance: random.Random, records: range, hits: int) -> list[list[int]]:
    """The records of the second to the fifth channel: all that the first lacks, and some of the others."""
    rest = list(records[hits:])
    return [rest + chance.sample(records[:hits], hits - len(rest)) for _ in range(4)]


def hit(models: Any, record: int, rank: int, features: int) -> Any:
    return models.RankedRetrievalHit(
        identity=models.RetrievalCandidateIdentity(
            record_type="chunk", record_id=f"document-{record}", revision="1"
        ),
        rank=rank,
        representation="text",
        content_hash=f"{record:064x}",
        raw_score=1 / rank,
        features={f"feature-{number}": record % 10 / 10 for number in range(features)},
    )


def milliseconds(call: Callable[[], Any], runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def load(modules: list[str]) -> Any:
    """The models that some modules hold, as one namespace."""
    loaded = [import_module(module) for module in modules]
    return SimpleNamespace(
        **{name: getattr(module, name) for name in MODELS for module in loaded if hasattr(module, name)}
    )


def measure(models: Any) -> dict[str, float]:
    """The median milliseconds of each case, after a warm-up."""
    medians = {}
    for name, case in CASES.items():
        call = prepare(models, *case)
        milliseconds(call, 10)
        medians[name] = statistics.median(milliseconds(call, RUNS))
    return medians


def run(interpreter: str, modules: list[str]) -> dict[str, float]:
    command = [interpreter, __file__, "--measure", *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    medians: dict[str, float] = json.loads(done.stdout)
    return medians


def compare(sides: dict[str, tuple[str, list[str]]]) -> None:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            rounds[name].append(run(*side))
    for case in CASES:
        medians = {
            name: statistics.median(found[case] for found in measured) for name, measured in rounds.items()
        }
        line = ", ".join(f"{name} {median:.2f} ms" for name, median in medians.items())
        print(f"{case}: {line}")
        if "cayu" in medians:
            print(f"    {medians['cayu'] / medians['cayu_pg']:.1f} times as fast")


def grow() -> None:
    models = load(OURS)
    for hits in GROWTH:
        fastest = min(milliseconds(prepare(models, 2, hits, 0), 5))
        print(f"2 channels x {hits} hits: {fastest:.1f} ms, {fastest / hits / 2 * 1e3:.2f} us a hit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", metavar="PYTHON", help="interpreter that has cayu==0.15.0")
    parser.add_argument("--measure", nargs="+", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(load(options.measure))))
        return
    sides = {"cayu_pg": (sys.executable, OURS)}
    if options.reference:
        sides["cayu"] = (options.reference, ["cayu.memory"])
    compare(sides)
    grow()


if __name__ == "__main__":
    main()
