"""What a transcript holds: messages, frozen once built, each with a role and at least one part.

Whatever a message accepts is stored in Postgres and read back equal. Attributes cannot be assigned and
`content` is a tuple; payload dicts inside parts stay ordinary dicts, to be treated as read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, model_validator

from cayu_pg.durable_json import MAX_DEPTH, durable
from cayu_pg.errors import InvalidInput
from cayu_pg.message_parts import (
    FilePart,
    PeerContentPart,
    ProviderStatePart,
    StructuredOutputPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from cayu_pg.web_evidence import (
    CitationPart,
    CitationProvenance,
    HostedToolCallPart,
    WebSearchAction,
    WebSearchAPISource,
    WebSearchSource,
)

__all__ = [
    "CitationPart",
    "CitationProvenance",
    "FilePart",
    "HostedToolCallPart",
    "Message",
    "MessagePart",
    "MessageRole",
    "PeerContentPart",
    "ProviderStatePart",
    "StructuredOutputPart",
    "TextPart",
    "ThinkingPart",
    "ToolCallPart",
    "ToolResultPart",
    "WebSearchAPISource",
    "WebSearchAction",
    "WebSearchSource",
    "copy_message",
    "detach_message",
]


class MessageRole(StrEnum):
    """Who speaks."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


_ALLOWED: dict[MessageRole, tuple[type[BaseModel], ...]] = {
    MessageRole.USER: (TextPart, FilePart),
    MessageRole.SYSTEM: (TextPart,),
    MessageRole.ASSISTANT: (
        TextPart,
        ToolCallPart,
        ProviderStatePart,
        ThinkingPart,
        HostedToolCallPart,
        CitationPart,
        PeerContentPart,
        StructuredOutputPart,
    ),
    MessageRole.TOOL: (ToolResultPart, StructuredOutputPart),
}

# Without a `type` the part that validates with most fields set is taken, then the earlier one.
_UntypedPart = (
    TextPart
    | ToolCallPart
    | ToolResultPart
    | ProviderStatePart
    | ThinkingPart
    | FilePart
    | HostedToolCallPart
    | CitationPart
    | PeerContentPart
    | StructuredOutputPart
)
_TAGS: dict[type, str] = {
    part: part.model_fields["type"].default for parts in _ALLOWED.values() for part in parts
}


def _tag(value: object) -> Any:
    if isinstance(value, Mapping):
        return value.get("type", "untyped")
    # The exact class decides: a subclass could carry what a part must not hold.
    return _TAGS.get(type(value))


MessagePart = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[ToolCallPart, Tag("tool_call")]
    | Annotated[ToolResultPart, Tag("tool_result")]
    | Annotated[ProviderStatePart, Tag("provider_state")]
    | Annotated[ThinkingPart, Tag("thinking")]
    | Annotated[FilePart, Tag("file")]
    | Annotated[HostedToolCallPart, Tag("hosted_tool_call")]
    | Annotated[CitationPart, Tag("citation")]
    | Annotated[PeerContentPart, Tag("peer_content")]
    | Annotated[StructuredOutputPart, Tag("structured_output")]
    | Annotated[_UntypedPart, Tag("untyped")],
    # pydantic's own text would show the unknown tag, hence a piece of the rejected input.
    Discriminator(
        _tag, custom_error_type="message_part", custom_error_message="Input should be a part of a known type"
    ),
]
"""One part of a message, told apart by `type`."""


class Message(BaseModel):
    """One message of a transcript.

    `content` takes parts and dicts in any iterable and owns a copy of each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    role: MessageRole
    content: tuple[MessagePart, ...] = ()

    @model_validator(mode="after")
    def _content_fits(self) -> Self:
        if not self.content:
            raise ValueError("content must hold at least one part")
        for part in self.content:
            if not isinstance(part, _ALLOWED[self.role]):
                raise ValueError(f"a {self.role} message cannot hold a {part.type} part")
        self._check_bounds()
        return self

    def _check_bounds(self) -> None:
        whole = self.model_dump(mode="json")
        others = [part for part in whole["content"] if part["type"] != "structured_output"]
        if len(others) == len(whole["content"]):
            durable(whole, field="message")
            return
        # A structured output may be as deep in a message as it is alone; the other parts may not.
        durable(whole, field="message", depth=MAX_DEPTH + 6)
        durable({**whole, "content": others}, field="message")

    @classmethod
    def text(cls, role: MessageRole | str, text: str) -> Message:
        """A message of one TextPart."""
        if role not in list(MessageRole):
            raise InvalidInput("role", f"one of {', '.join(MessageRole)}", "another")
        return cls(role=MessageRole(role), content=(TextPart(text=text),))

    @classmethod
    def tool_call(
        cls,
        *,
        tool_call_id: str | None = None,
        tool_name: str | None = None,
        arguments: dict[str, Any] | None = None,
        tool_round_id: str | None = None,
        model_step_id: str | None = None,
        model_attempt_id: str | None = None,
        calls: Sequence[ToolCallPart] | None = None,
    ) -> Message:
        """An assistant message of one tool call, or of those in `calls`."""
        fields = {
            "tool_call_id": tool_call_id,
            "tool_name": tool_name,
            "arguments": arguments,
            "tool_round_id": tool_round_id,
            "model_step_id": model_step_id,
            "model_attempt_id": model_attempt_id,
        }
        single = {name: value for name, value in fields.items() if value is not None}
        if calls is None:
            return cls(role=MessageRole.ASSISTANT, content=(ToolCallPart.model_validate(single),))
        message = cls(role=MessageRole.ASSISTANT, content=_several("calls", calls, single))
        if not all(isinstance(part, ToolCallPart) for part in message.content):
            raise InvalidInput("calls", "tool calls only", "another part")
        return message

    @classmethod
    def tool_result(
        cls,
        *,
        tool_call_id: str | None = None,
        tool_name: str | None = None,
        content: str = "",
        structured: dict[str, Any] | None = None,
        artifacts: list[dict[str, Any]] | None = None,
        is_error: bool = False,
        tool_round_id: str | None = None,
        model_step_id: str | None = None,
        model_attempt_id: str | None = None,
        results: Sequence[ToolResultPart] | None = None,
    ) -> Message:
        """A tool message of one result, or of those in `results`."""
        fields = {
            "tool_call_id": tool_call_id,
            "tool_name": tool_name,
            "structured": structured,
            "artifacts": artifacts,
            "tool_round_id": tool_round_id,
            "model_step_id": model_step_id,
            "model_attempt_id": model_attempt_id,
        }
        single: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if results is None:
            part = ToolResultPart.model_validate({**single, "content": content, "is_error": is_error})
            return cls(role=MessageRole.TOOL, content=(part,))
        if content != "":
            single["content"] = content
        if is_error is not False:
            single["is_error"] = is_error
        return cls(role=MessageRole.TOOL, content=_several("results", results, single))


def _several(name: str, parts: Sequence[Any], single: Mapping[str, Any]) -> tuple[Any, ...]:
    if not parts:
        raise InvalidInput(name, "at least one part", "none")
    if single:
        raise InvalidInput(name, f"no other argument beside {name}", ", ".join(single))
    return tuple(parts)


def copy_message(message: Message) -> Message:
    """The message itself: it is immutable, so passing it on needs no copy. TypeError for anything else."""
    if type(message) is not Message:
        raise TypeError(f"expected a Message, found {type(message).__name__}")
    return message


def detach_message(message: Message) -> Message:
    """An equal message that shares nothing with this one, checked again from the ground up.

    For a boundary of storage or trust: the instance may have been built unchecked, or a payload inside it
    changed since. TypeError for anything but a Message.
    """
    return Message.model_validate(dict(copy_message(message)))
