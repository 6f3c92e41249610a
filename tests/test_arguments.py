"""Every argument of every public method: a value of the wrong kind is InvalidInput before any SQL is sent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from cayu_pg.async_store import AsyncStore
from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.errors import CayuPgError, InvalidInput
from cayu_pg.fusion import WeightedReciprocalRankFusionConfig
from cayu_pg.messages import Message
from cayu_pg.records import Document
from cayu_pg.search_request import SearchOptions
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from tests.conftest import new_database
from tests.stores import statements_of

VALUES: dict[str, Any] = {
    "none": None,
    "number": 5,
    "object": object(),
    "bytes": b"x",
    "list": [],
    "mapping": {},
    "nan": float("nan"),
    "surrogate": "\ud800",
    "nul": "a\0b",
    "nested": [[1]],
    "keyed": {"a": object()},
}
# Where one of these is right. None is, too, wherever it is the default.
RIGHT = {
    "number": """Store.collection.k1 Store.delete_messages_older_than.batch Store.search.limit Store.search.candidates
        Store.search.max_distance Store.search.rerank_seconds Store.search.as_of Store.search.timeout
        Store.doctor.timeout Store.search_messages.limit Collection.calibrate.probes Collection.evaluate.k
        Collection.evaluate.recall_k Collection.get.revision Collection.ingest.chunk_overlap
        Collection.measure_recall.sample Collection.measure_recall.k
        Collection.prune.keep_last Collection.records.limit Collection.reindex.min_chunks Collection.reindex.timeout
        Collection.restore.revision Collection.search.limit Collection.search.candidates Collection.search.as_of
        Collection.search.max_distance Collection.search.rerank_seconds Collection.search.timeout
        Collection.search.n_results Collection.sync.chunk_overlap Collection.tune.k Collection.tune.candidates
        Transcript.append.expected_position Transcript.delete_before.position Transcript.iterate.after
        Transcript.last.n Transcript.pages.after Transcript.pages.limit Transcript.read.after Transcript.read.limit
        Transcript.search.limit Store.with_timeouts.statement_timeout Store.with_timeouts.lock_timeout
        Collection.with_timeouts.statement_timeout Collection.with_timeouts.lock_timeout
        Transcript.with_timeouts.statement_timeout Transcript.with_timeouts.lock_timeout""",
    "list": """Store.search_messages.roles Collection.delete.record_ids Collection.erase.record_ids
        Collection.evaluate.fusions Collection.ingest.documents Collection.sync.documents Transcript.search.roles""",
    "mapping": """Store.search.where Collection.declare_features.features Collection.measure_recall.where
        Collection.search.where Collection.sync.scope""",
}
FITS = {(place, kind) for kind, places in RIGHT.items() for place in places.split()}
FRESH = (f"collection-{number}" for number in count())

# What the other arguments of a call are, where they have no default.
GIVEN: dict[str, Callable[[], Any]] = {
    "name": lambda: next(FRESH),
    "names": lambda: ["notes"],
    "cutoff": lambda: datetime(2020, 1, 1, tzinfo=UTC),
    "query": lambda: "word",
    "queries": lambda: {"q": "word", "r": "word"},
    "qrels": lambda: {"q": {"a": 1}, "r": {"a": 1}},
    "transcript_id": lambda: "talk",
    "embedder": lambda: HashEmbedder(8),
    "record_id": lambda: "a",
    "revision": lambda: 1,
    "n": lambda: 3,
    "documents": lambda: "One more text.",
    "messages": lambda: Message.text("user", "One more word."),
    "config": lambda: WeightedReciprocalRankFusionConfig(
        configuration_version="mine", channel_weights={"vector": 1.0, "text": 1.0}
    ),
}

# Of these at least one has to be given.
ALSO = {"prune": {"keep_last": 5, "older_than": datetime(2020, 1, 1, tzinfo=UTC)}}


def parameters(door: type, method: str) -> dict[str, Any]:
    """The parameters of a method with their defaults, for `**options` those of `Collection.search`."""
    found = {}
    for each in list(inspect.signature(getattr(door, method)).parameters.values())[1:]:
        if each.kind is each.VAR_KEYWORD:
            found |= {name: parameters(Collection, "search")[name] for name in SearchOptions.__annotations__}
        else:
            found[each.name] = each.default
    return found


# `embedded` starts a server, and has a test of its own.
PLACES = [
    (door, method, parameter)
    for door in (Store, Collection, Transcript)
    for method, _ in inspect.getmembers(door, inspect.isfunction)
    if not method.startswith("_")
    for parameter in parameters(door, method)
]


@dataclass
class Doors:
    """The objects whose methods are called, by the name of the class, and the engine that they use."""

    engine: sa.Engine
    objects: dict[str, Any]
    wait: Callable[[Any], Any] = field(default=lambda result: result)

    def call(self, door: str, method: str, arguments: dict[str, Any]) -> None:
        """Call it, and read what it iterates over to the end."""
        result = self.wait(getattr(self.objects[door], method)(**arguments))
        if isinstance(result, Iterator):
            list(result)


async def awaited(result: Any) -> Any:
    if isinstance(result, AsyncIterator):
        return [each async for each in result]
    return await result if isinstance(result, Awaitable) else result


def filled(collection: Collection) -> None:
    collection.ingest([Document(f"Word number {name}.", id=name) for name in "abcdefghijkl"])
    collection.reindex(min_chunks=1)
    collection.save_fusion("mine", GIVEN["config"]())


@pytest.fixture(scope="module")
def doors(server_url: str, migrated_template: str) -> Iterator[dict[str, Doors]]:
    """Both doors to one database, which the tests of this module share."""
    with (
        new_database(server_url, migrated_template) as url,
        asyncio.Runner() as runner,
        Store(url, embedder=HashEmbedder(8)) as store,
    ):
        filled(store.collection("notes"))
        objects = (store, store.collection("notes"), store.transcript("talk"))
        plain = Doors(store.engine, dict(zip(("Store", "Collection", "Transcript"), objects, strict=True)))

        async def opened() -> tuple[AsyncStore, dict[str, Any]]:
            other = AsyncStore(url, embedder=HashEmbedder(8))
            collection, talk = await other.collection("notes"), await other.transcript("talk")
            return other, {"Store": other, "Collection": collection, "Transcript": talk}

        other, twins = runner.run(opened())
        awaiting = Doors(other.engine.sync_engine, twins, lambda result: runner.run(awaited(result)))
        yield {"sync": plain, "async": awaiting}
        runner.run(other.close())


def what_happens(doors: Doors, door: str, method: str, arguments: dict[str, Any]) -> str:
    with statements_of(doors.engine) as sent:
        try:
            doors.call(door, method, arguments)
        except InvalidInput:
            return f"refused after {len(sent)} statements" if sent else "refused"
        except CayuPgError:
            return "done"  # what was asked for is sound, but there is no such thing
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
            return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("door", "method", "parameter"),
    [pytest.param(*each, id=f"{each[0].__name__}.{each[1]}.{each[2]}") for each in PLACES],
)
def test_an_argument_of_the_wrong_kind_is_refused_before_any_sql(
    doors: dict[str, Doors], kind: str, door: type, method: str, parameter: str
) -> None:
    place = f"{door.__name__}.{method}.{parameter}"
    known = parameters(door, method)
    others = {
        name: GIVEN[name]()
        for name, default in known.items()
        if default is inspect.Parameter.empty and name != parameter
    }
    others |= {name: given for name, given in ALSO.get(method, {}).items() if name != parameter}
    wrong = []
    for label, value in VALUES.items():
        fits = (place, label) in FITS or (value is None and known[parameter] is None)
        found = what_happens(doors[kind], door.__name__, method, {**others, parameter: value})
        if found != ("done" if fits else "refused"):
            wrong.append(f"{label}: {found}")
    assert wrong == []


@pytest.mark.parametrize("door", [Store, AsyncStore])
def test_a_store_is_not_made_of_arguments_of_the_wrong_kind(door: type) -> None:
    for name, default in parameters(door, "__init__").items():
        for label, value in VALUES.items():
            number = name.endswith("timeout") or name == "replica_wait"
            if (number and label == "number") or (value is None and default is None):
                continue
            given = {"url_or_engine": "postgresql://nobody@nowhere/nothing", name: value}
            with pytest.raises(InvalidInput):
                door(**given)


@pytest.mark.parametrize("door", [Store, AsyncStore])
def test_no_server_is_started_for_arguments_of_the_wrong_kind(
    door: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a server was started")

    async def opened(arguments: dict[str, Any]) -> None:
        await awaited(door.embedded(**arguments))  # type: ignore[attr-defined]

    monkeypatch.setattr("cayu_pg.embedded.EmbeddedServer.start", start)
    for name in inspect.signature(door.embedded).parameters:  # type: ignore[attr-defined]
        for value in VALUES.values():
            if value is not None or name == "schema":
                with pytest.raises(InvalidInput):
                    asyncio.run(opened({name: value}))
