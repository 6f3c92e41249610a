import json
from typing import Any

import pytest

from cayu_pg.errors import InvalidInput
from cayu_pg.message_formats import (
    called_tools,
    from_anthropic,
    from_anthropic_conversation,
    from_json_line,
    from_json_lines,
    from_openai,
    from_openai_conversation,
)
from cayu_pg.messages import Message, MessageRole, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Paris?"}]},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
    {"role": "assistant", "content": "18 degrees.", "annotations": []},
]
ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Ask the tool.", "signature": "sig"},
            {"type": "redacted_thinking", "data": "opaque"},
            {"type": "text", "text": "One moment."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "18"}]},
            {"type": "text", "text": "And in Rome?"},
        ],
    },
]


def image(kind: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "url", "url": "https://example.com/secret.png"}}


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "t", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def test_openai_conversation_becomes_messages() -> None:
    assert from_openai_conversation(OPENAI) == [
        Message.text("system", "Be brief."),
        Message(role=MessageRole.USER, content=(TextPart(text="Weather"), TextPart(text="in Paris?"))),
        Message.tool_call(tool_call_id="c1", tool_name="weather", arguments={"city": "Paris"}),
        Message.tool_result(tool_call_id="c1", tool_name="weather", content="18 degrees"),
        Message.text("assistant", "18 degrees."),
    ]


def test_anthropic_conversation_becomes_messages() -> None:
    assert from_anthropic_conversation(ANTHROPIC) == [
        Message.text("user", "Weather in Paris?"),
        Message(
            role=MessageRole.ASSISTANT,
            content=(
                ThinkingPart(text="Ask the tool.", provider_state={"type": "thinking", "signature": "sig"}),
                ThinkingPart(provider_state={"type": "redacted_thinking", "data": "opaque"}),
                TextPart(text="One moment."),
                ToolCallPart(tool_call_id="t1", tool_name="weather", arguments={"city": "Paris"}),
            ),
        ),
        Message.tool_result(tool_call_id="t1", tool_name="weather", content="18"),
        Message.text("user", "And in Rome?"),
    ]


def test_developer_messages_are_system_messages() -> None:
    assert from_openai({"role": "developer", "content": "x"}) == [Message.text("system", "x")]


def test_text_and_calls_share_a_message() -> None:
    (message,) = from_openai({**call("{}"), "content": "Looking."})
    assert [part.type for part in message.content] == ["text", "tool_call"]


def test_several_texts_of_a_result_are_its_lines() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    record = {"role": "tool", "tool_call_id": "c", "name": "t", "content": texts}
    assert from_openai(record) == [Message.tool_result(tool_call_id="c", tool_name="t", content="a\nb")]


def test_failed_results_stay_failed() -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", "is_error": True}
    (message,) = from_anthropic({"role": "user", "content": [block]}, tool_names={"t1": "weather"})
    assert message.content == (ToolResultPart(tool_call_id="t1", tool_name="weather", is_error=True),)


def test_text_before_a_result_stays_before_it() -> None:
    blocks = [{"type": "text", "text": "first"}, {"type": "tool_result", "tool_use_id": "t1", "content": "x"}]
    messages = from_anthropic({"role": "user", "content": blocks}, tool_names={"t1": "weather"})
    assert [message.role for message in messages] == ["user", "tool"]


def test_called_tools_are_known_by_id() -> None:
    assert called_tools(from_anthropic(ANTHROPIC[1])) == {"t1": "weather"}


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "secret"}}]}, "content.0"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "secret": 1}]}, "content.0.secret"),
        ({"role": "user", "content": "a", "name": "secret"}, "user.name"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": ""}, "message"),
        ({"role": "user"}, "message"),
        ({"role": "user", "content": " \n"}, "text"),
        ({"role": "assistant", "refusal": "secret"}, "refusal"),
        ({"role": "assistant", "function_call": {"name": "secret"}}, "function_call"),
        ({"role": "tool", "tool_call_id": "secret", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "function", "content": "x", "name": "secret"}, "message"),
        ({"content": "secret"}, "message"),
        (call("not json"), "tool_calls[0].function.arguments"),
        (call("[1]"), "tool_calls[0].function.arguments"),
        (call('{"a": 1, "a": 2}'), "tool_calls[0].function.arguments"),
        (call('{"a": NaN}'), "arguments"),
        (call('{"a": ' + "9" * 5000 + "}"), "tool_calls[0].function.arguments"),
        (call('{"a": ' + "[" * 100_000), "tool_calls[0].function.arguments"),
        (call('{"a": "\\u0000"}'), "arguments"),
    ],
)
def test_what_openai_records_hold_beyond_messages_is_refused(record: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_openai(record)
    assert field in refused.value.field
    assert "secret" not in refused.value.expected + refused.value.found


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"role": "user", "content": [image("image")]}, "content.0"),
        ({"role": "user", "content": [image("document")]}, "content.0"),
        ({"role": "user", "content": [{"type": "secret"}]}, "content.0"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"a": 1}}]},
            "cache_control",
        ),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "secret"}]}, "tool_use_id"),
        ({"role": "user", "content": []}, "message"),
        ({"role": "assistant", "content": "x", "stop_reason": "secret"}, "stop_reason"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}, "message"),
    ],
)
def test_what_anthropic_records_hold_beyond_messages_is_refused(record: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_anthropic(record)
    assert field in refused.value.field
    assert "secret" not in refused.value.expected + refused.value.found


def test_results_in_an_assistant_record_are_refused() -> None:
    record = {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t1"}]}
    with pytest.raises(InvalidInput, match="assistant message cannot hold a tool_result part"):
        from_anthropic(record, tool_names={"t1": "weather"})


def test_images_in_results_are_refused() -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": [image("image")]}
    with pytest.raises(InvalidInput, match=r"content\.0"):
        from_anthropic({"role": "user", "content": [block]}, tool_names={"t1": "weather"})


def test_our_own_lines_come_back_equal() -> None:
    message = Message.tool_call(tool_call_id="c", tool_name="t", arguments={"a": 1})
    assert from_json_line(message.model_dump_json(), "cayu") == [message]


@pytest.mark.parametrize(
    "line", ["", "secret", "[]", "null", '{"role": "secret", "content": []}', '{"a": 1, "a": 2}']
)
def test_a_line_that_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_json_line(line, "cayu")
    assert "secret" not in str(refused.value)


def test_a_file_is_read_line_by_line_and_refused_lines_are_reported() -> None:
    records = [*OPENAI[:4], {"role": "tool", "tool_call_id": "unknown", "content": "x"}, OPENAI[4]]
    lines = [json.dumps(record) + "\n" for record in records]
    lines.insert(1, "\n")
    imported = list(from_json_lines(lines, "openai"))
    assert [line.number for line in imported] == [1, 3, 4, 5, 6, 7]
    assert [len(line.messages) for line in imported] == [1, 1, 1, 1, 0, 1]
    refusals = [line.refusal for line in imported if line.refusal]
    assert [str(refusal) for refusal in refusals] == [
        "tool_call_id: expected the id of an earlier tool call, found an unknown id"
    ]


def test_anthropic_lines_resolve_tool_names() -> None:
    imported = list(from_json_lines(map(json.dumps, ANTHROPIC), "anthropic"))
    assert [message for line in imported for message in line.messages] == from_anthropic_conversation(
        ANTHROPIC
    )
