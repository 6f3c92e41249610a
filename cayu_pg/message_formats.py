"""Conversations kept in other formats, as messages: OpenAI chat completions and Anthropic messages.

Nothing is dropped on the way: a field or block that a message cannot hold (an image by URL, a refusal, a
cache hint) raises InvalidInput naming it. Fields that are null or an empty list say nothing and are passed
over. Tool results carry only the id of their call, so their names come from the calls before them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from cayu_pg.errors import InvalidInput
from cayu_pg.messages import Message, MessageRole, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

MessageFormat = Literal["cayu", "openai", "anthropic"]


@dataclass(frozen=True, slots=True)
class ImportedLine:
    """One line of a JSON Lines file: its messages, or why it was refused."""

    number: int
    messages: tuple[Message, ...] = ()
    refusal: InvalidInput | None = None


def from_openai(record: Mapping[str, Any], *, tool_names: Mapping[str, str] | None = None) -> list[Message]:
    """The message that one chat-completions message says; `developer` becomes `system`.

    `tool_names` maps the ids of earlier calls to tool names. InvalidInput for what a message cannot hold.
    """
    try:
        return [_openai_message(_OPENAI.validate_python(record), tool_names or {})]
    except ValidationError as error:
        raise _refusal(error) from None


def from_anthropic(
    record: Mapping[str, Any], *, tool_names: Mapping[str, str] | None = None
) -> list[Message]:
    """The messages that one Anthropic message says, usually one; tool results become a tool message.

    `tool_names` maps the ids of earlier calls to tool names. InvalidInput for what a message cannot hold.
    """
    try:
        given = _AnthropicRecord.model_validate(record)
        parts = [_anthropic_part(block, tool_names or {}) for block in given.content]
        runs = groupby(parts, key=lambda part: isinstance(part, ToolResultPart))
        return [
            Message(role=_anthropic_role(given.role, is_result), content=tuple(run))
            for is_result, run in runs
        ] or [Message(role=MessageRole(given.role))]
    except ValidationError as error:
        raise _refusal(error) from None


def from_json_line(
    line: str, format: MessageFormat, *, tool_names: Mapping[str, str] | None = None
) -> list[Message]:
    """The messages of one line of a JSON Lines file; InvalidInput says why there are none."""
    record = _json_object(line, "line")
    if format == "openai":
        return from_openai(record, tool_names=tool_names)
    if format == "anthropic":
        return from_anthropic(record, tool_names=tool_names)
    try:
        return [Message.model_validate(record)]
    except ValidationError as error:
        raise _refusal(error) from None


def from_json_lines(lines: Iterable[str], format: MessageFormat) -> Iterator[ImportedLine]:
    """One ImportedLine for every line that is not blank, in order; a refused line stops nothing.

    Lines are numbered from 1. The lines are one conversation: a tool result is named after the call in an
    earlier line, and refused if there is none.
    """
    known: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            messages = from_json_line(line, format, tool_names=known)
        except InvalidInput as refusal:
            yield ImportedLine(number, refusal=refusal)
            continue
        known.update(called_tools(messages))
        yield ImportedLine(number, tuple(messages))


def from_openai_conversation(records: Iterable[Mapping[str, Any]]) -> list[Message]:
    """The messages of a whole chat-completions conversation; InvalidInput for the first bad record."""
    return _conversation(records, from_openai)


def from_anthropic_conversation(records: Iterable[Mapping[str, Any]]) -> list[Message]:
    """The messages of a whole Anthropic conversation; InvalidInput for the first bad record."""
    return _conversation(records, from_anthropic)


def _conversation(
    records: Iterable[Mapping[str, Any]], convert: Callable[..., list[Message]]
) -> list[Message]:
    messages: list[Message] = []
    known: dict[str, str] = {}
    for record in records:
        found = convert(record, tool_names=known)
        known.update(called_tools(found))
        messages += found
    return messages


def called_tools(messages: Iterable[Message]) -> dict[str, str]:
    """Tool names by the ids of the calls in these messages, as `tool_names` takes them."""
    parts = [part for message in messages for part in message.content]
    return {part.tool_call_id: part.tool_name for part in parts if isinstance(part, ToolCallPart)}


# The shapes that are understood; whatever else a record holds is refused by `extra="forbid"`.


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: item for name, item in value.items() if item is not None and item != []}


def _as_blocks(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


class _Text(_Given):
    type: Literal["text"]
    text: str


_Texts = Annotated[list[_Text], BeforeValidator(_as_blocks)]


class _OpenAIFunction(_Given):
    name: str
    arguments: str


class _OpenAICall(_Given):
    id: str
    type: Literal["function"] = "function"
    function: _OpenAIFunction


class _OpenAISaid(_Given):
    role: Literal["system", "developer", "user"]
    content: _Texts = []


class _OpenAIAssistant(_Given):
    role: Literal["assistant"]
    content: _Texts = []
    tool_calls: list[_OpenAICall] = []


class _OpenAITool(_Given):
    role: Literal["tool"]
    tool_call_id: str
    name: str | None = None
    content: _Texts = []


_OpenAIRecord = Annotated[_OpenAISaid | _OpenAIAssistant | _OpenAITool, Field(discriminator="role")]
_OPENAI: TypeAdapter[_OpenAISaid | _OpenAIAssistant | _OpenAITool] = TypeAdapter(_OpenAIRecord)


class _Thinking(_Given):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class _RedactedThinking(_Given):
    type: Literal["redacted_thinking"]
    data: str


class _ToolUse(_Given):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(_Given):
    type: Literal["tool_result"]
    tool_use_id: str
    content: _Texts = []
    is_error: StrictBool = False


_Block = _Text | _Thinking | _RedactedThinking | _ToolUse | _ToolResult


class _AnthropicRecord(_Given):
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[Annotated[_Block, Field(discriminator="type")]], BeforeValidator(_as_blocks)] = []


def _openai_message(
    given: _OpenAISaid | _OpenAIAssistant | _OpenAITool, tool_names: Mapping[str, str]
) -> Message:
    if isinstance(given, _OpenAITool):
        name = given.name or _tool_name(given.tool_call_id, tool_names, "tool_call_id")
        return Message.tool_result(
            tool_call_id=given.tool_call_id, tool_name=name, content=_joined(given.content)
        )
    texts = tuple(TextPart(text=block.text) for block in given.content)
    if isinstance(given, _OpenAIAssistant):
        calls = tuple(_openai_call(call, index) for index, call in enumerate(given.tool_calls))
        return Message(role=MessageRole.ASSISTANT, content=texts + calls)
    return Message(role=MessageRole.USER if given.role == "user" else MessageRole.SYSTEM, content=texts)


def _openai_call(call: _OpenAICall, index: int) -> ToolCallPart:
    arguments = _json_object(call.function.arguments, f"tool_calls[{index}].function.arguments")
    return ToolCallPart(tool_call_id=call.id, tool_name=call.function.name, arguments=arguments)


def _anthropic_part(
    block: _Block, tool_names: Mapping[str, str]
) -> TextPart | ThinkingPart | ToolCallPart | ToolResultPart:
    if isinstance(block, _Text):
        return TextPart(text=block.text)
    if isinstance(block, _Thinking):
        state = None if block.signature is None else {"type": block.type, "signature": block.signature}
        return ThinkingPart(text=block.thinking, provider_state=state)
    if isinstance(block, _RedactedThinking):
        return ThinkingPart(provider_state={"type": block.type, "data": block.data})
    if isinstance(block, _ToolUse):
        return ToolCallPart(tool_call_id=block.id, tool_name=block.name, arguments=block.input)
    return ToolResultPart(
        tool_call_id=block.tool_use_id,
        tool_name=_tool_name(block.tool_use_id, tool_names, "tool_use_id"),
        content=_joined(block.content),
        is_error=block.is_error,
    )


def _anthropic_role(role: str, is_result: bool) -> MessageRole:
    # Results travel in user records there; in any other role they are left for the message to refuse.
    return MessageRole.TOOL if is_result and role == "user" else MessageRole(role)


def _joined(texts: list[_Text]) -> str:
    return "\n".join(block.text for block in texts)


def _tool_name(call_id: str, tool_names: Mapping[str, str], field: str) -> str:
    if call_id not in tool_names:
        raise InvalidInput(field, "the id of an earlier tool call", "an unknown id")
    return tool_names[call_id]


def _json_object(text: str, field: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        reason = (
            str(error)
            if isinstance(error, json.JSONDecodeError | InvalidInput)
            else "unreadable numbers or nesting"
        )
        raise InvalidInput(field, "a JSON object", reason) from None
    if not isinstance(value, dict):
        raise InvalidInput(field, "a JSON object", f"JSON of type {type(value).__name__}")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInput("object", "each key once", "a repeated key")
    return found


def _refusal(error: ValidationError) -> InvalidInput:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"]) or "message"
    match first["type"]:
        case "missing":
            return InvalidInput(field, "a value", "none")
        case "extra_forbidden":
            return InvalidInput(field, "only fields that a message can hold", "another")
        case "union_tag_invalid":
            tags = f"a {first['ctx']['discriminator']} of {first['ctx']['expected_tags']}"
            return InvalidInput(field, tags, "another")
        case "value_error":
            cause = first["ctx"]["error"]
            return (
                cause
                if isinstance(cause, InvalidInput)
                else InvalidInput(field, f"input that fits ({cause})", "other")
            )
    return InvalidInput(field, first["msg"].removeprefix("Input should be "), "something else")
