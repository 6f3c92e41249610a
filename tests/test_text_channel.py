"""The text channel: modes, certainty, spelling, limits, and any human text."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from math import log
from typing import Any, get_args

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from cayu_pg import bm25
from cayu_pg.collection import Collection
from cayu_pg.errors import InvalidInput
from cayu_pg.records import Document
from cayu_pg.spelling import edits, nearest
from cayu_pg.store import Store
from cayu_pg.text_query import Clause, Mode, text_query
from tests.stores import CountingEmbedder, rows, statements_of

MODES = get_args(Mode)
DOCUMENTS = {
    "fox": "The quick brown fox jumps over the lazy dog.",
    "dog": "A brown dog sleeps; the fox is far away.",
    "wal": "Set max_wal_size to 4GB before the bulk load.",
    "size": "The size of the wal has a max, as the page about settings explains.",
    "auth": "The login page lives in src/auth/login.py and uses HTTPServer.",
    "error": "ERR-4711 means that the thyroid/metabolic panel failed.",
    "cafe": "The café served crème brûlée.",
}


@pytest.fixture
def store(engine: sa.Engine) -> Store:
    return Store(engine, embedder=CountingEmbedder())


@pytest.fixture
def collection(store: Store) -> Collection:
    collection = store.collection("notes")
    collection.ingest([Document(text, id=name) for name, text in DOCUMENTS.items()])
    return collection


def found(collection: Collection, query: str, **options: Any) -> list[str]:
    return [hit.record_id for hit in collection.search(query, channels="text", **options).hits]


@pytest.mark.parametrize(
    ("query", "mode", "expected"),
    [
        ("brown fox lazy", "any", {"fox", "dog"}),
        ("brown fox lazy", "all", {"fox"}),
        ("brown fox", "all", {"fox", "dog"}),
        ("brown fox", "phrase", {"fox"}),
        ("fox brown", "phrase", set()),
        ("jumps over the lazy dog", "phrase", {"fox"}),
        ('"brown fox"', "web", {"fox"}),
        ("brown -lazy", "web", {"dog"}),
        ('brown -"lazy dog"', "web", {"dog"}),
        ("lazy OR 4GB", "web", {"fox", "wal"}),
        ("brown lazy", "web", {"fox"}),
        ('"brown fox" OR login', "web", {"fox", "auth"}),
        ('lazy "brown fox', "web", {"fox"}),
        ("-brown", "web", set()),
        ("the -of", "web", set()),
        ("----- -- -", "web", set()),
        ("max_wal_size", "all", {"wal"}),
        ("max_wal_size", "phrase", {"wal"}),
        ("unknownword fox", "all", set()),
    ],
)
def test_modes(collection: Collection, query: str, mode: Mode, expected: set[str]) -> None:
    assert set(found(collection, query, mode=mode)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("max_wal_size", "wal"),
        ("wal", "wal"),
        ("HTTPServer", "auth"),
        ("login.py", "auth"),
        ("src/auth/login.py", "auth"),
        ("ERR-4711", "error"),
        ("4711", "error"),
        ("metabolic", "error"),
    ],
)
def test_identifiers_are_found_whole_and_by_parts(collection: Collection, query: str, expected: str) -> None:
    assert found(collection, query)[0] in ({expected, "size"} if query == "wal" else {expected})


def test_a_query_that_only_excludes_says_so_and_the_vector_channel_answers(collection: Collection) -> None:
    result = collection.search("-brown -fox", mode="web")
    assert result.diagnostics.channels["text"].reason == "the query only excludes"
    assert len(result.hits) == len(DOCUMENTS)
    required = collection.search("unknownword", mode="all").diagnostics.channels["text"]
    assert required.reason == "no chunk holds what is required"


def test_an_unknown_mode_is_refused(collection: Collection) -> None:
    with pytest.raises(InvalidInput, match="web"):
        collection.search("fox", mode="regex")  # type: ignore[arg-type]


def test_accents_are_folded_where_the_analyzer_says_so(store: Store, collection: Collection) -> None:
    assert found(collection, "creme brulee cafe") == []
    folded = store.collection("folded", analyzer="folded", text_config="simple")
    folded.ingest([Document(text, id=name) for name, text in DOCUMENTS.items()])
    assert found(folded, "creme brulee") == found(folded, "crème") == ["cafe"]


@pytest.mark.parametrize("trigrams", [False, True])
def test_a_mistyped_word_stands_for_the_nearest_known_one(
    collection: Collection, engine: sa.Engine, trigrams: bool
) -> None:
    if trigrams:
        with engine.begin() as connection:
            connection.execute(sa.text('CREATE SCHEMA "tri grams"'))
            connection.execute(sa.text('CREATE EXTENSION pg_trgm SCHEMA "tri grams"'))
    assert found(collection, "qiuck") == []
    result = collection.search("qiuck", channels="text", fuzzy=True)
    assert [hit.record_id for hit in result.hits] == ["fox"]
    assert result.diagnostics.channels["text"].corrections == {"qiuck": "quick"}
    assert "qiuck taken for quick" in result.explain()
    assert collection.search("quick", fuzzy=True).diagnostics.channels["text"].corrections == {}


def test_nearest_words_are_few_edits_away_and_common() -> None:
    known = [("postgres", 9), ("posters", 5), ("progress", 3)]
    assert nearest("postgers", known) == "postgres"
    assert nearest("xylophone", known) is None
    assert nearest("cats", [("cat", 1), ("cuts", 2), ("bats", 2)]) == "bats"


@given(st.text("abcd", max_size=7), st.text("abcd", max_size=7))
def test_edits_are_symmetric_and_zero_only_for_equals(one: str, other: str) -> None:
    assert edits(one, other, 9) == edits(other, one, 9)
    assert (edits(one, other, 9) == 0) == (one == other)
    assert edits(one, other, 9) <= max(len(one), len(other))


def test_k1_and_b_are_the_collections_own(store: Store, engine: sa.Engine) -> None:
    texts = ["short moon", "moon " + "and a much longer text about nothing in particular " * 4]
    weights = []
    for name, b in (("even", 0.0), ("steep", 1.0)):
        store.collection(name, k1=1.5, b=b).ingest(texts)
        scores = [
            hit.matches[0].raw_score for hit in store.collection(name).search("moon", channels="text").hits
        ]
        weights.append(scores)
    assert weights[0][0] == pytest.approx(weights[0][1])
    assert weights[1][0] > weights[1][1] * 1.5  # type: ignore[operator]
    for wrong in ({"k1": -1}, {"b": 1.5}, {"b": True}, {"k1": "1"}):
        with pytest.raises(InvalidInput):
            store.collection("wrong", **wrong)


def test_words_too_long_and_chunks_too_large_are_counted(store: Store) -> None:
    collection = store.collection("limits")
    report = collection.ingest(
        [Document("x" * 3000 + " lighthouse", id="word"), Document("beacon " * 20_000, id="chunk")],
        chunk_size=1_000_000,
        chunk_overlap=0,
    )
    assert (report.words_skipped, report.chunks_cut) == (1, 1)
    assert found(collection, "lighthouse") == ["word"]
    assert found(collection, "beacon") == ["chunk"]


# --- certainty


@pytest.fixture
def zipf(store: Store) -> tuple[Collection, list[str]]:
    """2,000 chunks whose words are as unevenly common as those of a language."""
    rng = random.Random(7)
    words = [f"w{number}x" for number in range(400)]
    weights = [1 / (rank + 1) for rank in range(400)]
    collection = store.collection("zipf", text_config="simple")
    texts = [" ".join(rng.choices(words, weights, k=25)) for _ in range(2000)]
    collection.ingest([Document(text, id=str(place)) for place, text in enumerate(texts)])
    queries = [" ".join(rng.choices(words, weights, k=6)) for _ in range(40)]
    return collection, queries


def test_what_is_certified_exact_equals_the_unbounded_answer(
    zipf: tuple[Collection, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, queries = zipf
    certified = 0
    for query in queries:
        whole = collection.search(query, channels="text", candidates=10, limit=10)
        assert not whole.diagnostics.channels["text"].truncated
        with monkeypatch.context() as patch:
            patch.setattr("cayu_pg.asking.POSTING_BUDGET", 150)
            patch.setattr("cayu_pg.sql.channels.WIDENING", 4)
            bounded = collection.search(query, channels="text", candidates=10, limit=10)
        if not bounded.diagnostics.channels["text"].truncated:
            certified += 1
            assert bounded.fusion.candidates == whole.fusion.candidates
        else:
            assert "common words" in str(bounded.diagnostics.channels["text"].reason)
    assert 0 < certified < len(queries)


def test_an_uncertain_answer_is_widened_just_as_far_as_its_threshold_needs(
    zipf: tuple[Collection, list[str]], engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, queries = zipf
    monkeypatch.setattr("cayu_pg.asking.POSTING_BUDGET", 100)
    monkeypatch.setattr("cayu_pg.sql.channels.WIDENING", 1000)
    counts = []
    for query in queries:
        with statements_of(engine) as sent:
            result = collection.search(query, channels="text", candidates=10, limit=10)
        counts.append(sum(each.startswith("WITH") for each in sent))
        assert not result.diagnostics.channels["text"].truncated
    assert set(counts) == {1, 2}


def test_scores_equal_a_plain_bm25_over_the_same_words(
    zipf: tuple[Collection, list[str]], engine: sa.Engine
) -> None:
    collection, queries = zipf
    [(count, average)] = rows(engine, "SELECT chunks, average_length FROM cayu.statistics_versions")
    texts = {record.record_id: record.text.split() for record in collection.records(limit=2000)}
    for query in queries[:10]:
        expected = bm25_scores(query.split(), texts, int(count), float(average))  # type: ignore[call-overload, arg-type]
        result = collection.search(query, channels="text", candidates=10, limit=10)
        for hit, (_, score) in zip(result.hits, expected, strict=False):
            assert hit.matches[0].raw_score == pytest.approx(score, rel=1e-4)


def bm25_scores(
    query: list[str], texts: dict[str, list[str]], count: int, average: float
) -> list[tuple[str, float]]:
    def weight(words: list[str], word: str) -> float:
        tf = words.count(word)
        norm = 1 - bm25.B + bm25.B * len(words) / average
        return tf * (bm25.K1 + 1) / (tf + bm25.K1 * norm)

    frequency = {word: sum(word in words for words in texts.values()) for word in set(query)}
    idf = {word: log(1 + (count - df + 0.5) / (df + 0.5)) for word, df in frequency.items()}
    found = {name: sum(idf[w] * weight(words, w) for w in set(query)) for name, words in texts.items()}
    return sorted(found.items(), key=lambda pair: -pair[1])


# --- any human text


HOSTILE = [
    "!!!???",
    "| a | b |\n|---|---|",
    "-" * 33,
    "--" * 500,
    "& | ! <-> :* ( )",
    "'\" \\ ''",
    "a:b:c:*",
    "🙂🙃",
    "עברית ‏RTL‎",
    "مرحبا؟",
    "\u200b\ufeff",
    "\u0301\u0301",
    "<script>alert(1)</script>",
    "'; DROP TABLE cayu.chunks; --",
    "%s %(x)s {} {0}",
    "\t\n\r\x0b\x01\x1f",
    "１２３ ＡＢＣ",
    "word " * 5000,
    '"' * 101,
    "OR OR OR",
    "- - -",
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries_are_just_queries(collection: Collection, mode: Mode, query: str) -> None:
    if query.strip():
        collection.search(query, mode=mode, fuzzy=True, channels="text")


@pytest.mark.parametrize("mode", MODES)
def test_random_queries_give_no_sql_error(collection: Collection, mode: Mode) -> None:
    rng = random.Random(mode)
    alphabet = (
        "ab \"'\\-&|!<>()*:.,/_%{}$#@~`^+=?;\t\u00e9\u0434\u05d0\u0639\u4e2d\u0e01\U0001f600\u0301\u200d"
    )
    for _ in range(150):
        query = "".join(rng.choices(alphabet, k=rng.randint(1, 60)))
        if query.strip():
            collection.search(query, mode=mode, channels="text")


@given(st.text(max_size=80))
def test_web_queries_parse_into_bounded_clauses(query: str) -> None:
    parsed = text_query(query, "web")
    assert len(parsed.clauses) <= 64
    assert all(isinstance(clause, Clause) for clause in parsed.clauses)


def test_two_ingests_at_once_neither_wait_nor_deadlock_and_agree_on_statistics(
    database_url: str, engine: sa.Engine
) -> None:
    def ingest(part: int) -> None:
        with Store(database_url, embedder=CountingEmbedder()) as store:
            documents = [
                Document(f"word{n % 90} both{n % 7} part{part}.", id=f"{part}-{n}") for n in range(1500)
            ]
            store.collection("both").ingest(documents)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ingest, range(2)))
    store = Store(engine, embedder=CountingEmbedder())
    assert store.collection("both").refresh_statistics()
    single = store.collection("single")
    for part in range(2):
        single.ingest(
            [Document(f"word{n % 90} both{n % 7} part{part}.", id=f"{part}-{n}") for n in range(1500)]
        )
    assert single.refresh_statistics()
    counted = """SELECT lexeme, document_frequency, max_weight FROM cayu.lexeme_statistics s
        JOIN cayu.collections c ON c.id = s.collection_id WHERE c.name = '{}' ORDER BY lexeme"""
    assert rows(engine, counted.format("both")) == rows(engine, counted.format("single"))
