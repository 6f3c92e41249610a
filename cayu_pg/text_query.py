"""How a question becomes conditions on words: any of them, all, as a phrase, or as people type in search boxes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from cayu_pg.errors import InvalidInput

Mode = Literal["any", "all", "phrase", "web"]
MAX_CLAUSES = 64  # of a question in web mode; what comes after is passed over

_WEB_TOKEN = re.compile(r'(?P<minus>-?)"(?P<phrase>[^"]*)"?|(?P<word>\S+)')


@dataclass(frozen=True)
class Clause:
    """One thing that a passage must hold, or must not: words in any order, or as a phrase.

    Clauses of one `group` belong together; one group that holds is enough.
    """

    group: int
    text: str
    phrase: bool
    excluded: bool


@dataclass(frozen=True)
class TextQuery:
    """What is scored, and what a passage must hold beside; no clauses mean that any word will do."""

    scored: str
    clauses: tuple[Clause, ...] = ()


def text_query(query: str, mode: Mode) -> TextQuery:
    """The conditions that `query` puts on words in a mode; InvalidInput for an unknown mode.

    In web mode a quoted part is a phrase, a minus before a word or phrase excludes it, and OR in capitals parts
    alternatives; everything else must be there.
    """
    match mode:
        case "any":
            return TextQuery(query)
        case "all" | "phrase":
            return TextQuery(query, (Clause(0, query, mode == "phrase", False),))
        case "web":
            clauses = _web_clauses(query)
            return TextQuery(" ".join(each.text for each in clauses if not each.excluded), clauses)
    raise InvalidInput("mode", f"one of {', '.join(get_args(Mode))}", repr(mode)[:40])


def _web_clauses(query: str) -> tuple[Clause, ...]:
    clauses: list[Clause] = []
    group = 0
    for token in _WEB_TOKEN.finditer(query):
        word, phrase = token["word"], token["phrase"]
        if word == "OR":
            group += 1
        elif phrase is not None:
            clauses.append(Clause(group, phrase, True, token["minus"] == "-"))
        elif word is not None:
            # One minus excludes; a line of dashes is no word at all.
            bare = word.removeprefix("-")
            clauses.append(Clause(group, bare, False, word != bare and not bare.startswith("-")))
        if len(clauses) == MAX_CLAUSES:
            break
    return tuple(clauses)
