"""The features of a collection: declared for all its searches, and told."""

from __future__ import annotations

from cayu_pg.features import CollectionFeature, checked_features, parse_features, stored_features
from cayu_pg.operations import CollectionState, look_again
from cayu_pg.sql import collections as sql_collections
from cayu_pg.steps import Steps, write_repeatable


def declare_features(state: CollectionState, features: object) -> Steps[None]:
    """Let the collection have these features and no others; InvalidInput names the one that is wrong."""
    stored = stored_features(checked_features(features))
    yield from write_repeatable(sql_collections.declare_features, state.tables, state.row, stored)
    yield from look_again(state)


def declared_features(state: CollectionState) -> Steps[dict[str, CollectionFeature]]:
    """The features that the collection has now."""
    yield from look_again(state)
    return parse_features(state.row.features, state.row.name)
