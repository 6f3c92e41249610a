"""What a message can hold: text, tool calls and results, thinking, files, content from peers.

Parts are frozen, refuse unknown fields, and own copies of their JSON payloads. Errors name the field and
the rule but never show the rejected input: transcripts hold what users said.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    StrictBool,
    ValidationInfo,
    model_validator,
)

from cayu_pg.durable_json import JsonObject, durable, durable_object
from cayu_pg.errors import InvalidInput
from cayu_pg.texts import CleanText, NonblankText, Text, clean, storable

ARGUMENTS_UNAVAILABLE = "__cayu_arguments_unavailable__"


class FrozenModel(BaseModel):
    """The settings shared by every part and everything inside a part."""

    # An instance is validated again where it enters another model: it may have been built unchecked, and
    # validating makes the copy that keeps its payloads apart from the caller's.
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, revalidate_instances="always"
    )


Name128 = Annotated[str, Field(max_length=128), AfterValidator(clean)]
Name256 = Annotated[str, Field(max_length=256), AfterValidator(clean)]
Name512 = Annotated[str, Field(max_length=512), AfterValidator(clean)]
ToolRoundId = Annotated[str, Field(pattern=r"^tround_[0-9a-f]{32}$")]
ModelStepId = Annotated[str, Field(pattern=r"^mstep_[0-9a-f]{32}$")]
ModelAttemptId = Annotated[str, Field(pattern=r"^matt_[0-9a-f]{32}$")]


def exact_bool(value: object) -> bool:
    """The bool itself; ValueError for 0 and 1, which `Literal[True]` would take as equal."""
    if type(value) is not bool:
        raise ValueError("must be a bool")
    return value


class TextPart(FrozenModel):
    """Text said by a user, the assistant or the system."""

    type: Literal["text"] = "text"
    text: NonblankText


class _ToolPart(FrozenModel):
    """A tool call or its result; the three ids that place it in a run come together or not at all."""

    def _check_execution_ids(self, *ids: str | None) -> None:
        if None in ids and any(ids):
            raise ValueError("tool_round_id, model_step_id and model_attempt_id come together or not at all")


class ToolCallPart(_ToolPart):
    """A tool that the assistant asks to run."""

    type: Literal["tool_call"] = "tool_call"
    tool_call_id: CleanText
    tool_name: CleanText
    arguments: JsonObject = Field(default_factory=dict)
    arguments_state: Literal["finalized", "unavailable"] = "finalized"
    tool_round_id: ToolRoundId | None = None
    model_step_id: ModelStepId | None = None
    model_attempt_id: ModelAttemptId | None = None

    @model_validator(mode="after")
    def _complete_execution_ids(self) -> Self:
        self._check_execution_ids(self.tool_round_id, self.model_step_id, self.model_attempt_id)
        return self

    def continuation_arguments(self) -> dict[str, Any]:
        """What to send back to a model: a copy of the arguments, or a note that they were not kept."""
        if self.arguments_state == "unavailable":
            return {ARGUMENTS_UNAVAILABLE: "The arguments of this earlier call were not kept."}
        return durable_object(self.arguments, field="arguments")


def _artifacts(value: object) -> list[JsonValue]:
    artifacts = durable(value, field="artifacts")
    if not isinstance(artifacts, list):
        raise InvalidInput("artifacts", "a list of objects", f"a value of type {type(value).__name__}")
    for index, artifact in enumerate(artifacts):
        if not isinstance(artifact, dict):
            raise InvalidInput(
                f"artifacts[{index}]", "an object", f"a value of type {type(artifact).__name__}"
            )
    return artifacts


class ToolResultPart(_ToolPart):
    """What a tool returned for one call."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: CleanText
    tool_name: CleanText
    content: Text = ""
    structured: JsonObject | None = None
    artifacts: Annotated[
        list[dict[str, Any]], PlainValidator(_artifacts, json_schema_input_type=list[dict[str, Any]])
    ] = Field(default_factory=list)
    is_error: StrictBool = False
    tool_round_id: ToolRoundId | None = None
    model_step_id: ModelStepId | None = None
    model_attempt_id: ModelAttemptId | None = None

    @model_validator(mode="after")
    def _complete_execution_ids(self) -> Self:
        self._check_execution_ids(self.tool_round_id, self.model_step_id, self.model_attempt_id)
        return self


class ProviderStatePart(FrozenModel):
    """State that a provider wants back on a later turn."""

    type: Literal["provider_state"] = "provider_state"
    provider: CleanText
    state: JsonObject = Field(default_factory=dict)


class ThinkingPart(FrozenModel):
    """One block of model reasoning; the text is empty where the provider returned it redacted.

    `provider_state` is what the provider needs to accept the block back, such as a signature.
    """

    type: Literal["thinking"] = "thinking"
    text: Text = ""
    provider_state: JsonObject | None = None


_CONTENT_TYPES = {
    "image": {"image/jpeg", "image/png", "image/gif", "image/webp"},
    "document": {"application/pdf"},
}


def _attachment_metadata(value: object) -> dict[str, JsonValue]:
    return durable_object(value, field="metadata", values=50_000, size=262_144)


class FileAttachment(FrozenModel):
    """What is said about a stored file; its bytes stay where `artifact_id` points."""

    type: Literal["cayu.file_attachment.v1"] = "cayu.file_attachment.v1"
    artifact_id: CleanText
    kind: Literal["image", "document"]
    filename: NonblankText
    content_type: CleanText
    size_bytes: Annotated[int, Field(strict=True, ge=1)]
    metadata: Annotated[
        dict[str, Any], PlainValidator(_attachment_metadata, json_schema_input_type=dict[str, Any])
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _content_type_fits_kind(self) -> Self:
        if self.content_type not in _CONTENT_TYPES[self.kind]:
            raise ValueError(f"content_type must be one of {', '.join(sorted(_CONTENT_TYPES[self.kind]))}")
        return self


def _attachment(value: object) -> dict[str, Any]:
    return FileAttachment.model_validate(durable_object(value, field="attachment")).model_dump()


class FilePart(FrozenModel):
    """A file that a user sent along: a `FileAttachment` as a plain object, never the bytes."""

    type: Literal["file"] = "file"
    attachment: Annotated[dict[str, Any], PlainValidator(_attachment, json_schema_input_type=FileAttachment)]


def _append_key(value: str) -> str:
    if len(value.encode()) > 16_384:
        raise ValueError("must be at most 16384 bytes of UTF-8")
    return value


class PeerContentPart(FrozenModel):
    """Content delivered by another participant: attributed to its sender, never executed."""

    type: Literal["peer_content"] = "peer_content"
    text: Annotated[str, Field(max_length=131_072), AfterValidator(storable)]
    sender_participant_id: Name512
    sender_participant_incarnation: Name512
    sender_session_id: Name512
    sender_session_instance_id: Name512
    occurrence_id: Name512
    append_key_json: Annotated[
        str, Field(max_length=16_384), AfterValidator(clean), AfterValidator(_append_key)
    ]
    operation_key: Name512
    projection_id: Name256
    provenance_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    executable: Annotated[Literal[False], BeforeValidator(exact_bool)] = False


def _output(value: object, info: ValidationInfo) -> JsonValue:
    return durable(value, field=info.field_name or "output")


class StructuredOutputPart(FrozenModel):
    """A JSON value that the assistant produced against a schema; `name` says which, if it has one."""

    type: Literal["structured_output"] = "structured_output"
    name: NonblankText | None
    output: Annotated[Any, PlainValidator(_output)]
