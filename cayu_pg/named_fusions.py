"""Fusion configurations of a collection by name: saved, loaded once, and searched with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cayu_pg import operations
from cayu_pg.arguments import check_name
from cayu_pg.errors import InvalidInput, NotFound
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.operations import CollectionState
from cayu_pg.query import SearchResult
from cayu_pg.search_request import CHANNELS, SearchOptions
from cayu_pg.sql import fusion_configs
from cayu_pg.steps import Steps, answering, read, write_repeatable


def save(
    state: CollectionState,
    name: str,
    config: WeightedReciprocalRankFusionConfig,
    evidence: Mapping[str, Any] | None = None,
) -> Steps[str]:
    """Save a configuration under a name, in place of the one that had it, and what it was earned from.

    Its fingerprint.
    """
    check_name("fusion", name)
    if not isinstance(config, WeightedReciprocalRankFusionConfig):
        raise InvalidInput("config", "a WeightedReciprocalRankFusionConfig", type(config).__name__)
    yield from write_repeatable(fusion_configs.save_fusion, state.tables, state.row, name, config, evidence)
    state.fusions.pop(name, None)  # loaded anew, should the caller roll back
    return config.fingerprint()


@answering
def load(state: CollectionState, name: str) -> Steps[WeightedReciprocalRankFusionConfig]:
    """The configuration of that name, read once for each collection object; NotFound."""
    check_name("fusion", name)
    if name not in state.fusions:
        found = yield from read(fusion_configs.load_fusion, state.tables, state.row.collection_id, name)
        if found is None:
            raise NotFound("fusion configuration", name)
        state.fusions[name] = found
    return state.fusions[name]


def search(
    state: CollectionState,
    query: str,
    fusion: WeightedReciprocalRankFusionConfig | str | None,
    options: SearchOptions,
) -> Steps[SearchResult]:
    """Search with a given configuration, a named one, or equal weights."""
    given = None if isinstance(fusion, str) else fusion
    request = operations.request_of(state.store, query, {**options, "fusion": given})
    if isinstance(fusion, str):
        config = yield from load(state, fusion)
        channels = _channels(config, request.channels)
        named: SearchOptions = {**options, "fusion": config, "channels": channels}
        request = operations.request_of(state.store, query, named)
    return (yield from operations.search_collection(state, request))


def _channels(config: WeightedReciprocalRankFusionConfig, asked: Sequence[str]) -> Sequence[str]:
    """What to ask: the channels that a named configuration weighs, unless the caller chose some."""
    weighed = tuple(name for name in asked if name in config.channel_weights)
    return weighed if weighed and asked == CHANNELS else asked
