"""The command line as a person and as a program uses it, on a real database."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import cayu_pg
from cayu_pg import embedded
from cayu_pg.cli import main
from cayu_pg.cli.demo import QUESTIONS, reference
from cayu_pg.cli.printing import describe_ingest
from cayu_pg.ingesting import IngestProgress
from tests.conftest import temporary_folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "moon.md").write_text("# The moon\n\nThe moon is bright at night.\n")
    (folder / "deep" / "page.html").write_text("<title>Cats</title><p>Cats sleep all day.</p>")
    (folder / "code.py").write_text("def max_wal_size():\n    return 4\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\x00\x01")
    return folder


def run(url: str, *arguments: str) -> int:
    return main([arguments[0], "--url", url, *arguments[1:]])


def test_files_are_ingested_searched_and_listed(
    database_url: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest = ("ingest", str(files), "--model", "hash-64", "--json")
    assert run(database_url, *ingest) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["records_added"] == 3
    assert "NUL byte" in report["refused"][0]["reason"]
    assert run(database_url, *ingest, "--defer-indexes") == 0
    assert json.loads(capsys.readouterr().out)["records_unchanged"] == 3
    assert run(database_url, "search", "bright moon", "--model", "hash-64", "--json") == 0
    hit = json.loads(capsys.readouterr().out)["hits"][0]
    assert hit["record_id"].endswith("docs/moon.md")
    assert hit["title"] == "The moon"
    assert run(database_url, "collections", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["records"] == 3


def test_files_are_ingested_into_a_collection_of_another_language_without_naming_it(
    database_url: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest = ("ingest", str(files / "moon.md"), "--model", "hash-64")
    assert run(database_url, *ingest, "--text-config", "german") == 0
    assert run(database_url, *ingest) == 0
    assert run(database_url, *ingest, "--text-config", "english") == 1
    assert "text_config: expected 'german'" in capsys.readouterr().err


def test_people_get_tables_and_explanations(
    database_url: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(database_url, "ingest", str(files), "--model", "hash-64")
    printed = capsys.readouterr()
    assert "records: 3 added, 0 changed, 0 unchanged, 1 refused" in printed.out
    assert "picture.png" in printed.err
    run(database_url, "search", "max_wal_size", "--model", "hash-64", "-n", "1", "--mode", "all")
    assert "code.py#0" in capsys.readouterr().out
    run(database_url, "explain", "cats", "--model", "hash-64", "--per-record")
    assert "text: rank 1, raw score" in capsys.readouterr().out
    run(database_url, "search", "cats", "--model", "hash-64", "--where", '{"no": "such"}')
    assert "nothing found" in capsys.readouterr().out


def test_history_shows_revisions_and_differences(
    database_url: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(database_url, "ingest", str(files), "--model", "hash-64")
    (files / "moon.md").write_text("# The moon\n\nThe moon is dark at day.\n")
    run(database_url, "ingest", str(files), "--model", "hash-64")
    capsys.readouterr()
    name = (files / "moon.md").as_posix()
    assert run(database_url, "history", name, "--diff") == 0
    printed = capsys.readouterr().out
    assert "-The moon is bright at night." in printed
    assert "+The moon is dark at day." in printed
    assert run(database_url, "history", name, "--json") == 0
    assert [each["revision"] for each in json.loads(capsys.readouterr().out)] == [1, 2]
    assert run(database_url, "history", "nobody") == 1


def test_a_named_bad_file_fails_and_the_rest_goes_on(
    database_url: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, page = str(files / "picture.png"), str(files / "moon.md")
    assert run(database_url, "ingest", picture, page, "--model", "hash-64") == 1
    assert "records: 1 added" in capsys.readouterr().out


def test_the_embedded_server_of_a_tenant_ends_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CAYU_PG_URL", raising=False)
    with temporary_folder() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        data = folder / "data"
        assert main(["collections", "--data", str(data), "--tenant", "x", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert not embedded.status(data).running


def test_failures_are_one_line_and_status_one(
    empty_database_url: str, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(empty_database_url, "collections") == 1
    assert "cayu-pg migrate" in capsys.readouterr().err
    assert run(database_url, "search", "x", "-c", "nowhere", "--model", "hash-64") == 1
    assert capsys.readouterr().err == "cayu-pg: no collection named 'nowhere'\n"
    assert run("postgresql://nobody@127.0.0.1:1/none", "collections") == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_an_ingest_tells_its_rate_and_the_time_left() -> None:
    state = IngestProgress(documents=500, chunks=3_000, embeddings_computed=2_900, seconds=20.0)
    assert describe_ingest(state) == "500 documents, 3000 chunks (150/s), 2900 embedded"
    expected = "500 of 2000 documents, 3000 chunks (150/s), 2900 embedded, 0:01:00 left"
    assert describe_ingest(state, 2_000) == expected
    assert describe_ingest(replace(state, index="hnsw_1_1"), 2_000) == "building hnsw_1_1"
    assert describe_ingest(IngestProgress(0, 0, 0, 0.0), 2_000).startswith("0 of 2000 documents")


@pytest.mark.parametrize(
    "arguments", [[], ["search"], ["search", "x", "--where", "{"], ["search", "x", "--where", "[1]"], ["fly"]]
)
def test_wrong_usage_is_status_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


def test_migrate_brings_a_schema_and_takes_it_away(
    empty_database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(empty_database_url, "migrate", "--schema", "My-Schema") == 0
    assert run(empty_database_url, "collections", "--schema", "My-Schema") == 0
    assert "no collections" in capsys.readouterr().out
    assert run(empty_database_url, "migrate", "--schema", "My-Schema", "--revision", "base") == 0
    assert run(empty_database_url, "collections", "--schema", "My-Schema") == 1


def test_a_transcript_is_imported_and_printed(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"role": "user", "content": [{"type": "text", "text": "How do I rotate keys?"}]}]
    file = tmp_path / "talk.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert run(database_url, "transcript", "import", str(file), "--into", "t-1") == 0
    capsys.readouterr()
    assert run(database_url, "transcript", "t-1") == 0
    assert "How do I rotate keys?" in capsys.readouterr().out


def test_the_demo_reads_the_language_reference() -> None:
    documents = reference()
    assert len(documents) > 60
    assert {"for", "try", "specialnames"} <= {each.record_id for each in documents}
    assert len(QUESTIONS) == 3


def test_everything_in_all_exists_once() -> None:
    assert len(set(cayu_pg.__all__)) == len(cayu_pg.__all__)
    assert all(hasattr(cayu_pg, name) for name in cayu_pg.__all__)
