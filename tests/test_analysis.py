from __future__ import annotations

import time
import unicodedata

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from cayu_pg.analysis import ANALYZERS, MAX_ANALYZED, analyze, analyzer_name, ngram, standard
from cayu_pg.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "analyzed"),
    [
        ("max_wal_size", "max wal size maxwalsize"),
        ("HTTPServer", "HTTP Server HTTPServer"),
        ("camelCase", "camel Case camelCase"),
        ("src/auth/login.py", "src auth login py srcauthloginpy"),
        ("ERR-4711", "ERR 4711 ERR4711"),
        ("thyroid/metabolic", "thyroid metabolic thyroidmetabolic"),
        ("3.14 and 2021-01-05", "3.14 and 2021-01-05"),
        ("DNAs of plain words.", "DNAs of plain words."),
        ("what? «this»…", "what?  this  ..."),
        ("ﬁne Ｗｉｄｅ", "fine Wide"),
    ],
)
def test_standard_finds_identifiers_whole_and_by_parts(text: str, analyzed: str) -> None:
    assert standard(text).split() == analyzed.split()


def test_ngram_pairs_characters_of_scripts_without_spaces_and_leaves_the_rest() -> None:
    assert ngram("全文検索 with PostgreSQL").split() == [
        "全文",
        "文検",
        "検索",
        "with",
        "Postgre",
        "SQL",
        "PostgreSQL",
    ]
    assert ngram("检").split() == ["检"]


def test_a_name_without_version_means_the_newest_and_an_unknown_one_lists_the_known() -> None:
    assert analyzer_name(None) == analyzer_name("standard") == "standard-1"
    assert analyzer_name("ngram-1") == "ngram-1"
    with pytest.raises(InvalidInput, match="ngram"):
        analyzer_name("stemming")


@given(st.text())
def test_no_punctuation_outside_ascii_is_left(text: str) -> None:
    for name in ANALYZERS:
        left = analyze(name, text)
        assert not any(ord(each) > 127 and unicodedata.category(each)[0] in "PS" for each in left)


@pytest.mark.parametrize("text", ["a" * 100_000, "aB" * 50_000, "a-" * 50_000, "A" * 100_000, "_" * 100_000])
def test_long_runs_are_read_in_one_pass(text: str) -> None:
    """Backtracking would take minutes; a second is far more than one pass needs."""
    began = time.process_time()
    for name in ANALYZERS:
        analyze(name, text)
    assert time.process_time() - began < 5


def test_what_is_beyond_the_limit_is_not_analyzed() -> None:
    assert len(analyze("standard-1", "x" * (MAX_ANALYZED + 5))) == MAX_ANALYZED


@pytest.mark.parametrize(
    ("config", "analyzer", "stored", "asked"),
    [
        ("arabic", "standard-1", "في أي مدينة؟", "مدينة"),
        ("russian", "standard-1", "Книги лежат на столе", "книга"),
        ("german", "standard-1", "Die Häuser sind groß", "Haus"),
        ("simple", "ngram-1", "全文検索はとても速い", "検索"),
        ("simple", "ngram-1", "การค้นหาข้อความ", "ค้นหา"),
        ("simple", "ngram-1", "데이터베이스검색", "검색"),
        ("simple", "standard-1", "हिन्दी में खोज", "हिन्दी"),
        ("english", "standard-1", "set max_wal_size to 4GB", "wal"),
        ("english", "standard-1", "see src/auth/login.py line 4", "login.py"),
    ],
)
def test_the_server_matches_question_and_text_of_any_script(
    engine: sa.Engine, config: str, analyzer: str, stored: str, asked: str
) -> None:
    """At least one word in common; BM25 asks for any."""
    query = """
        SELECT count(*)
        FROM unnest(to_tsvector(CAST(:config AS regconfig), :stored)) s
        JOIN unnest(to_tsvector(CAST(:config AS regconfig), :asked)) a USING (lexeme)"""
    binds = {"config": config, "stored": analyze(analyzer, stored), "asked": analyze(analyzer, asked)}
    with engine.connect() as connection:
        assert (connection.scalar(sa.text(query), binds) or 0) > 0
