"""OpenTelemetry spans where its API is installed, nothing where it is not.

Names, counts and times only: no texts, no vectors, no metadata, and of an error its type.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_CONVENTIONAL = {"collection": "db.collection.name", "operation": "db.operation.name"}


class Note(Protocol):
    """Adds facts to a span; those that are None are left out."""

    def __call__(self, **facts: object) -> None:
        """Add them."""


def _found() -> Any:
    """The API, which finds the application's tracer provider by itself, also one that is set later."""
    try:
        return importlib.import_module("opentelemetry.trace")
    except ModuleNotFoundError:
        return None


_api = _found()
_tracer = None if _api is None else _api.get_tracer("cayu_pg")


@contextmanager
def span(name: str, **facts: object) -> Iterator[Note]:
    """A span `cayu_pg.<name>` around the block, current for what happens inside; an exception makes it an error.

    It may be open while a pipeline waits for its steps: a pipeline runs in one context from start to end.
    """
    if _tracer is None:
        yield _ignore
        return
    # What these two would record is the error's text.
    silent = {"record_exception": False, "set_status_on_exception": False}
    with _tracer.start_as_current_span(f"cayu_pg.{name}", attributes=_attributes(facts), **silent) as current:
        try:
            yield lambda **more: current.set_attributes(_attributes(more))
        except Exception as error:
            current.set_status(_api.StatusCode.ERROR, type(error).__name__)
            current.set_attribute("error.type", type(error).__name__)
            raise


def _ignore(**facts: object) -> None:
    """A note where nobody reads it."""


def _attributes(facts: dict[str, object]) -> dict[str, object]:
    named = {_CONVENTIONAL.get(name, f"cayu_pg.{name}"): value for name, value in facts.items()}
    return {"db.system.name": "postgresql"} | {
        name: value for name, value in named.items() if value is not None
    }
