"""From rows of the database to ranked channels: identities, ranks, ties, and what is said about each channel."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from cayu_pg import bm25
from cayu_pg.features import Measure
from cayu_pg.query import ChannelDiagnostics, ChannelPath
from cayu_pg.ranking import RankedRetrievalChannel, RetrievalCandidateIdentity
from cayu_pg.search_request import SearchRequest
from cayu_pg.sql.channels import ChannelRow, ChannelRows, Question, shape_of
from cayu_pg.sql.collections import CollectionRow
from cayu_pg.sql.indexes import MIN_CHUNKS, why_no_vector_index

Key = tuple[str, str, str]  # an identity by its fields
_IDENTITY = tuple(RetrievalCandidateIdentity.model_fields)


@dataclass(frozen=True)
class RankedRows:
    """One channel of one collection: ranked, with the row behind each hit, best first."""

    label: str | None
    channel: RankedRetrievalChannel
    rows: list[tuple[Key, ChannelRow]]
    path: ChannelPath
    reason: str | None
    eligible: int | None
    corrections: dict[str, str]


def ranked_rows(
    label: str | None,
    collection: CollectionRow,
    request: SearchRequest,
    question: Question,
    rows: ChannelRows,
    corrections: dict[str, str],
    measure: Measure | None,
) -> list[RankedRows]:
    """The channels of a collection; with a label they are called `vector:<label>` and `text:<label>`."""
    return [
        _ranked(
            kind, label, collection, request, question, rows, corrections if kind == "text" else {}, measure
        )
        for kind in request.channels
    ]


def channel_diagnostics(
    ranked: RankedRows, request: SearchRequest, milliseconds: float
) -> ChannelDiagnostics:
    """What is said about a channel."""
    returned = len(ranked.channel.hits)
    complete = returned < request.candidates and not ranked.channel.truncated and request.max_distance is None
    return ChannelDiagnostics(
        requested=request.candidates,
        eligible=returned if complete and not request.per_record else ranked.eligible,
        returned=returned,
        path=ranked.path,
        truncated=ranked.channel.truncated,
        reason=ranked.reason,
        corrections=ranked.corrections,
        milliseconds=milliseconds,
        index_version=ranked.channel.index_version,
    )


def chunk_name(record_id: str, ordinal: int) -> str:
    """`<record id>#<ordinal>`, with `%` and `#` of the id percent-encoded, so that it can be taken apart."""
    return f"{record_id.replace('%', '%25').replace('#', '%23')}#{ordinal}"


def _ranked(
    kind: str,
    label: str | None,
    collection: CollectionRow,
    request: SearchRequest,
    question: Question,
    rows: ChannelRows,
    corrections: dict[str, str],
    measure: Measure | None,
) -> RankedRows:
    keyed = [(_key(row, label, request.per_record), row) for row in getattr(rows, kind)]
    keyed.sort(key=lambda pair: (pair[1].value, pair[0]))
    scores = [-row.value for _, row in keyed]
    truncated = kind == "text" and not bm25.is_exact(scores, request.candidates, rows.rest)
    # Plain dicts, because one validation of them all is cheaper than building hit by hit.
    channel = RankedRetrievalChannel.model_validate(
        {
            "channel": kind if label is None else f"{kind}:{label}",
            "index_version": _index_version(collection, kind, rows),
            "candidate_limit": request.candidates,
            "hits": _with_features(_hits(kind, keyed), keyed, measure),
            "truncated": truncated,
        }
    )
    if kind == "vector":
        path, reason, eligible = _vector_path(collection, request, question, rows)
    else:
        path, reason, eligible = *_text_path(collection, question, channel, rows), None
    return RankedRows(label, channel, keyed, path, reason, eligible, corrections)


def _key(row: ChannelRow, label: str | None, per_record: bool) -> Key:
    """What names a hit: the chunk's place in its record, or the record; among collections, the collection too."""
    kind = row.record_type if per_record else "chunk"
    name = row.record_id if per_record else chunk_name(row.record_id, row.ordinal)
    return kind, name if label is None else f"{quote(label, safe='')}/{name}", str(row.revision)


def _hits(kind: str, keyed: list[tuple[Key, ChannelRow]]) -> list[dict[str, object]]:
    # A distance ascends from the best; a score is shown as the positive number it is.
    representation, sign = ("embedding", 1.0) if kind == "vector" else ("lexemes", -1.0)
    return [
        {
            "identity": dict(zip(_IDENTITY, key, strict=True)),
            "rank": rank,
            "representation": representation,
            "content_hash": row.content_hash.hex(),
            "raw_score": sign * row.value,
        }
        for rank, (key, row) in enumerate(keyed, start=1)
    ]


def _with_features(
    hits: list[dict[str, object]], keyed: list[tuple[Key, ChannelRow]], measure: Measure | None
) -> list[dict[str, object]]:
    if measure is None:
        return hits
    return [
        hit if row.signals is None else {**hit, "features": measure.values(row.signals)}
        for hit, (_, row) in zip(hits, keyed, strict=True)
    ]


def _index_version(collection: CollectionRow, kind: str, rows: ChannelRows) -> str:
    """What a channel's ranking depends on: the model and space, or analyzer, configuration and statistics."""
    if kind == "vector":
        space = collection.space
        return "no vectors" if space is None else f"{space.model}:{space.distance}:space-{space.space_id}"
    return f"{collection.analyzer}:{collection.text_config}:statistics-{rows.statistics_version or 0}"


def _vector_path(
    collection: CollectionRow, request: SearchRequest, question: Question, rows: ChannelRows
) -> tuple[ChannelPath, str | None, int | None]:
    if collection.space is None:
        return "none", "the collection has no vectors yet", None
    if not question.approximate:
        return "exact", _why_exact(collection, request) if rows.vector else "no chunk is eligible", None
    few = shape_of(collection, question).exact_below
    if rows.eligible is not None and rows.eligible <= few:
        return "exact", f"only {rows.eligible} chunks are eligible", rows.eligible
    returned = rows.approximate_returned or 0
    if returned < request.candidates:
        return "approximate+exact", f"the index returned {returned} of {request.candidates}", None
    iterative = question.where is not None or request.per_record
    return ("approximate+iterative" if iterative else "approximate"), None, None


def _why_exact(collection: CollectionRow, request: SearchRequest) -> str | None:
    if collection.has_hnsw:
        return "exact search was asked for" if request.exact else None
    return missing_index("vector index", collection) if collection.chunks >= MIN_CHUNKS else None


def missing_index(kind: str, collection: CollectionRow) -> str:
    """What to do about an index that a collection of this size wants, or why nothing can be done."""
    impossible = why_no_vector_index(collection.space) if kind == "vector index" else None
    return (
        impossible
        or f"no {kind} yet; build it with collection.reindex(), or: cayu-pg reindex -c {collection.name}"
    )


def _text_path(
    collection: CollectionRow, question: Question, channel: RankedRetrievalChannel, rows: ChannelRows
) -> tuple[ChannelPath, str | None]:
    if question.clauses and all(clause.excluded for clause in question.clauses):
        return "none", "the query only excludes"
    if rows.terms == 0:
        return "none", "the query has no searchable words"
    if channel.truncated:
        return "exact", "common words only add to the scores of chunks that hold a rarer one"
    if not channel.hits:
        return "exact", f"no chunk holds {'what is required' if question.clauses else 'any of the words'}"
    wanted = collection.chunks >= MIN_CHUNKS and not collection.has_gin
    return "exact", missing_index("index of words", collection) if wanted else None
