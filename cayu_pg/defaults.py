"""Settings of a new collection that nobody chose, told apart from the same values given by a caller.

What was not chosen fits every collection that exists; what was chosen has to be what the collection was made with.
"""

from __future__ import annotations

from typing import Literal, TypeVar, cast

from cayu_pg import bm25

Distance = Literal["cosine", "inner_product", "l2"]
Quantization = Literal["none", "binary"]
T = TypeVar("T", str, float)


class _Text(str):
    __slots__ = ()


class _Number(float):
    __slots__ = ()


def unchosen(value: T) -> T:
    """The same value, for a signature: equal to it and shown like it, and no choice of the caller."""
    return _Text(value) if isinstance(value, str) else _Number(value)


def is_chosen(value: object) -> bool:
    """Whether a caller gave this value; None is no choice."""
    return value is not None and not isinstance(value, _Text | _Number)


TEXT_CONFIG = unchosen("english")
DISTANCE = cast(Distance, unchosen("cosine"))
QUANTIZATION = cast(Quantization, unchosen("none"))
K1 = unchosen(bm25.K1)
B = unchosen(bm25.B)
