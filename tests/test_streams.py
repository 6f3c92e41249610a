"""Documents as a stream: of any length, with large ones among them, and with other writers meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from cayu_pg.collection import Collection
from cayu_pg.records import Document
from cayu_pg.store import Store
from tests.stores import CountingEmbedder, rows, scalar

CURRENT = "SELECT record_id FROM cayu.current_chunks ORDER BY record_id"


@pytest.fixture
def collection(engine: sa.Engine) -> Collection:
    return Store(engine, embedder=CountingEmbedder()).collection("stream")


def numbered(count: int) -> list[Document]:
    return [Document(f"Document {number} of a stream.", id=f"{number:04}") for number in range(count)]


def test_a_stream_is_read_no_further_than_two_batches_ahead_of_what_is_written(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayu_pg.ingesting.BATCH_CHARACTERS", 50_000)
    asked: list[int] = []
    written: list[int] = []

    def stream() -> Iterator[str]:
        for number in range(60):
            asked.append(number)
            yield f"word{number} " * 1_000

    collection.ingest(
        stream(), chunk_size=4_000, progress=lambda state: written.append(len(asked) - state.documents)
    )
    assert len(written) > 5
    assert max(written) <= 21


def test_a_csv_of_three_megabytes_in_one_line_is_chunked_among_a_hundred_documents(
    engine: sa.Engine, collection: Collection
) -> None:
    line = ",".join(f"{number:064d}" for number in range(47_000))
    assert len(line) > 3_000_000
    assert "\n" not in line
    documents = numbered(100)
    documents.insert(50, Document(line, id="table.csv"))
    report = collection.ingest(documents, chunk_size=4_000, chunk_overlap=0)
    assert (report.records_added, report.refused) == (101, [])
    [(first, last, chunks)] = rows(
        engine,
        "SELECT min(start_offset), max(end_offset), count(*) FROM cayu.current_chunks"
        " WHERE record_id = 'table.csv'",
    )
    assert (first, last) == (0, len(line))
    assert int(str(chunks)) >= len(line) // 4_000
    assert collection.search(f"{4_711:064d}", channels="text").hits[0].record_id == "table.csv"


def test_what_is_deleted_during_an_ingest_stays_deleted(
    collection: Collection, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayu_pg.ingesting.BATCH_DOCUMENTS", 2)
    collection.ingest(numbered(2))

    def stream() -> Iterator[Document]:
        yield from numbered(8)
        assert (
            collection.delete(["0000", "0003"]) == 2
        )  # one that is as it was, and one that was just written
        yield Document("One more.", id="more")

    collection.ingest(stream())
    kept = [f"{number:04}" for number in range(8) if number not in (0, 3)]
    assert rows(engine, CURRENT) == [(name,) for name in [*kept, "more"]]
    assert collection.get("0003") is None


def test_eight_streams_over_the_same_records_never_deadlock(
    engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayu_pg.ingesting.BATCH_DOCUMENTS", 5)

    def work(writer: int) -> int:
        with Store(database_url, embedder=CountingEmbedder()) as store:
            documents = [Document(f"{each.text} By {writer % 3}.", id=each.id) for each in numbered(30)]
            turned = documents[writer * 3 :] + documents[: writer * 3]
            return len(store.collection("stream").ingest(turned).refused)

    Store(engine, embedder=CountingEmbedder()).collection("stream").ingest(numbered(1))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [0] * 8
    assert rows(engine, CURRENT) == [(f"{number:04}",) for number in range(30)]
    unplaced = "SELECT count(*) FROM cayu.chunks WHERE current AND text !~ record_id::int::text"
    assert scalar(engine, unplaced) == 0
