from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pydantic import ValidationError

from cayu_pg.errors import CayuPgError
from cayu_pg.ranked_rows import chunk_name
from cayu_pg.records import Document, as_document, prepare


def test_a_document_takes_its_text_by_place_and_the_rest_by_name() -> None:
    document = Document("Some text.", "id-1", title="T", metadata={"a": 1.0}, source="here")
    assert (document.text, document.id, document.record_type) == ("Some text.", "id-1", "document")
    assert document.metadata == {"a": 1}


def test_a_document_without_id_is_named_by_the_hash_of_its_text() -> None:
    assert Document("Some text.").record_id == hashlib.sha256(b"Some text.").hexdigest()
    assert as_document("Some text.").record_id == Document("Some text.").record_id


def test_a_document_is_frozen_and_owns_its_metadata() -> None:
    metadata = {"tags": ["a"]}
    document = Document("x", metadata=metadata)
    metadata["tags"].append("b")
    assert document.metadata == {"tags": ["a"]}
    with pytest.raises(ValidationError):
        document.text = "y"


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": ""},
        {"text": b"bytes"},
        {"text": "x", "record_type": ""},
        {"text": "x", "record_type": " t"},
        {"text": "x", "metadata": [1]},
        {"text": "x", "metadata": {"deep": float("inf")}},
        {"text": "x", "title": 5},
        {"text": "x", "id": ""},
    ],
)
def test_a_bad_document_is_our_error_and_a_value_error_that_hides_the_text(arguments: dict[str, Any]) -> None:
    with pytest.raises(CayuPgError) as raised:
        Document(**arguments)
    assert isinstance(raised.value, ValueError)
    assert "bytes'" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [{"text": "y"}, {"title": "t"}, {"metadata": {"a": 2}}, {"source": "s"}, {"record_type": "note"}],
)
def test_every_fact_of_a_document_is_in_its_digest(change: dict[str, Any]) -> None:
    fields = {"text": "x", "metadata": {"a": 1}}
    digest = prepare(Document(**fields), [(0, 1)]).digest
    assert prepare(Document(**fields), [(0, 1)]).digest == digest
    assert prepare(Document(**{**fields, **change}), [(0, 1)]).digest != digest


def test_the_cuts_are_in_the_digest() -> None:
    document = Document("abcdef")
    assert prepare(document, [(0, 6)]).digest != prepare(document, [(0, 3), (3, 6)]).digest


def test_chunk_names_can_be_taken_apart() -> None:
    assert chunk_name("a#b%c", 3) == "a%23b%25c#3"
    assert chunk_name("a", 12) != chunk_name("a#1", 2)
