"""Which web addresses are kept as evidence: http or https, a plain host, no user name.

The address is taken apart here rather than by `urllib.parse.urlsplit`, whose leniency (tabs and line
breaks are skipped, odd bracketed hosts pass) differs between Python versions.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from typing import Annotated

from pydantic import AfterValidator, Field

from cayu_pg.texts import clean

_ADDRESS = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]@]*\]|[^\[\]:@]*)(?::(?P<port>[0-9]*))?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)
_MAX_PORT = 65_535
_MAX_HOST = 253


def web_url(value: str) -> str:
    """The address unchanged, or ValueError saying which part of it is not allowed."""
    clean(value)
    if any(character in value for character in "\t\r\n"):
        raise ValueError("must not contain tabs or line breaks")
    address = _ADDRESS.match(value)
    if address is None:
        raise ValueError("must begin with http:// or https://")
    authority = _AUTHORITY.fullmatch(address[1])
    if authority is None:
        raise ValueError("must have a host and at most a port, no user name")
    _check_host(authority["host"])
    if authority["port"] and int(authority["port"]) > _MAX_PORT:
        raise ValueError(f"must have a port of at most {_MAX_PORT}")
    return value


def _check_host(host: str) -> None:
    if host.startswith("["):
        _check_ipv6(host[1:-1])
    elif not _is_name(host):
        raise ValueError("must have a host of letters, digits and inner hyphens, at most 253 characters")


def _check_ipv6(host: str) -> None:
    try:
        IPv6Address(host)
    except AddressValueError:
        raise ValueError("must have an IPv6 address between brackets") from None


def _is_name(host: str) -> bool:
    try:
        # The codec of the standard library (IDNA 2003) also folds full-width letters and ideographic dots.
        name = host.removesuffix(".").encode("idna").decode("ascii")
    except UnicodeError:
        return False
    return len(name) <= _MAX_HOST and all(_LABEL.fullmatch(label) for label in name.split("."))


WebUrl = Annotated[str, Field(max_length=4096), AfterValidator(web_url)]
