"""How long it takes to build a typical assistant message from dicts and dump it as JSON.

    python benchmarks/messages.py [--reference PYTHON]

PYTHON is the interpreter of an environment that has cayu==0.15.0; the same code then runs there, in turns
with ours, and the ratio of the medians is printed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time

ROUNDS = 5
RUNS = 2_000
MESSAGE = {
    "role": "assistant",
    "content": [
        {
            "type": "thinking",
            "text": "The user asks for the weather.",
            "provider_state": {"signature": "abc"},
        },
        {"type": "text", "text": "Let me look that up for you."},
        {
            "type": "tool_call",
            "tool_call_id": "call_1",
            "tool_name": "weather",
            "arguments": {"city": "Paris", "days": 3, "options": {"units": "metric", "hours": [9, 12.5, 18]}},
        },
    ],
}


def measure(module: str) -> dict[str, float]:
    """Microseconds for building and dumping one message, after a warm-up."""
    message = importlib.import_module(module).Message
    times = []
    for _ in range(RUNS + 200):
        start = time.perf_counter()
        message.model_validate(MESSAGE).model_dump_json()
        times.append((time.perf_counter() - start) * 1e6)
    return {"median": statistics.median(times[200:]), "min": min(times[200:])}


def run(interpreter: str, module: str) -> dict[str, float]:
    done = subprocess.run(
        [interpreter, __file__, "--measure", module], capture_output=True, text=True, check=True
    )
    times: dict[str, float] = json.loads(done.stdout)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", metavar="PYTHON", help="interpreter that has cayu==0.15.0")
    parser.add_argument("--measure", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    sides = {"cayu_pg": (sys.executable, "cayu_pg.messages")}
    if options.reference:
        sides["cayu"] = (options.reference, "cayu.messages")
    compare(sides)


def compare(sides: dict[str, tuple[str, str]]) -> None:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            rounds[name].append(run(*side))
    medians = {}
    for name, found in rounds.items():
        medians[name] = statistics.median(times["median"] for times in found)
        print(f"{name}: median {medians[name]:.1f} us, min {min(times['min'] for times in found):.1f} us")
    if "cayu" in medians:
        print(f"ratio of medians: {medians['cayu_pg'] / medians['cayu']:.2f}")


if __name__ == "__main__":
    main()
