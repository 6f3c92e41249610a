"""One way of writing a configuration as JSON, so that equal configurations have equal fingerprints.

Keys are sorted by code point, nothing is padded, text is raw UTF-8 save what JSON must escape. A number with
an integral value is written as an integer whatever its type; any other as its shortest digits and a power of
ten, `5e-1` for 0.5, because languages differ in how they write floats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

Canonical = str | int | float | Mapping[str, "Canonical"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def canonical_json(value: Canonical) -> bytes:
    """The canonical encoding; ValueError for an integral number beyond 64 bits."""
    return _encoded(value).encode()


def _encoded(value: Canonical) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        members = (f"{json.dumps(key, ensure_ascii=False)}:{_encoded(value[key])}" for key in sorted(value))
        return "{" + ",".join(members) + "}"
    return _integer(int(value)) if value == int(value) else _fraction(value)


def _integer(value: int) -> str:
    if not _LOWEST <= value <= _HIGHEST:
        raise ValueError("integral numbers must fit in 64 bits")
    return str(value)


def _fraction(value: float) -> str:
    # repr gives the shortest digits that read back as the same float.
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    return f"{'-' if sign else ''}{''.join(map(str, digits))}e{exponent}"
