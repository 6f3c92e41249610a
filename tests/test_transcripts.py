"""A transcript is a log: appended to, read in pages, repeated safely, shortened from the front."""

from __future__ import annotations

import asyncio
import inspect
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from cayu_pg import transcripts
from cayu_pg.async_store import AsyncStore
from cayu_pg.async_transcript import AsyncTranscript
from cayu_pg.errors import (
    Conflict,
    DatabaseError,
    IdempotencyConflict,
    InvalidInput,
    InvalidStoredMessage,
    PositionConflict,
)
from cayu_pg.messages import Message, MessageRole, TextPart
from cayu_pg.sql import appends
from cayu_pg.sql.appends import transcript_name
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from tests.stores import rows, scalar, statements_of
from tests.talks import numbered, open_async_transcript, open_transcript, positions, texts, user

HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def store(engine: sa.Engine) -> Iterator[Store]:
    with Store(engine) as store:
        yield store


@pytest.fixture
def talk(store: Store) -> Transcript:
    return open_transcript(store)


def execute(engine: sa.Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement.replace("::", r"\:\:")))


# --- append


def test_positions_count_from_zero_and_go_on(talk: Transcript) -> None:
    first = talk.append(numbered(2))
    second = talk.append(user("one more"))
    assert (first.first, first.last, first.replayed) == (0, 1, False)
    assert (second.first, second.last) == (2, 2)
    assert (talk.count(), talk.next_position()) == (3, 3)


def test_a_transcript_that_nobody_wrote_to_is_empty(talk: Transcript) -> None:
    assert (talk.read(), talk.last(5), talk.count(), talk.next_position()) == ([], [], 0, 0)
    assert talk.search("anything") == []
    assert (talk.delete_before(7), talk.delete()) == (0, False)


def test_messages_come_back_equal_with_time_and_key(talk: Transcript) -> None:
    message = Message.tool_result(
        tool_call_id="1", tool_name="t", content="done", structured={"n": 2**63 - 1}
    )
    talk.append([message], idempotency_key="once")
    (stored,) = talk.read()
    assert (stored.position, stored.message, stored.idempotency_key) == (0, message, "once")
    assert abs(stored.created_at - now()) < HOUR


def test_tenants_and_ids_are_apart(store: Store) -> None:
    names = [("a", "talk"), ("b", "talk"), ("a", "other"), ("a" * 512, "é" * 512)]
    for tenant, transcript_id in names:
        open_transcript(store, transcript_id, tenant).append(user(f"of {tenant} {transcript_id}"))
    for tenant, transcript_id in names:
        assert texts(open_transcript(store, transcript_id, tenant).read()) == [f"of {tenant} {transcript_id}"]


def test_the_key_is_a_fixed_hash_of_tenant_and_id() -> None:
    assert transcript_name("default", "talk").key == UUID("01285e70-1662-100d-3fa1-123c5ba5d7e5")
    assert transcript_name("ab", "c").key != transcript_name("a", "bc").key


def test_an_append_to_an_existing_transcript_is_one_statement(engine: sa.Engine, talk: Transcript) -> None:
    talk.append(user("first"))
    with statements_of(engine) as sent:
        talk.append(numbered(10_000), idempotency_key="big")
    assert len(sent) == 1
    assert scalar(engine, "SELECT count(*) FROM cayu.message_lexemes") == 10_001
    assert texts(talk.last(1)) == ["message 9999"]


def test_an_append_too_large_for_one_statement_is_still_one_append(
    engine: sa.Engine, talk: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "MAX_STATEMENT", 200)
    talk.append(user("before"))
    with statements_of(engine) as sent:
        done = talk.append([user("long " * 60), *numbered(9)], idempotency_key="k", expected_position=1)
    assert len(sent) > 2
    assert (done.first, done.last) == (1, 10)
    assert texts(talk.read(after=1)) == [f"message {number}" for number in range(9)]
    assert [hit.position for hit in talk.search("long")] == [1]
    assert talk.append([user("long " * 60), *numbered(9)], idempotency_key="k").replayed


def test_a_batch_is_all_or_nothing(engine: sa.Engine, talk: Transcript) -> None:
    talk.append(user("first"))
    execute(
        engine, "ALTER TABLE cayu.message_lexemes ADD CONSTRAINT no_seven CHECK (NOT tsv @@ '7'::tsquery)"
    )
    with pytest.raises(DatabaseError):
        talk.append(numbered(10))
    assert (talk.count(), talk.next_position()) == (1, 1)


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (7, "messages"),
        ([user("a"), {"role": "user"}], "messages[1]"),
        ([user("a"), None], "messages[1]"),
    ],
)
def test_what_is_no_message_is_refused_before_any_sql(
    engine: sa.Engine, talk: Transcript, messages: Any, field: str
) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput) as refused:
        talk.append(messages)
    assert (refused.value.field, sent) == (field, [])


def test_a_message_built_unchecked_is_refused_before_any_sql(engine: sa.Engine, talk: Transcript) -> None:
    part = TextPart.model_construct(type="text", text="nul \x00")
    unchecked = Message.model_construct(role=MessageRole.USER, content=(part,))
    with statements_of(engine) as sent, pytest.raises(InvalidInput, match=r"messages\[0\].*content\.0.*text"):
        talk.append(unchecked)
    assert sent == []


@pytest.mark.parametrize(
    "options",
    [
        {"expected_position": -1},
        {"expected_position": True},
        {"expected_position": 2**63},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * 513},
        {"idempotency_key": "nul \x00"},
        {"idempotency_key": "\ud800"},
        {"idempotency_key": 7},
    ],
)
def test_a_bad_option_is_refused_before_any_sql(
    engine: sa.Engine, talk: Transcript, options: dict[str, Any]
) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput) as refused:
        talk.append(user("hello"), **options)
    assert (refused.value.field, sent) == (next(iter(options)), [])


@pytest.mark.parametrize("name", ["", " padded ", "nul\x00", "\ud800", "x" * 1025, 7])
def test_a_bad_id_is_refused(store: Store, name: Any) -> None:
    with pytest.raises(InvalidInput, match="transcript_id"):
        open_transcript(store, name)


# --- expected_position


def test_expected_position_is_where_the_first_message_goes(talk: Transcript) -> None:
    assert talk.append(numbered(2), expected_position=0).first == 0
    assert talk.append(numbered(2), expected_position=2).first == 2


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_a_wrong_expected_position_tells_the_current_one(talk: Transcript, expected: int) -> None:
    talk.append(numbered(2))
    with pytest.raises(PositionConflict) as conflict:
        talk.append(user("late"), expected_position=expected)
    assert (conflict.value.expected, conflict.value.current) == (expected, 2)
    assert isinstance(conflict.value, Conflict)
    assert talk.count() == 2


def test_a_wrong_expected_position_creates_no_transcript(engine: sa.Engine, talk: Transcript) -> None:
    with pytest.raises(PositionConflict) as conflict:
        talk.append(user("late"), expected_position=5)
    assert conflict.value.current == 0
    assert scalar(engine, "SELECT count(*) FROM cayu.transcripts") == 0


# --- idempotency keys


def test_the_same_key_and_messages_answer_the_first_result(talk: Transcript) -> None:
    first = talk.append(numbered(3), idempotency_key="k")
    talk.append(user("between"))
    again = talk.append(numbered(3), idempotency_key="k")
    assert (again.first, again.last, again.replayed) == (first.first, first.last, True)
    assert talk.count() == 4


def test_a_replay_does_not_look_at_the_expected_position(talk: Transcript) -> None:
    talk.append(numbered(3), idempotency_key="k", expected_position=0)
    assert talk.append(numbered(3), idempotency_key="k", expected_position=0).replayed


def test_a_replay_is_told_by_meaning_and_not_by_order_of_keys(talk: Transcript) -> None:
    def call(arguments: dict[str, Any]) -> Message:
        return Message.tool_call(tool_call_id="1", tool_name="t", arguments=arguments)

    talk.append(call({"a": 1, "b": 2.0}), idempotency_key="k")
    assert talk.append(call({"b": 2, "a": 1.0}), idempotency_key="k").replayed


@pytest.mark.parametrize("others", [numbered(2), numbered(4), numbered(3, start=1)])
def test_the_same_key_with_other_messages_is_an_error(talk: Transcript, others: list[Message]) -> None:
    talk.append(user("first"))
    talk.append(numbered(3), idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as conflict:
        talk.append(others, idempotency_key="k")
    assert (conflict.value.key, conflict.value.first, conflict.value.last) == ("k", 1, 3)
    assert talk.count() == 4


def test_a_key_outlives_the_messages_it_wrote(talk: Transcript) -> None:
    talk.append(numbered(3), idempotency_key="k")
    talk.delete_before(3)
    again = talk.append(numbered(3), idempotency_key="k")
    assert (again.first, again.last, again.replayed, talk.count()) == (0, 2, True, 0)
    with pytest.raises(IdempotencyConflict):
        talk.append(numbered(1), idempotency_key="k")


def test_keys_belong_to_one_transcript(store: Store) -> None:
    open_transcript(store, "a").append(user("x"), idempotency_key="k")
    assert not open_transcript(store, "b").append(user("y"), idempotency_key="k").replayed


def test_any_text_of_512_characters_is_a_key(talk: Transcript) -> None:
    key = " \U0001f600'\"\\" * 102 + "ab"
    assert len(key) == 512
    talk.append(user("x"), idempotency_key=key)
    assert talk.append(user("x"), idempotency_key=key).replayed
    assert talk.read()[0].idempotency_key == key


# --- read


def test_pages_go_forwards_and_backwards(talk: Transcript) -> None:
    talk.append(numbered(5))
    assert positions(talk.read(limit=2)) == [0, 1]
    assert positions(talk.read(after=1, limit=2)) == [2, 3]
    assert positions(talk.read(after=3, limit=2)) == [4]
    assert positions(talk.read(limit=2, reverse=True)) == [4, 3]
    assert positions(talk.read(after=3, limit=9, reverse=True)) == [2, 1, 0]
    assert (talk.read(after=4), talk.read(after=0, reverse=True)) == ([], [])


def test_a_page_says_where_the_next_begins(talk: Transcript) -> None:
    talk.append(numbered(4))
    assert talk.read(limit=2).after == 1
    assert talk.read(after=1, limit=2).after is None
    assert talk.read(limit=3, reverse=True).after == 1


def test_last_gives_the_newest_in_reading_order(talk: Transcript) -> None:
    talk.append(numbered(5))
    assert texts(talk.last(2)) == ["message 3", "message 4"]
    assert len(talk.last(100)) == 5


@pytest.mark.parametrize(
    "options",
    [
        {"after": -1},
        {"after": 1.0},
        {"limit": 0},
        {"limit": 10_001},
        {"limit": True},
        {"on_invalid": "ignore"},
    ],
)
def test_a_bad_page_is_refused_before_any_sql(
    engine: sa.Engine, talk: Transcript, options: dict[str, Any]
) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput) as refused:
        talk.read(**options)
    assert (refused.value.field, sent) == (next(iter(options)), [])


def test_a_long_transcript_is_iterated_in_constant_memory(engine: sa.Engine, talk: Transcript) -> None:
    talk.append(user("first"))
    execute(
        engine,
        "INSERT INTO cayu.transcript_messages (transcript_key, position, tenant, role, content)"
        """ SELECT transcript_key, n, tenant, 'user', '[{"type": "text", "text": "filler"}]'"""
        " FROM cayu.transcripts, generate_series(1, 99999) n",
    )
    with statements_of(engine) as sent:
        stored = talk.iterate()
        assert [next(stored).position for _ in range(80_000)] == list(range(80_000))
        tracemalloc.start()  # for the last pages only, as it makes everything slow
        assert sum(1 for _ in stored) == 20_000
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(sent) == 100
    assert peak < 8_000_000


def test_iteration_goes_backwards_and_from_a_position(talk: Transcript) -> None:
    talk.append(numbered(5))
    assert [each.position for each in talk.iterate(reverse=True)] == [4, 3, 2, 1, 0]
    assert [each.position for each in talk.iterate(after=2)] == [3, 4]
    assert [positions(page) for page in talk.pages(limit=2)] == [[0, 1], [2, 3], [4]]


def test_every_operation_ends_its_transaction(store: Store, talk: Transcript) -> None:
    talk.append(numbered(3), idempotency_key="k")
    for operation in (
        talk.read,
        talk.count,
        talk.next_position,
        lambda: talk.last(1),
        lambda: talk.search("message"),
    ):
        operation()
        assert scalar(store.engine, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'") == 0


# --- rows that were edited by hand


def break_rows(engine: sa.Engine, *places: int) -> None:
    execute(
        engine,
        """UPDATE cayu.transcript_messages SET content = '[{"type": "text", "text": "  "}]'"""
        f" WHERE position = ANY('{{{','.join(map(str, places))}}}')",
    )


def test_a_row_that_is_no_message_raises_with_its_place(engine: sa.Engine, talk: Transcript) -> None:
    talk.append(numbered(3))
    break_rows(engine, 1)
    assert texts(talk.read(limit=1)) == ["message 0"]
    for reading in (talk.read, lambda: talk.last(2), lambda: list(talk.iterate())):
        with pytest.raises(InvalidStoredMessage, match=r"content\.0.*blank") as invalid:
            reading()
        assert (invalid.value.transcript_id, invalid.value.position) == ("talk", 1)


def test_rows_that_are_no_messages_can_be_skipped_and_are_counted(
    engine: sa.Engine, talk: Transcript
) -> None:
    talk.append(numbered(6))
    break_rows(engine, 2, 3, 5)
    page = talk.read(on_invalid="skip")
    assert (positions(page), [error.position for error in page.skipped]) == ([0, 1, 4], [2, 3, 5])
    pages = list(talk.pages(limit=2, on_invalid="skip"))
    assert [(positions(each), len(each.skipped)) for each in pages] == [([0, 1], 0), ([], 2), ([4], 1)]
    assert [stored.position for stored in talk.iterate(on_invalid="skip")] == [0, 1, 4]
    assert len(talk.last(2, on_invalid="skip").skipped) == 1


def test_an_invalid_hit_raises_or_is_skipped(engine: sa.Engine, talk: Transcript) -> None:
    talk.append([user("apple pie"), user("apple tart")])
    break_rows(engine, 1)
    with pytest.raises(InvalidStoredMessage):
        talk.search("apple")
    hits = talk.search("apple", on_invalid="skip")
    assert ([hit.position for hit in hits], [error.position for error in hits.skipped]) == ([0], [1])


@pytest.mark.parametrize(
    "change",
    [
        "transcript_messages SET role = 'robot'",
        "transcript_messages SET position = -1",
        "transcript_messages SET tenant = ''",
        "transcript_messages SET idempotency_key = ''",
        """transcript_messages SET content = '{"type": "text", "text": "x"}'""",
        "transcript_messages SET content = '[]'",
        """transcript_messages SET content = '["text"]'""",
        "transcript_messages SET content = '[[{}]]'",
        "transcript_messages SET content = 'null'",
        "transcript_messages SET content = NULL",
        "transcripts SET next_position = -1",
        "transcripts SET transcript_id = ''",
        "transcripts SET metadata = '[]'",
        "transcript_appends SET key_hash = 'short'",
        "transcript_appends SET last_position = first_position - 1",
        "message_lexemes SET length = -1",
    ],
)
def test_the_database_refuses_what_would_break_the_log(
    engine: sa.Engine, talk: Transcript, change: str
) -> None:
    talk.append(user("hello"), idempotency_key="k")
    with pytest.raises(sa.exc.IntegrityError):
        execute(engine, f"UPDATE cayu.{change}")


def test_a_position_that_somebody_took_by_hand_is_a_conflict(engine: sa.Engine, talk: Transcript) -> None:
    talk.append(user("hello"))
    execute(
        engine,
        "INSERT INTO cayu.transcript_messages (transcript_key, position, tenant, role, content)"
        " SELECT transcript_key, 1, tenant, role, content FROM cayu.transcript_messages",
    )
    with pytest.raises(Conflict):
        talk.append(user("me too"), idempotency_key="k")
    assert talk.count() == 2


# --- deletion and retention


def test_delete_before_shortens_from_the_front(engine: sa.Engine, talk: Transcript) -> None:
    talk.append(numbered(5))
    assert (talk.delete_before(3), talk.delete_before(3)) == (3, 0)
    assert positions(talk.read()) == [3, 4]
    assert rows(engine, "SELECT position FROM cayu.message_lexemes ORDER BY 1") == [(3,), (4,)]
    assert talk.append(user("next")).first == 5


@pytest.mark.parametrize("position", [-1, None, "3"])
def test_a_bad_position_deletes_nothing(talk: Transcript, position: Any) -> None:
    talk.append(numbered(5))
    with pytest.raises(InvalidInput, match="position"):
        talk.delete_before(position)
    assert talk.count() == 5


def test_delete_takes_everything_and_the_log_begins_anew(engine: sa.Engine, store: Store) -> None:
    kept, talk = open_transcript(store, "kept"), open_transcript(store)
    kept.append(numbered(2))
    talk.append(numbered(2), idempotency_key="k")
    assert (talk.delete(), talk.delete()) == (True, False)
    assert scalar(engine, "SELECT count(*) FROM cayu.transcript_appends") == 0
    assert scalar(engine, "SELECT count(*) FROM cayu.message_lexemes") == 2
    again = talk.append(numbered(1), idempotency_key="k")
    assert (again.first, again.replayed, kept.count()) == (0, False, 2)


def aged(engine: sa.Engine, store: Store) -> list[Transcript]:
    """Three transcripts of 10 messages, the first 7 of each a day old; the last is another tenant's."""
    talks = [open_transcript(store, "a"), open_transcript(store, "b"), open_transcript(store, "c", "other")]
    for talk in talks:
        talk.append(numbered(10))
    execute(
        engine,
        "UPDATE cayu.transcript_messages SET created_at = now() - interval '1 day' WHERE position < 7",
    )
    return talks


def retain(store: Store, cutoff: Any, batch: int = 4, dry_run: bool = False) -> transcripts.RetentionReport:
    return store.delete_messages_older_than(cutoff, batch=batch, dry_run=dry_run)


def test_retention_deletes_what_is_old_in_bounded_batches(engine: sa.Engine, store: Store) -> None:
    a, b, other = aged(engine, store)
    report = retain(store, now() - HOUR)
    assert (report.messages, report.batches, report.dry_run) == (14, 4, False)
    assert (positions(a.read()), positions(b.read()), other.count()) == ([7, 8, 9], [7, 8, 9], 10)
    assert a.next_position() == 10
    assert retain(store, now() - HOUR).messages == 0


def test_a_dry_run_counts_and_deletes_nothing(engine: sa.Engine, store: Store) -> None:
    a, *_ = aged(engine, store)
    report = retain(store, now() - HOUR, dry_run=True)
    assert (report.messages, report.batches, report.dry_run, a.count()) == (14, 4, True, 10)


@pytest.mark.parametrize(("cutoff", "batch"), [(datetime(2026, 1, 1), 4), ("yesterday", 4), (now(), 0)])
def test_retention_refuses_a_bad_cutoff_or_batch(store: Store, cutoff: Any, batch: int) -> None:
    with pytest.raises(InvalidInput, match=r"cutoff|batch"):
        retain(store, cutoff, batch)


# --- in the caller's transaction


def test_an_append_in_the_callers_transaction_is_rolled_back_with_it(
    engine: sa.Engine, store: Store, talk: Transcript
) -> None:
    talk.append(user("before"))
    with engine.connect() as connection:
        inside = open_transcript(store.using(connection))
        assert inside.append(numbered(2), idempotency_key="k").first == 1
        assert inside.count() == 3
        with pytest.raises(PositionConflict):
            inside.append(user("late"), expected_position=0)
        assert inside.append(numbered(2), idempotency_key="k").replayed
        connection.rollback()
    assert (talk.count(), talk.append(numbered(2), idempotency_key="k").replayed) == (1, False)


def test_a_refused_append_leaves_the_callers_transaction_usable(engine: sa.Engine, store: Store) -> None:
    with engine.begin() as connection:
        inside = open_transcript(store.using(connection))
        with pytest.raises(PositionConflict):
            inside.append(user("late"), expected_position=3)
        inside.append(user("hello"), expected_position=0)
    assert open_transcript(store).count() == 1


# --- the asynchronous door


def test_the_asynchronous_door_offers_the_same(database_url: str) -> None:
    async def run() -> None:
        store = AsyncStore(database_url)
        talk = open_async_transcript(store)
        assert talk.id == "talk"
        assert (await talk.append(numbered(5), idempotency_key="k")).last == 4
        assert (await talk.append(numbered(5), idempotency_key="k")).replayed
        with pytest.raises(PositionConflict):
            await talk.append(user("late"), expected_position=1)
        assert positions(await talk.read(after=1, limit=2)) == [2, 3]
        assert positions(await talk.last(2)) == [3, 4]
        assert [each.position async for each in talk.iterate(reverse=True)] == [4, 3, 2, 1, 0]
        assert [positions(page) async for page in talk.pages(limit=3)] == [[0, 1, 2], [3, 4]]
        assert [hit.position for hit in await talk.search("3", roles="user")] == [3]
        assert [hit.position for hit in await store.search_messages("3", roles="user")] == [3]
        assert (await store.delete_messages_older_than(now() - HOUR, dry_run=True)).messages == 0
        assert (await talk.count(), await talk.delete_before(4), await talk.next_position()) == (5, 4, 5)
        assert await talk.delete()
        await store.close()

    asyncio.run(run())


def test_both_doors_have_the_same_methods_and_parameters() -> None:
    def surface(door: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(door).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }

    assert surface(Transcript) == surface(AsyncTranscript)
