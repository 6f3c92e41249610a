"""Messages as lines for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from cayu_pg.messages import (
    CitationPart,
    FilePart,
    HostedToolCallPart,
    Message,
    MessagePart,
    PeerContentPart,
    ProviderStatePart,
    StructuredOutputPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

# What people and tools said must not steer the terminal that shows it.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def lines_of(message: Message, *, thinking: bool = False) -> list[str]:
    """The parts of a message one below the other; thinking is folded to its length unless `thinking`."""
    return [line for part in message.content for line in shown(_text(part, thinking)).split("\n")]


def shown(text: str) -> str:
    """The text with control characters spelled out, all but line breaks and tabs."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text.replace("\r\n", "\n"))


def _text(part: MessagePart, thinking: bool) -> str:
    match part:
        case TextPart():
            return part.text
        case ThinkingPart():
            return f"[thinking] {part.text}" if thinking else f"[thinking, {len(part.text)} characters]"
        case ToolCallPart():
            return f"-> {part.tool_name}({_arguments(part)})"
        case ToolResultPart():
            return f"<- {part.tool_name}{' failed' if part.is_error else ''}: {'; '.join(_returned(part))}"
        case PeerContentPart():
            return f"[from {part.sender_participant_id}] {part.text}"
        case StructuredOutputPart():
            return f"[output{_named(part.name)}] {_json(part.output)}"
        case _:
            return f"[{_aside(part)}]"


def _aside(part: FilePart | CitationPart | HostedToolCallPart | ProviderStatePart) -> str:
    match part:
        case FilePart():
            about = part.attachment
            return f"file {about['filename']}, {about['content_type']}, {about['size_bytes']} bytes"
        case CitationPart():
            return f"cites{_named(part.title)} {part.url}"
        case HostedToolCallPart():
            return f"{part.hosted_tool}{_named(part.action.query if part.action else None)}, {part.status}"
        case ProviderStatePart():
            return f"state of {part.provider}"


def _arguments(part: ToolCallPart) -> str:
    if part.arguments_state == "unavailable":
        return "arguments not kept"
    return ", ".join(f"{name}={_json(value)}" for name, value in part.arguments.items())


def _returned(part: ToolResultPart) -> Iterator[str]:
    if part.content or part.structured is None:
        yield part.content
    if part.structured is not None:
        yield _json(part.structured)
    if part.artifacts:
        yield f"{len(part.artifacts)} artifacts"


def _named(name: str | None) -> str:
    return "" if name is None else f" {name}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
