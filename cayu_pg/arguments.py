"""Checks of arguments that many operations share; InvalidInput says what was expected and what was found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from cayu_pg.errors import InvalidInput
from cayu_pg.texts import clean, nonblank

MAX_NAME = 512


def check_name(field: str, value: object) -> str:
    """A name as Postgres and identities can keep it; InvalidInput otherwise."""
    if not isinstance(value, str):
        raise InvalidInput(field, "text", kind_of(value))
    try:
        clean(value)
    except ValueError as error:
        raise InvalidInput(field, "a name", f"text that {error}") from None
    if len(value.encode()) > 1024 or (field in ("collection", "tenant") and len(value) > MAX_NAME):
        raise InvalidInput(field, "a shorter name", f"{len(value)} characters")
    return value


def check_names(field: str, values: object) -> list[str]:
    """The names, of one or of several, in their order."""
    given = [values] if isinstance(values, str) else several(field, values, "a name or several")
    return [check_name(field, each) for each in given]


def several(field: str, values: object, expected: str) -> list[object]:
    """What an iterable holds; bytes and mappings, which iterate over something else, are InvalidInput."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise InvalidInput(field, expected, kind_of(values))
    return list(values)


def check_path(value: object) -> Path | None:
    """The path, None for none; InvalidInput for what names no file on any system."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not isinstance(found := os.fspath(value), str):
        raise InvalidInput("path", "a path", kind_of(value))
    try:
        return Path(nonblank(found))
    except ValueError as error:
        raise InvalidInput("path", "a path", f"text that {error}") from None


def check_flag(field: str, value: object) -> None:
    """InvalidInput unless it is True or False: the text "false" must not mean yes."""
    if not isinstance(value, bool):
        raise InvalidInput(field, "True or False", kind_of(value))


def check_callable(field: str, value: object) -> None:
    """InvalidInput unless it can be called; None is no callable."""
    if not callable(value):
        raise InvalidInput(field, "something that can be called", kind_of(value))


def kind_of(value: object) -> str:
    """What an error says of a value of the wrong type, which it does not show."""
    return f"a value of type {type(value).__name__}"
