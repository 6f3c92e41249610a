"""A collection asked for its own passages, channel by channel, and the fusion that follows, saved under a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cayu_pg import named_fusions, operations
from cayu_pg.arguments import check_callable
from cayu_pg.calibration import (
    Asked,
    CalibrationReport,
    Known,
    Passage,
    Probe,
    asked,
    calibrated_config,
    misfit_of,
    probes_of,
)
from cayu_pg.errors import InvalidInput
from cayu_pg.evaluating import SearchesDone, free_names
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.operations import CollectionState
from cayu_pg.search_request import CHANNELS, SearchOptions
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.probes import sample_chunks
from cayu_pg.steps import Steps, read

CALIBRATED = "calibrated"
PROBES = 150
MAX_PROBES = 10_000
DEPTH = 100  # hits among which an answer is looked for, and candidates that the configuration allows

_Ranks = Mapping[str, Sequence[int | None]]


def calibrate(
    state: CollectionState, name: str, probes: int, progress: SearchesDone | None
) -> Steps[CalibrationReport]:
    """Ask each channel for up to `probes` passages by a few of their words, and by titles; save what follows."""
    free_names([name])
    if type(probes) is not int or not 1 <= probes <= MAX_PROBES:
        raise InvalidInput("probes", f"an int from 1 to {MAX_PROBES}", repr(probes)[:40])
    if progress is not None:
        check_callable("progress", progress)
    yield from operations.look_again(state)
    sampled = yield from read(sample_chunks, state.tables, state.row.collection_id, probes)
    questions = probes_of([Passage(*each) for each in sampled])
    if not questions:
        expected = "one with passages to ask for; ingest some first"
        raise InvalidInput("collection", expected, f"none in {state.row.name!r}")
    ranks = yield from _ranks(state, questions, progress)
    report = _report(state.row, name, questions, ranks)
    yield from named_fusions.save(state, name, report.config, report.evidence())
    return report


def _ranks(
    state: CollectionState, questions: list[Probe], progress: SearchesDone | None
) -> Steps[dict[str, list[int | None]]]:
    """The rank of each answer in each channel."""
    ranks: dict[str, list[int | None]] = {channel: [] for channel in CHANNELS}
    total = len(questions) * len(ranks)
    for channel, found in ranks.items():
        for probe in questions:
            rank = yield from _rank(state, channel, probe)
            found.append(rank)
            if progress is not None:
                progress(sum(map(len, ranks.values())), total)
    return ranks


def _rank(state: CollectionState, channel: str, probe: Probe) -> Steps[int | None]:
    options: SearchOptions = {
        "limit": 1,
        "candidates": DEPTH,
        "channels": (channel,),
        "per_record": probe.known_by == "title",
    }
    result = yield from named_fusions.search(state, probe.query, _alone(channel), options)
    for candidate in result.fusion.candidates:
        match = candidate.matches[0]
        found = match.content_hash if probe.known_by == "words" else candidate.identity.record_id
        if found == probe.answer:
            return match.rank
    return None


def _alone(channel: str) -> WeightedReciprocalRankFusionConfig:
    """One channel with every hit."""
    return WeightedReciprocalRankFusionConfig(
        configuration_version="probing",
        channel_weights={channel: 1.0},
        max_candidates_per_channel=DEPTH,
        fused_head_limit=DEPTH,
    )


def _report(row: CollectionRow, name: str, questions: list[Probe], ranks: _Ranks) -> CalibrationReport:
    words, title = _of_kind("words", questions, ranks), _of_kind("title", questions, ranks)
    misfit = misfit_of(words, title)
    return CalibrationReport(
        collection=row.name,
        name=name,
        config=calibrated_config(name, CHANNELS, misfit, DEPTH),
        misfit=misfit,
        model=None if row.space is None else row.space.model,
        text=f"{row.text_config}, {row.analyzer}",
        words=words,
        title=title if title.probes else None,
    )


def _of_kind(kind: Known, questions: list[Probe], ranks: _Ranks) -> Asked:
    places = [place for place, each in enumerate(questions) if each.known_by == kind]
    return asked({channel: [found[place] for place in places] for channel, found in ranks.items()})
