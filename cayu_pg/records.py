"""What is stored of a document: the document itself, its records and revisions, its chunks, and their hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from cayu_pg.durable_json import JsonObject
from cayu_pg.errors import InvalidInput
from cayu_pg.texts import CleanText, NonblankText

MAX_RECORD_ID_BYTES = 1024  # a btree key holds 2,704 bytes
MAX_TEXT = 50_000_000  # characters; a field of Postgres holds 1 GB, and a batch is sent in one message


def _fits_a_key(value: str) -> str:
    if len(value.encode()) > MAX_RECORD_ID_BYTES:
        raise ValueError(f"must have at most {MAX_RECORD_ID_BYTES} bytes")
    return value


RecordId = Annotated[CleanText, AfterValidator(_fits_a_key)]
ShortText = Annotated[NonblankText, Field(max_length=8192)]


class Document(BaseModel):
    """A text to be searched, and what is known about it.

    `id` names the record that the document becomes; without one it is the SHA-256 of the text, so that equal texts
    are one record. Raises InvalidInput.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    text: Annotated[NonblankText, Field(max_length=MAX_TEXT)]
    id: RecordId | None = None
    title: ShortText | None = None
    metadata: JsonObject = Field(default_factory=dict)
    record_type: Annotated[CleanText, Field(max_length=512)] = "document"
    source: ShortText | None = None

    def __init__(
        self,
        text: str,
        id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        record_type: str = "document",
        source: str | None = None,
    ) -> None:
        given = {} if metadata is None else metadata
        try:
            super().__init__(
                text=text, id=id, title=title, metadata=given, record_type=record_type, source=source
            )
        except ValidationError as error:
            raise _invalid(error) from None

    @property
    def record_id(self) -> str:
        """The id of the record that this document becomes."""
        return self.id if self.id is not None else content_hash(self.text).hex()


def as_document(value: object) -> Document:
    """A document from a document, a text, or a mapping with a document's fields; InvalidInput otherwise."""
    if isinstance(value, Document):
        return value
    if isinstance(value, str):
        return Document(value)
    if isinstance(value, Mapping):
        unknown = value.keys() - Document.model_fields.keys()
        if unknown or "text" not in value:
            names = ", ".join(Document.model_fields)
            raise InvalidInput("document", f"a mapping with text and any of {names}", "other keys")
        return Document(**value)
    raise InvalidInput(
        "document", "a str, a Document or a mapping", f"a value of type {type(value).__name__}"
    )


def _invalid(error: ValidationError) -> InvalidInput:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"]) or "document"
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        return InvalidInput(cause.field, cause.expected, cause.found)
    return InvalidInput(field, "a value that can be stored", f"one that is refused: {first['msg']}")


class Record(BaseModel):
    """What a record says at one revision."""

    model_config = ConfigDict(frozen=True)

    record_id: str
    record_type: str
    revision: int
    title: str | None
    text: str
    metadata: dict[str, JsonValue]
    source: str | None
    content_hash: str
    recorded_at: datetime


class Revision(BaseModel):
    """One entry of a record's history; `text` is None where the record was deleted."""

    model_config = ConfigDict(frozen=True)

    record_id: str
    revision: int
    sequence: int
    recorded_at: datetime
    deleted: bool
    record_type: str
    title: str | None
    text: str | None
    metadata: dict[str, JsonValue]
    source: str | None
    content_hash: str | None


class Piece(NamedTuple):
    """A chunk as cut from a document: its place, its text, and the SHA-256 of the text."""

    start: int
    end: int
    text: str
    hash: bytes


@dataclass(frozen=True, slots=True)
class PreparedDocument:
    """A document with all that can be computed before the database is asked."""

    record_id: str
    record_type: str
    title: str | None
    text: str
    metadata: dict[str, Any]
    source: str | None
    content_hash: bytes
    digest: bytes
    pieces: tuple[Piece, ...]


def content_hash(text: str) -> bytes:
    """SHA-256 of the UTF-8 text."""
    return hashlib.sha256(text.encode()).digest()


def prepare(document: Document, spans: list[tuple[int, int]]) -> PreparedDocument:
    """The document, cut at `spans`, with the hashes that tell whether anything about it changed."""
    pieces = tuple(
        Piece(start, end, document.text[start:end], content_hash(document.text[start:end]))
        for start, end in spans
    )
    hashed = content_hash(document.text)
    return PreparedDocument(
        record_id=document.record_id,
        record_type=document.record_type,
        title=document.title,
        text=document.text,
        metadata=document.metadata,
        source=document.source,
        content_hash=hashed,
        digest=_digest(document, hashed, spans),
        pieces=pieces,
    )


def _digest(document: Document, hashed: bytes, spans: list[tuple[int, int]]) -> bytes:
    # Cuts belong to it: the same text with another chunk size is a change.
    facts = [document.title, document.metadata, document.record_type, document.source, spans]
    text = json.dumps(facts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(hashed + text.encode()).digest()
