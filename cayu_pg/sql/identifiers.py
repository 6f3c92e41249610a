"""Names as SQL spells them: quoted, and types of an extension with the schema that it lives in."""

from __future__ import annotations

from typing import Any

from sqlalchemy.types import UserDefinedType


def quoted(identifier: str) -> str:
    """An SQL identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


class ExtensionType(UserDefinedType[Any]):
    """A type of the `vector` extension, named with the schema that the extension lives in."""

    cache_ok = True

    def __init__(self, name: str, extension_schema: str, dimensions: int | None = None) -> None:
        self.name = name
        self.extension_schema = extension_schema
        self.dimensions = dimensions

    def get_col_spec(self, **_: object) -> str:
        """The type as DDL and casts spell it."""
        size = "" if self.dimensions is None else f"({self.dimensions:d})"
        return f"{quoted(self.extension_schema)}.{self.name}{size}"
