"""Any valid message comes back from the database equal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cayu_pg.async_store import AsyncStore
from cayu_pg.durable_json import MAX_DEPTH
from cayu_pg.messages import Message, StructuredOutputPart, ToolCallPart
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from tests.talks import open_async_transcript, open_transcript, user
from tests.test_messages import messages

PLANES = [
    chr(plane * 0x10000 + offset) for plane in range(17) for offset in (0x20, 0x41, 0xD7FF, 0xFFFD, 0xFFFF)
]


@pytest.fixture
def talk(engine: sa.Engine) -> Iterator[Transcript]:
    with Store(engine) as store:
        yield open_transcript(store)


def kept(talk: Transcript, *given: Message) -> list[Message]:
    done = talk.append(given)
    return [stored.message for stored in talk.read(after=done.first - 1 if done.first else None)]


def call(arguments: dict[str, Any]) -> Message:
    return Message(
        role="assistant", content=[ToolCallPart(tool_call_id="1", tool_name="t", arguments=arguments)]
    )


def nested(depth: int) -> Any:
    value: Any = []
    for level in range(depth - 1):
        value = [value] if level % 2 else {"a": value}
    return value


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(messages, min_size=1, max_size=4))
def test_any_message_is_read_back_equal(talk: Transcript, given: list[Message]) -> None:
    read = kept(talk, *given)
    assert read == given
    assert [each.model_dump_json() for each in map(canonical, read)] == [
        each.model_dump_json() for each in map(canonical, given)
    ]


def canonical(message: Message) -> Message:
    """The message with the keys of its payloads sorted, as jsonb keeps no order."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value)}
        return [ordered(each) for each in value] if isinstance(value, list) else value

    return Message.model_validate(ordered(message.model_dump(mode="json")))


@pytest.mark.parametrize(
    "number",
    [2**63 - 1, -(2**63), 2**53 + 1, 0, 0.1, 1e-300, 1.7976931348623157e-5, 123456789.123456789, 5e-324],
)
def test_numbers_are_read_back_exactly(talk: Transcript, number: float) -> None:
    (message,) = kept(talk, call({"n": number, "list": [number, -number if number != -(2**63) else 0]}))
    part = message.content[0]
    assert isinstance(part, ToolCallPart)
    assert (part.arguments["n"], type(part.arguments["n"])) == (number, type(number))


def test_every_plane_of_unicode_is_read_back(talk: Transcript) -> None:
    characters = [each for each in PLANES if not "\ud800" <= each <= "\udfff"]
    text = "".join(characters)
    given = [user(f"x{text}"), call({character: character for character in characters})]
    assert kept(talk, *given) == given


def test_control_characters_and_escapes_are_read_back(talk: Transcript) -> None:
    text = "".join(map(chr, range(1, 0xA0))) + "\u2028\u2029\ufeff\\u0041 \\ \" '"
    assert kept(talk, user(text)) == [user(text)]


def test_nesting_at_the_limit_is_read_back(talk: Transcript) -> None:
    # The message, its content, the part and the arguments are four levels.
    deep = call({"a": nested(MAX_DEPTH - 4)})
    output = Message(role="tool", content=[StructuredOutputPart(name=None, output=nested(MAX_DEPTH))])
    with pytest.raises(ValueError, match="nested"):
        call({"a": nested(MAX_DEPTH - 3)})
    assert kept(talk, deep, output) == [deep, output]


def test_a_message_of_many_megabytes_is_read_back(talk: Transcript) -> None:
    large = user("lorem ipsum " * 1_000_000)
    assert kept(talk, large) == [large]


def test_both_doors_store_the_same(talk: Transcript, database_url: str) -> None:
    message = call({"n": [2**63 - 1, 0.1, None, True, "é\U0001f600"]})

    async def run() -> Message:
        store = AsyncStore(database_url)
        other = open_async_transcript(store, "other")
        await other.append(message)
        (stored,) = await other.read()
        await store.close()
        return stored.message

    assert asyncio.run(run()) == kept(talk, message)[0] == message
