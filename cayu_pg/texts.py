"""Which texts can be stored, as types: Postgres keeps neither U+0000 nor lone surrogates."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def storable(value: str) -> str:
    """The text itself, or ValueError when it holds U+0000 or a lone surrogate."""
    if "\x00" in value:
        raise ValueError("must not contain U+0000")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("must not contain surrogates") from None
    return value


def nonblank(value: str) -> str:
    """Storable text with something left after `strip()`."""
    if not value.strip():
        raise ValueError("must not be blank")
    return storable(value)


def clean(value: str) -> str:
    """Storable text that is neither blank nor padded with white space (as `str.strip` sees it)."""
    if not value or value.strip() != value:
        raise ValueError("must be neither blank nor padded with white space")
    return storable(value)


Text = Annotated[str, AfterValidator(storable)]
NonblankText = Annotated[str, AfterValidator(nonblank)]
CleanText = Annotated[str, AfterValidator(clean)]
