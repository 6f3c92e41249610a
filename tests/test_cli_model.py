"""`cayu-pg model` shows and changes the model of a collection, and the other commands follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_cli import run


@pytest.fixture
def collection_url(database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (tmp_path / "moon.md").write_text("The moon is bright at night.\n")
    assert run(database_url, "ingest", str(tmp_path), "--model", "hash-32", "--json") == 0
    capsys.readouterr()
    return database_url


def test_model_is_changed_and_the_old_vectors_dropped(
    collection_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(collection_url, "model", "hash-48", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["previous"], facts["model"], facts["chunks_filled"]) == ("hash-32", "hash-48", 1)
    assert [(each["model"], each["state"], each["pending"]) for each in facts["spaces"]] == [
        ("hash-32", "retired", 0),
        ("hash-48", "active", 0),
    ]
    assert run(collection_url, "model", "--drop", "hash-32") == 0
    shown = capsys.readouterr().out
    assert "vectors dropped: 1" in shown and "hash-48" in shown and "hash-32" not in shown


def test_commands_take_the_model_of_the_collection(
    collection_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(collection_url, "model", "hash-48", "--json") == 0
    capsys.readouterr()
    assert run(collection_url, "search", "bright moon", "--json") == 0
    assert json.loads(capsys.readouterr().out)["hits"][0]["record_id"].endswith("moon.md")
    assert run(collection_url, "search", "bright moon", "--model", "hash-32") == 1
    assert "expected hash-48 with 48 dimensions" in capsys.readouterr().err
    (tmp_path / "sun.md").write_text("The sun is brighter.\n")
    assert run(collection_url, "ingest", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["records_added"] == 1


def test_models_of_no_collection_are_an_error(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(database_url, "model", "-c", "nowhere") == 1
    assert "no collection named 'nowhere'" in capsys.readouterr().err
