"""Whether a channel fits a collection, told without judgements: does it find a passage by a few of its own words?

Pure: questions are made of the passages, and what each channel found of them decides the weights. Such questions
favour the words that they are made of, so only a clear misfit counts; finer weights want judgements (`tuning`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cayu_pg.analysis import UNSPACED
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig

Known = Literal["words", "title"]  # what a question knows of its answer

VERSION = 1  # of the questions and the rule, kept with what they led to

SHARE = 5  # one word of so many makes the question
FEWEST_WORDS, MOST_WORDS = 3, 40
LONGEST_WORD = 100  # characters; the rest of what is no word of a language is left out
MIN_PROBES = 20  # fewer decide nothing
FIRST = 10  # hits that recall looks at
# Of eleven collections, all-MiniLM-L6-v2 fits those where its MRR was at least 0.7 of BM25's, and is lost where it was
# at most 0.3. A channel that finds little may be no worse than its questions, so the other must find most.
MISFIT_BELOW = 0.5
FINDS_MOST = 0.5

# A word; of a script without spaces, up to four characters.
_PIECE = re.compile(rf"{UNSPACED}{{1,4}}|(?:(?!{UNSPACED})\S)+")


@dataclass(frozen=True)
class Passage:
    """A stored passage: its hash, its text, and the record that it belongs to with its title."""

    content_hash: bytes
    text: str
    record_id: str
    title: str | None


@dataclass(frozen=True)
class Probe:
    """A question whose answer is known: a passage by its hash in hex, or for a title its record."""

    known_by: Known
    query: str
    answer: str


class Found(BaseModel):
    """What a channel found of what was asked for: mean reciprocal rank, and the share among the first ten."""

    model_config = ConfigDict(frozen=True)

    mrr: float
    recall: float


class Asked(BaseModel):
    """How many questions of one kind were asked, and what each channel found."""

    model_config = ConfigDict(frozen=True)

    probes: int
    found: dict[str, Found]

    def ratio(self, channel: str) -> float | None:
        """The MRR of a channel over that of the best other one; None when there is too little to compare with."""
        best = max(each.mrr for name, each in self.found.items() if name != channel)
        return self.found[channel].mrr / best if self.probes >= MIN_PROBES and best >= FINDS_MOST else None


class CalibrationReport(BaseModel):
    """What each channel found of the collection's own passages, and the configuration that follows.

    `words` asks with a fifth of a passage's words, `title` with the title of a record where there are some. `misfit`
    is the channel that finds less than half of what the other does, by both; the configuration leaves it out.
    Without a misfit the weights are equal. `text` says how the text channel reads texts.
    """

    model_config = ConfigDict(frozen=True)

    collection: str
    name: str
    config: WeightedReciprocalRankFusionConfig
    misfit: str | None
    model: str | None
    text: str
    words: Asked
    title: Asked | None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of `config`, which the results of its searches carry."""
        return self.config.fingerprint()

    def evidence(self) -> dict[str, Any]:
        """What is kept beside the configuration: all but the configuration itself."""
        facts = self.model_dump(mode="json", exclude={"config", "name", "collection"})
        return {"from": "calibration", "version": VERSION, **facts}

    def __str__(self) -> str:
        lines = [
            f"{self.collection}: {self.name} ({self.fingerprint[:12]})",
            *_asked_lines("words", self.words),
        ]
        lines += [] if self.title is None else _asked_lines("title", self.title)
        return "\n".join([*lines, self._verdict()])

    def _verdict(self) -> str:
        warning = misfit_warning(self.collection, self.name, self.evidence())
        if warning is not None:
            return warning
        few = self.words.probes < MIN_PROBES
        return f"too few passages to tell, {EQUAL_STAY}" if few else f"no misfit, {EQUAL_STAY}"


EQUAL_STAY = "equal weights stay"


def probes_of(passages: Sequence[Passage]) -> list[Probe]:
    """The questions about these passages: one of words for each, and one for each title of one record."""
    by_words = [Probe("words", few_words(each), each.content_hash.hex()) for each in passages]
    return [each for each in by_words if each.query] + _by_titles(passages)


def _by_titles(passages: Sequence[Passage]) -> list[Probe]:
    records: dict[str, set[str]] = {}
    for each in passages:
        if each.title and each.title.strip():
            records.setdefault(each.title, set()).add(each.record_id)
    return [Probe("title", title, ids.pop()) for title, ids in records.items() if len(ids) == 1]


def few_words(passage: Passage) -> str:
    """A fifth of the passage's words in their order, from 3 to 40, chosen by its hash."""
    pieces = _PIECE.findall(passage.text)
    count = min(max(len(pieces) // SHARE, FEWEST_WORDS), MOST_WORDS, len(pieces))
    places = sorted(range(len(pieces)), key=lambda place: _lot(passage.content_hash, place))[:count]
    return " ".join(pieces[place][:LONGEST_WORD] for place in sorted(places))


def _lot(content_hash: bytes, place: int) -> bytes:
    return hashlib.sha256(content_hash + place.to_bytes(8, "big")).digest()


def asked(ranks: Mapping[str, Sequence[int | None]]) -> Asked:
    """What each channel found, by the rank of each answer; None is an answer that it did not find."""
    found = {name: _found(each) for name, each in ranks.items()}
    return Asked(probes=len(next(iter(ranks.values()))), found=found)


def _found(ranks: Sequence[int | None]) -> Found:
    reciprocal = [0.0 if rank is None else 1 / rank for rank in ranks]
    recalled = [rank is not None and rank <= FIRST for rank in ranks]
    return Found(mrr=fmean(reciprocal), recall=fmean(recalled)) if ranks else Found(mrr=0.0, recall=0.0)


def misfit_of(words: Asked, title: Asked | None) -> str | None:
    """The channel that finds far less than the other by words, unless it finds enough by titles."""
    for channel in words.found:
        ratios = [words.ratio(channel), None if title is None else title.ratio(channel)]
        if ratios[0] is not None and all(each < MISFIT_BELOW for each in ratios if each is not None):
            return channel
    return None


def calibrated_config(
    name: str, channels: Sequence[str], misfit: str | None, candidates: int
) -> WeightedReciprocalRankFusionConfig:
    """Equal weights without the misfit; the version says which of the two it is."""
    outcome = "no misfit" if misfit is None else f"without {misfit}"
    return WeightedReciprocalRankFusionConfig(
        configuration_version=f"{name} (calibration {VERSION}, {outcome})",
        channel_weights={each: 1.0 for each in channels if each != misfit},
        max_candidates_per_channel=candidates,
        fused_head_limit=candidates,
    )


def misfit_warning(collection: str, name: str, evidence: Mapping[str, Any] | None) -> str | None:
    """What to tell people about a collection whose stored evidence says that a channel does not fit; else None."""
    if not evidence or evidence.get("from") != "calibration" or evidence.get("misfit") is None:
        return None
    misfit, found = str(evidence["misfit"]), evidence["words"]["found"]
    channel = (
        f"the model {evidence['model']}" if misfit == "vector" else f"the text channel ({evidence['text']})"
    )
    other = next(each for each in found if each != misfit)
    remedy = "change_embedder" if misfit == "vector" else "another text_config or analyzer"
    return (
        f"{channel} does not fit {collection!r}: by a fifth of their words it finds"
        f" {found[misfit]['recall']:.0%} of the passages among the first {FIRST}, {other}"
        f" {found[other]['recall']:.0%}; search with fusion={name!r}, or try {remedy}"
    )


def _asked_lines(kind: str, kinds: Asked) -> list[str]:
    return [
        f"  by {kind}, {kinds.probes} probes: {channel} MRR {each.mrr:.3f}, in the first {FIRST} {each.recall:.0%}"
        for channel, each in kinds.found.items()
    ]
