"""Analyzers: what `to_tsvector` gets to see, the same for stored text and for questions.

Postgres' parser keeps punctuation outside ASCII stuck to words, makes one word of a whole run of Chinese or Thai,
and either tears identifiers apart or never does. An analyzer rewrites the text before it, by rules with a version,
so that what was indexed under one version is always asked for under the same.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from cayu_pg.errors import InvalidInput

MAX_ANALYZED = 100_000  # characters; the rest of a longer text is not searched by words
DEFAULT_ANALYZER = "standard-1"
_LONGEST_WORD = 2046  # bytes, of a lexeme
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_WORD // 4},}}")  # a character has up to four

# Scripts written without spaces: Thai, Lao, Myanmar, Khmer, Kana, Bopomofo, Han, Hangul.
UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_UNSPACED = re.compile(f"{UNSPACED}+")
# Possessive, and begun only at the start of a run, so that a long run without a hit costs one pass.
_IDENTIFIER = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"[A-Za-z0-9]++(?:[_\-./:\\+]++[A-Za-z0-9]++)+"  # max_wal_size, src/auth/login.py, ERR-4711
    r"|[A-Z]{2,}+[a-z]{2,}+[A-Za-z0-9]*+"  # HTTPServer
    r"|[A-Z]?+[a-z0-9]++[A-Z][A-Za-z0-9]*+)"  # camelCase
)
_ACCENTS = re.compile("[\u0300-\u036f]+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def standard(text: str) -> str:
    """For languages that put spaces between words; identifiers are found whole and by parts."""
    return _IDENTIFIER.sub(_identifier, _spaced(text))


def folded(text: str) -> str:
    """As standard, with accents taken off letters, so that `resume` finds `résumé` and `Muller` finds `Müller`."""
    return standard(_without_accents(text))


def plain(text: str) -> str:
    """As standard, with identifiers left to Postgres' own parser."""
    return _spaced(text)


def ngram(text: str) -> str:
    """For Chinese, Japanese, Korean, Thai and their like: pairs of neighbouring characters; the rest as standard."""
    return _IDENTIFIER.sub(_identifier, _UNSPACED.sub(_pairs, _spaced(text)))


ANALYZERS: dict[str, Callable[[str], str]] = {
    "standard-1": standard,
    "folded-1": folded,
    "plain-1": plain,
    "ngram-1": ngram,
}
_NEWEST = {name.partition("-")[0]: name for name in ANALYZERS}


def analyzer_name(name: str | None) -> str:
    """The full name, with version, of an analyzer; InvalidInput lists the known ones."""
    known = {**_NEWEST, **dict.fromkeys(ANALYZERS)}
    if name is None:
        return DEFAULT_ANALYZER
    if not isinstance(name, str) or name not in known:
        raise InvalidInput("analyzer", f"one of {', '.join(known)}", repr(name)[:80])
    return known[name] or name


def overlong_words(analyzed: str) -> int:
    """How many words Postgres passes over because they have more than 2,046 bytes."""
    long_runs = _LONG_RUN.finditer(analyzed)
    return sum(len(run[0].encode()) > _LONGEST_WORD for run in long_runs)


def analyze(analyzer: str, text: str) -> str:
    """What `to_tsvector` gets for `text`: at most MAX_ANALYZED characters of it."""
    return ANALYZERS[analyzer](text[:MAX_ANALYZED])


def _without_accents(text: str) -> str:
    """Marks of Latin, Greek and Cyrillic letters are dropped; those of other scripts are letters of their own."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))


def _spaced(text: str) -> str:
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text).translate(_punctuation())


@lru_cache(maxsize=1)
def _punctuation() -> dict[int, str]:
    """Every punctuation mark and symbol outside ASCII, mapped to a space; Postgres handles those inside."""
    marks = (code for code in range(0x80, sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "PS")
    return dict.fromkeys(marks, " ")


def _identifier(match: re.Match[str]) -> str:
    whole = match[0]
    parts = _PARTS.findall(whole)
    if len(parts) < 2 or whole.replace(".", "").replace("-", "").isdigit():
        return whole
    return f"{' '.join(parts)} {''.join(parts)}"


def _pairs(match: re.Match[str]) -> str:
    run = match[0]
    pairs = (run[place : place + 2] for place in range(max(1, len(run) - 1)))
    return f" {' '.join(pairs)} "
