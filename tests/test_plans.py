"""The statements that searches send keep their indexes: on PostgreSQL 16 and 18, planned anew or prepared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg import sql

from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.migrating import migrate
from cayu_pg.records import Document
from cayu_pg.sql.lexemes import insert_lexemes
from cayu_pg.store import Store
from tests.conftest import new_database

SERVERS = ["server_url", "postgres16_url"]
LARGE, SMALL, SMALL_ONES = 20_000, 500, 5
DIMENSIONS = 32
AVERAGE_LENGTH = 4.0  # words of a passage below

# One passage a record, in topics of 50. Dots are no words, but make rows as long as those of passages are.
FILL = """
INSERT INTO cayu.records (collection_id, record_id, tenant, record_type, current_revision)
SELECT {collection}, 'p' || n, 'default', 'document', 1 FROM generate_series(1, {size}) n;
INSERT INTO cayu.revisions
       (collection_id, record_id, revision, tenant, batch_id, record_type, content, content_hash, metadata)
SELECT collection_id, record_id, 1, 'default', (SELECT max(batch_id) FROM cayu.batches), 'document', 'x', '', '{{}}'
FROM cayu.records WHERE collection_id = {collection} AND record_id <> 'first';
INSERT INTO cayu.chunks (collection_id, tenant, record_id, content_hash, current, metadata, text)
SELECT {collection}, 'default', 'p' || n, sha256(n::text::bytea), true,
       jsonb_build_object('number', n, 'third', n % 3, 'tags', jsonb_build_array('t' || n % 1000)),
       'passage ' || n || ' topic' || n / 50 || ' word' || n % 7 || repeat(' .', 300)
FROM generate_series(1, {size}) n;
INSERT INTO cayu.revision_chunks
       (collection_id, record_id, revision, ordinal, tenant, chunk_id, start_offset, end_offset)
SELECT collection_id, record_id, 1, 0, 'default', chunk_id, 0, 1
FROM cayu.chunks WHERE collection_id = {collection} AND record_id <> 'first';
INSERT INTO cayu.chunk_embeddings (collection_id, chunk_id, space_id, tenant, current, embedding)
SELECT k.collection_id, k.chunk_id, c.active_space_id, 'default', true,
       ARRAY(SELECT (random() + random() + random() - 1.5)::real
             FROM generate_series(1, {dimensions}) WHERE k.chunk_id > 0)::vector
FROM cayu.chunks k JOIN cayu.collections c ON c.id = k.collection_id
WHERE k.collection_id = {collection} AND k.record_id <> 'first'"""


def fill(store: Store, name: str, size: int, dimensions: int = DIMENSIONS) -> Collection:
    """A collection of `size` passages, written straight with SQL."""
    collection = store.collection(name, embedder=HashEmbedder(dimensions))
    collection.ingest(Document("passage 0 topic0 word0", id="first"))
    state = collection._state
    number = state.row.collection_id
    with store.engine.begin() as conn:
        conn.execute(sa.text("SELECT setseed(0.5)"))
        statements = FILL.format(collection=number, size=size, dimensions=dimensions)
        for statement in statements.replace("::", r"\:\:").split(";\n"):
            conn.execute(sa.text(statement))
        k = state.tables.chunks
        query = sa.select(k.c.chunk_id, k.c.text).where(k.c.collection_id == number, k.c.record_id != "first")
        ids, texts = zip(*conn.execute(query), strict=True)
        insert_lexemes(
            conn, state.tables, state.row, version=1, average=AVERAGE_LENGTH, chunk_ids=ids, texts=texts
        )
    return collection


def maintain(store: Store, *collections: Collection) -> None:
    """What a database looks like some time after a load."""
    with store.engine.connect() as conn:
        conn.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("VACUUM (ANALYZE)"))
    for collection in collections:
        collection.refresh_statistics()
        collection.reindex(min_chunks=SMALL)


@pytest.fixture(scope="module", params=SERVERS, ids=["18", "16"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store with one large collection, which has its indexes, and five small ones."""
    with new_database(request.getfixturevalue(request.param)) as url:
        migrate(url)
        with Store(url) as store:
            large = fill(store, "large", LARGE)
            for number in range(SMALL_ONES):
                fill(store, f"small{number}", SMALL)
            maintain(store, large)
            yield store


@pytest.fixture(scope="module")
def large(store: Store) -> Collection:
    return store.collection("large", embedder=HashEmbedder(DIMENSIONS))


@dataclass(frozen=True)
class Sent:
    """A statement as it went to the driver, and the settings that went before it."""

    settings: str
    statement: str
    parameters: dict[str, Any]


def sent_by(store: Store, collection: Collection, query: str, **options: Any) -> Sent:
    """What asks the channels in a search."""
    seen: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        seen.append((arguments[2], arguments[3]))

    sa.event.listen(store.engine, "before_cursor_execute", note)
    try:
        collection.search(query, **options)
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", note)
    [settings] = [statement for statement, _ in seen if statement.startswith("SET")]
    statement, parameters = next(pair for pair in seen if pair[0].startswith("WITH"))
    return Sent(settings, statement, parameters)


Node = dict[str, Any]


def planned(store: Store, sent: Sent) -> list[Node]:
    """The nodes of the plan that ran, of the statement planned anew as the store's connections do."""
    with store.engine.connect() as conn:
        conn.exec_driver_sql(sent.settings)
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sent.statement}"
        return list(nodes(conn.exec_driver_sql(explain, sent.parameters).scalar_one()[0]["Plan"]))


def prepared(store: Store, sent: Sent) -> list[Node]:
    """The same of the statement as psycopg prepares it on a server that makes one plan for all parameters."""
    with store.engine.connect() as conn:
        conn.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        conn.exec_driver_sql(sent.settings)
        driver: Any = conn.connection.driver_connection
        driver.prepare_threshold = 0
        driver.execute(sent.statement, sent.parameters)
        [name] = driver.execute(
            "SELECT name FROM pg_prepared_statements WHERE statement LIKE 'WITH state%'"
        ).fetchone()
        names = dict.fromkeys(re.findall(r"%\((\w+)\)s", sent.statement))
        values = sql.SQL(", ").join(sql.Literal(sent.parameters[each]) for each in names)
        explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {}").format(sql.Identifier(name))
        if names:
            explain += sql.SQL(" ({})").format(values)
        [plans] = driver.execute(explain, prepare=False).fetchone()
        conn.invalidate()
        return list(nodes(plans[0]["Plan"]))


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)


def used(found: list[Node]) -> set[str]:
    """The indexes that were read."""
    return {each["Index Name"] for each in found if "Index Name" in each and each["Actual Loops"]}


def largest_sort(found: list[Node]) -> int:
    return max(int(each["Actual Rows"]) for each in found if "Sort" in each["Node Type"])


def scanned(found: list[Node]) -> set[str]:
    """The tables of chunks that were read from one end to the other."""
    kinds = {
        each["Relation Name"] for each in found if each["Node Type"] == "Seq Scan" and each["Actual Loops"]
    }
    return kinds & {"chunks", "chunk_embeddings", "chunk_lexemes", "records", "revision_chunks"}


PLANNERS = pytest.mark.parametrize("plan", [planned, prepared], ids=["planned anew", "prepared"])


def name_of(collection: Collection, kind: str) -> str:
    row = collection._state.row
    assert row.space is not None
    return {
        "vectors": f"hnsw_{row.collection_id}_{row.space.space_id}",
        "words": f"gin_words_{row.collection_id}",
        "metadata": f"gin_metadata_{row.collection_id}",
    }[kind]


@PLANNERS
def test_unfiltered_vector_search_walks_the_index_and_sorts_its_candidates_only(
    store: Store, large: Collection, plan: Any
) -> None:
    found = plan(store, sent_by(store, large, "passage topic7", channels="vector"))
    assert name_of(large, "vectors") in used(found)
    assert scanned(found) == set()
    assert largest_sort(found) <= 1_000


@PLANNERS
def test_a_filter_that_many_pass_leaves_the_walk_to_the_index(
    store: Store, large: Collection, plan: Any
) -> None:
    sent = sent_by(store, large, "passage topic7", channels="vector", where={"third": 1}, candidates=40)
    found = plan(store, sent)
    assert name_of(large, "vectors") in used(found)
    assert scanned(found) == set()
    assert largest_sort(found) <= 1_000


@PLANNERS
@pytest.mark.parametrize("where", [{"number": 777}, {"tags": {"contains": "t777"}}], ids=["eq", "contains"])
@pytest.mark.parametrize("channel", ["vector", "text"])
def test_a_filter_that_few_pass_is_answered_by_the_index_on_metadata(
    store: Store, large: Collection, plan: Any, where: Any, channel: str
) -> None:
    found = plan(store, sent_by(store, large, "passage topic7", channels=channel, where=where))
    assert name_of(large, "metadata") in used(found)
    assert scanned(found) == set()
    assert largest_sort(found) <= 20


@PLANNERS
@pytest.mark.parametrize("options", [{}, {"mode": "all"}, {"mode": "phrase"}, {"per_record": True}])
def test_words_are_looked_up_in_the_index_of_words(
    store: Store, large: Collection, plan: Any, options: Any
) -> None:
    found = plan(store, sent_by(store, large, "topic7 word3", channels="text", **options))
    assert name_of(large, "words") in used(found)
    assert scanned(found) == set()


@PLANNERS
def test_both_channels_keep_their_indexes_in_one_statement(
    store: Store, large: Collection, plan: Any
) -> None:
    found = plan(store, sent_by(store, large, "topic7 word3"))
    assert {name_of(large, "vectors"), name_of(large, "words")} <= used(found)
    assert scanned(found) == set()
    assert largest_sort(found) <= 1_000


def test_a_small_collection_beside_a_large_one_is_read_by_its_key(store: Store) -> None:
    small = store.collection("small0", embedder=HashEmbedder(DIMENSIONS))
    found = planned(store, sent_by(store, small, "topic7 word3"))
    read = [each["Actual Rows"] * each["Actual Loops"] for each in found if "Relation Name" in each]
    assert max(read) <= SMALL + 1
    assert scanned(found) == set()


@pytest.mark.parametrize("server", SERVERS, ids=["18", "16"])
def test_a_text_query_reads_as_much_beside_nineteen_collections_as_alone(
    request: pytest.FixtureRequest, server: str
) -> None:
    with new_database(request.getfixturevalue(server)) as url:
        migrate(url)
        with Store(url) as store:
            collections = [fill(store, "c0", SMALL, dimensions=4)]
            maintain(store, *collections)
            alone = lexeme_buffers(store, collections[0])
            collections += [fill(store, f"c{number}", SMALL, dimensions=4) for number in range(1, 20)]
            maintain(store, *collections)
            assert lexeme_buffers(store, collections[0]) <= alone + 2
            assert alone < 100


def lexeme_buffers(store: Store, collection: Collection) -> int:
    """Pages read to find and score the chunks that hold a word which every collection holds in 72 chunks."""
    found = planned(store, sent_by(store, collection, "word3", channels="text"))
    assert name_of(collection, "words") in used(found)
    [scan] = [each for each in found if each.get("Relation Name") == "chunk_lexemes"]
    assert scan["Actual Rows"] == 72
    return int(scan["Shared Hit Blocks"] + scan["Shared Read Blocks"])
