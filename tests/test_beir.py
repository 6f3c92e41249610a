"""Test collections are read in the spellings that go around, and what is wrong in a file is told with its line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cayu_pg.beir import BeirQuery, read_corpus, read_qrels, read_queries
from cayu_pg.errors import InvalidInput


def write_lines(path: Path, *rows: Mapping[str, object]) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def test_text_is_title_and_text(tmp_path: Path) -> None:
    rows = [
        {"_id": "1", "title": "The moon", "text": "is bright.", "metadata": {"lang": "en"}},
        {"_id": "2", "text": "No title."},
    ]
    write_lines(tmp_path / "corpus.jsonl", *rows)
    assert list(read_corpus(tmp_path)) == [
        {"id": "1", "text": "The moon is bright.", "metadata": {"lang": "en"}},
        {"id": "2", "text": "No title.", "metadata": {}},
    ]


def test_packed_files_and_other_names_of_the_keys_are_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus.jsonl.gz", {"id": 7, "title": "", "text": "Text.", "meta": {"scope": "m"}})
    write_lines(tmp_path / "queries.jsonl.gz", {"id": "q", "text": "What?", "meta": {"scope": "m"}})
    assert list(read_corpus(tmp_path)) == [{"id": "7", "text": "Text.", "metadata": {"scope": "m"}}]
    assert read_queries(tmp_path) == [BeirQuery("q", "What?", {"scope": "m"})]


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\nq 1\td1\t2\nq 1\td2\t0\n",
        "q 1\td1\t2\n\nq 1\td2\t0\n",
        "q 1\t0\td1\t2\r\nq 1\t0\td2\t0\r\n",
        "query_id\titeration\tdoc_id\tgrade\nq 1\tQ0\td1\t2\nq 1\tQ0\td2\t0\nq 1\tQ0\td2\t0",
    ],
)
def test_judgements_have_three_or_four_columns_and_perhaps_a_header(tmp_path: Path, text: str) -> None:
    (tmp_path / "qrels.tsv").write_bytes(text.encode())
    assert read_qrels(tmp_path) == {"q 1": {"d1": 2, "d2": 0}}


def test_columns_of_trec_are_apart_by_spaces(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("1 0 d1 -1\n2  0  d1  1\n")
    assert read_qrels(tmp_path) == {"1": {"d1": -1}, "2": {"d1": 1}}


def test_a_split_is_chosen_by_name(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    for split in ("train", "test"):
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"{split}\td\t1\n")
    assert read_qrels(tmp_path) == {"test": {"d": 1}}
    assert read_qrels(tmp_path, "train") == {"train": {"d": 1}}
    with pytest.raises(InvalidInput, match=r"qrels/dev\.tsv"):
        read_qrels(tmp_path, "dev")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("q\td\t1\nq\td\thigh\n", "qrels.tsv:2: expected a whole number as grade, found 'high'"),
        ("q\td\t1\nq\t1\n", "qrels.tsv:2: expected three or four columns, found 2"),
        ("q\td\t1\nq\td\t2\n", "qrels.tsv:2: expected one grade for d, found another"),
        ("query\tdocument\tgrade\n", "qrels: expected judgements, found none in qrels.tsv"),
    ],
)
def test_bad_judgements_are_told_with_their_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "qrels.tsv").write_text(text)
    with pytest.raises(InvalidInput) as raised:
        read_qrels(tmp_path)
    assert str(raised.value) == complaint


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "queries.jsonl:1: expected JSON"),
        ("[]", "queries.jsonl:1: expected a JSON object, found list"),
        ('{"text": "x"}', "queries.jsonl:1: expected an _id or id, found none"),
        ('{"_id": "1"}', "queries.jsonl:1: expected a text, found none"),
        ('{"_id": "1", "text": "x", "metadata": 3}', "expected metadata that is an object, found int"),
    ],
)
def test_bad_rows_are_told_with_their_line(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "queries.jsonl").write_text(line)
    with pytest.raises(InvalidInput) as raised:
        read_queries(tmp_path)
    assert complaint in str(raised.value)


def test_a_folder_without_files_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"corpus\.jsonl or corpus\.jsonl\.gz"):
        list(read_corpus(tmp_path))
    with pytest.raises(InvalidInput, match=r"qrels\.tsv"):
        read_qrels(tmp_path)
