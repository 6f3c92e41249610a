"""Retrieved passages as one text for a prompt."""

from __future__ import annotations

from collections.abc import Iterable


def format_context(chunks: Iterable[str], *, separator: str = "\n\n", numbered: bool = False) -> str:
    """The chunks joined by `separator`, each after `[1] `, `[2] `, ... if `numbered`, so that a model can cite."""
    if numbered:
        return separator.join(f"[{number}] {chunk}" for number, chunk in enumerate(chunks, start=1))
    return separator.join(chunks)
