"""People search what was said: any text finds any text, in one transcript or in all of a tenant's."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cayu_pg.appending import MAX_INDEXED, text_of, words_of
from cayu_pg.embedding import HashEmbedder
from cayu_pg.errors import InvalidInput
from cayu_pg.fusion import WeightedReciprocalRankFusion, WeightedReciprocalRankFusionConfig
from cayu_pg.message_search import MessageHits, message_channel
from cayu_pg.messages import FilePart, Message
from cayu_pg.ranking import RankedRetrievalChannel, RankedRetrievalHit
from cayu_pg.sql import message_search as sql_search
from cayu_pg.sql.message_search import Scope, take_statistics
from cayu_pg.sql.settings import set_for_message_search
from cayu_pg.sql.tables import build_tables
from cayu_pg.store import Store
from cayu_pg.transcript import Transcript
from tests.stores import rows, scalar, statements_of
from tests.talks import open_transcript, user

ATTACHMENT = {
    "artifact_id": "a1",
    "kind": "document",
    "filename": "invoice.pdf",
    "content_type": "application/pdf",
    "size_bytes": 9,
}
CONVERSATION = [
    Message.text("system", "You are a weather station."),
    Message.text("user", "How warm is it in Paris?"),
    Message.model_validate(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "text": "secretly, a thermometer"},
                {"type": "text", "text": "Let me see."},
                {
                    "type": "tool_call",
                    "tool_call_id": "c",
                    "tool_name": "read_sensor",
                    "arguments": {"where": "roof"},
                },
            ],
        }
    ),
    Message.tool_result(tool_call_id="c", tool_name="read_sensor", content="19 degrees in Paris"),
    Message.text("assistant", "It is 19 degrees."),
]


@pytest.fixture
def store(engine: sa.Engine) -> Iterator[Store]:
    with Store(engine, embedder=HashEmbedder(16)) as store:
        yield store


@pytest.fixture
def talk(store: Store) -> Transcript:
    talk = open_transcript(store)
    talk.append(CONVERSATION)
    return talk


def found(hits: MessageHits) -> list[int]:
    return [hit.position for hit in hits]


def search_all(store: Store, query: str, *, tenant: str = "default", **options: Any) -> MessageHits:
    return store.for_tenant(tenant).search_messages(query, **options)


# --- what is found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("paris", [1, 3]),
        ("WARM", [1]),
        ("sensor", [2, 3]),
        ("read_sensor", [2, 3]),
        ("thermometer", []),
        ("roof", []),
        ("weather, please!", [0]),
        ("-paris", [1, 3]),
        ("paris & !warm | (", [1, 3]),
        ("'paris':*", [1, 3]),
        ("no such thing anywhere", []),
        ("?!", []),
    ],
)
def test_words_find_messages(talk: Transcript, query: str, expected: list[int]) -> None:
    assert sorted(found(talk.search(query))) == expected


def test_the_text_of_a_message_is_what_people_read() -> None:
    assert [text_of(message) for message in CONVERSATION] == [
        "You are a weather station.",
        "How warm is it in Paris?",
        "Let me see.\nread_sensor",
        "read_sensor\n19 degrees in Paris",
        "It is 19 degrees.",
    ]
    assert text_of(Message(role="user", content=[FilePart(attachment=ATTACHMENT)])) == "invoice.pdf"


def test_hits_are_ranked_and_carry_the_message(talk: Transcript) -> None:
    talk.append(user("Paris, Paris, Paris! " + "padding " * 50))
    hits = talk.search("degrees in Paris")
    assert found(hits)[0] == 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert (hits[0].message, hits[0].transcript_id, hits[0].created_at.tzinfo is not None) == (
        CONVERSATION[3],
        "talk",
        True,
    )


def test_equal_hits_come_newest_first(talk: Transcript) -> None:
    talk.append([user("same words")] * 3)
    assert found(talk.search("same words")) == [7, 6, 5]


def test_a_limit_cuts_and_says_so(talk: Transcript) -> None:
    talk.append([user("same words")] * 3)
    hits = talk.search("words", limit=2)
    assert (found(hits), hits.truncated) == ([7, 6], True)
    assert not talk.search("words", limit=3).truncated


def test_roles_filter(talk: Transcript) -> None:
    assert found(talk.search("degrees paris", roles=["tool"])) == [3]
    assert sorted(found(talk.search("degrees paris", roles=("user", "assistant")))) == [1, 4]
    assert found(talk.search("degrees", roles=[])) == []


def test_times_filter(engine: sa.Engine, talk: Transcript) -> None:
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "UPDATE cayu.transcript_messages"
                " SET created_at = timestamptz '2026-01-01T00:00Z' + position * interval '1 hour'"
            )
        )
    midnight = datetime.fromisoformat("2026-01-01T00:00+00:00")
    third = midnight + timedelta(hours=3)
    assert found(talk.search("paris", since=third)) == [3]
    assert found(talk.search("paris", until=third)) == [1]
    assert found(talk.search("paris", since=midnight, until=third, roles="user")) == [1]


def test_languages_are_found_alike(talk: Transcript) -> None:
    talk.append([user("Где находится библиотека?"), user("أين المدينة؟"), user("Größe der Straße")])
    assert [found(talk.search(query)) for query in ("БИБЛИОТЕКА", "المدينة", "größe")] == [[5], [6], [7]]


# --- over all of a tenant's transcripts


def test_a_tenant_searches_all_its_transcripts_and_no_others(store: Store, talk: Transcript) -> None:
    open_transcript(store, "second").append([user("nothing"), user("Paris again")])
    open_transcript(store, "talk", "other").append(user("Paris of somebody else"))
    hits = search_all(store, "paris")
    assert sorted((hit.transcript_id, hit.position) for hit in hits) == [
        ("second", 1),
        ("talk", 1),
        ("talk", 3),
    ]
    assert [hit.transcript_id for hit in search_all(store, "paris", roles="user", limit=1)] == ["second"]
    assert len(search_all(store, "paris", tenant="other")) == 1
    assert search_all(store, "paris", tenant="nobody") == []


# --- how hits are scored


def expected_scores(texts: list[str], query: str) -> dict[int, float]:
    """BM25 with k1 = 1.2 and b = 0.4 over words between spaces."""
    documents = [text.split() for text in texts]
    average = sum(map(len, documents)) / len(documents)
    scores: dict[int, float] = defaultdict(float)
    for word in set(query.split()):
        having = [place for place, words in enumerate(documents) if word in words]
        idf = math.log(1 + (len(documents) - len(having) + 0.5) / (len(having) + 0.5))
        for place in having:
            tf = documents[place].count(word)
            scores[place] += idf * tf * 2.2 / (tf + 1.2 * (0.6 + 0.4 * len(documents[place]) / average))
    return scores


def scores_of(hits: MessageHits) -> dict[int, float]:
    return {hit.position: hit.score for hit in hits}


WORDS = st.lists(st.sampled_from(("ant", "bee", "cat", "dog", "eel")), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, min_size=1, max_size=12), WORDS)
def test_scores_are_those_of_bm25_over_the_transcript(store: Store, texts: list[str], query: str) -> None:
    talk = open_transcript(store, f"talk {uuid4()}")
    talk.append([user(text) for text in texts])
    hits = talk.search(query)
    assert scores_of(hits) == pytest.approx(expected_scores(texts, query))
    assert (hits.exact, hits.truncated) == (True, False)


def test_scores_over_a_tenant_count_all_its_messages(store: Store) -> None:
    texts = [f"{animal} number {number % 7}" for number in range(40) for animal in ("ant", "bee", "cat bee")]
    store.transcript("other tenant", tenant="other").append([user("bee")] * 50)
    for start in range(0, 120, 30):
        store.transcript(f"part {start}").append([user(text) for text in texts[start : start + 30]])
    hits = store.search_messages("bee 3", limit=100)
    scores = {int(hit.transcript_id.split()[1]) + hit.position: hit.score for hit in hits}
    assert scores == pytest.approx(expected_scores(texts, "bee 3"))


def test_a_rare_word_beats_a_common_one(talk: Transcript) -> None:
    talk.append([user("the keys are rotated"), user("serendipity rotated"), *[user("the keys")] * 20])
    assert found(talk.search("the keys serendipity"))[0] == 6
    assert set(found(talk.search("the keys rotated"))[:2]) == {5, 6}


def test_scores_follow_what_is_appended_and_deleted(talk: Transcript) -> None:
    talk.delete_before(5)
    texts = ["ant bee", "bee bee", "cat bee"]
    talk.append([user(text) for text in texts])
    assert scores_of(talk.search("ant bee")) == pytest.approx(
        {place + 5: score for place, score in expected_scores(texts, "ant bee").items()}
    )
    talk.delete_before(6)
    assert scores_of(talk.search("cat")) == pytest.approx({7: expected_scores(texts[1:], "cat")[1]})


def test_beyond_the_sample_rare_words_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_search, "SAMPLED", 20)
    texts = [f"common word{number % 50} number{number}" for number in range(400)]
    talk = open_transcript(store)
    talk.append([user(text) for text in texts])
    store.transcript("elsewhere").append([user("common word9 number9")] * 30)
    hits = talk.search("word9 number59")
    assert scores_of(hits) == pytest.approx(expected_scores(texts, "word9 number59"))
    assert found(hits)[0] == 59


def test_a_word_found_more_often_than_foreseen_is_not_called_exact(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SAMPLED": 20, "COUNTED": 30, "MOST_POSTINGS": 40}.items():
        monkeypatch.setattr(sql_search, name, value)
    talk = open_transcript(store)
    talk.append([user(f"once said {number}") for number in range(60)])
    talk.append([user(f"later {number}") for number in range(200)])
    hits = talk.search("said", limit=5)
    assert (len(hits), hits.exact, hits.truncated) == (5, False, True)


def test_many_transcripts_are_counted_by_their_share_of_the_keys(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_search, "MAX_TRANSCRIPTS", 50)
    for number in range(200):
        store.transcript(f"talk {number}").append([user("ant"), user("bee")])
    with store.engine.connect() as connection:
        statistics = take_statistics(connection, build_tables(), Scope("tenant", "default"), "ant")
    assert statistics is not None
    assert statistics.messages == pytest.approx(400, rel=0.4)
    assert statistics.frequencies["ant"] == pytest.approx(statistics.messages / 2)


# --- any text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": " \n"}, "query"),
        ({"query": 7}, "query"),
        ({"query": "nul \x00"}, "query"),
        ({"query": "\ud800"}, "query"),
        ({"query": "x" * 1_000_001}, "query"),
        ({"query": "x", "limit": 0}, "limit"),
        ({"query": "x", "roles": "robot"}, "roles"),
        ({"query": "x", "roles": [7]}, "roles"),
        ({"query": "x", "roles": 7}, "roles"),
        ({"query": "x", "since": datetime(2026, 1, 1)}, "since"),
        ({"query": "x", "until": "now"}, "until"),
    ],
)
def test_a_bad_question_is_refused_before_any_sql(
    engine: sa.Engine, talk: Transcript, options: dict[str, Any], field: str
) -> None:
    with statements_of(engine) as sent, pytest.raises(InvalidInput) as refused:
        talk.search(**options)
    assert (refused.value.field, sent) == (field, [])


HARD = [
    "-" * 33,
    "a" * 100_000,
    " ".join(f"word{number}" for number in range(20_000)),
    "'\\' | \\\\ '' & ! <-> :* (",
    "https://example.com/a?b=c&d=" + "e" * 3000,
    "\ufdfa" * 50_000,
    "".join(chr(0x4E00 + number % 20_000) for number in range(90_000)),
    " ".join(f"{number:x}/\u00e9{number:x}.\u00e9\u00e0/{number}" for number in range(15_000)),
    " ".join(f"{number:x}.com/\u00e9{number:x}" for number in range(15_000)),
    "".join(f"{chr(0x10000 + number)}\ufdfa " for number in range(3000)) * 10,
    " ".join(f"\u0130{number}-\u0130{number + 1}-\u0130{number + 2}" for number in range(9000)),
]


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_any_text_can_be_appended_and_asked(talk: Transcript, text: str) -> None:
    talk.append(user(f"needle {text}"))
    assert found(talk.search("needle")) == [5]
    talk.search(f"{text} needle")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1))
def test_every_message_is_found_by_its_own_words_or_has_none(
    engine: sa.Engine, talk: Transcript, text: str
) -> None:
    done = talk.append(user(f"{text} ."))
    words = scalar(engine, f"SELECT length(tsv) FROM cayu.message_lexemes WHERE position = {done.last}")
    hits = found(talk.search(f"{text} .", limit=10_000))
    assert (done.last in hits) == (words != 0)


def test_a_message_too_long_for_the_index_is_found_by_its_beginning_and_counted(
    engine: sa.Engine, talk: Transcript
) -> None:
    long = "beginning " + " ".join(f"word{number}" for number in range(100_000)) + " finish"
    done = talk.append([user(long), user("short")])
    assert (done.first, done.last, done.truncated) == (5, 6, 1)
    assert (found(talk.search("beginning")), found(talk.search("finish"))) == ([5], [])
    truncated = "SELECT position FROM cayu.message_lexemes WHERE truncated"
    assert rows(engine, truncated) == [(5,)]
    assert talk.read(after=4)[0].message == user(long)


def test_what_is_indexed_is_cut_between_characters() -> None:
    words = words_of(user("\u00e9\u4e00" * 45_000))
    assert words.truncated
    assert MAX_INDEXED - 4 < len(words.analyzed.encode()) <= MAX_INDEXED


def test_the_length_of_a_message_counts_its_words(engine: sa.Engine, talk: Transcript) -> None:
    talk.append(user("one two two three three three"))
    assert scalar(engine, "SELECT length FROM cayu.message_lexemes WHERE position = 5") == 6


def test_a_question_keeps_its_first_64_words(engine: sa.Engine, talk: Transcript) -> None:
    with engine.connect() as connection:
        text = " ".join(f"w{number}" for number in range(100))
        statistics = take_statistics(connection, build_tables(), Scope("tenant", "default"), text)
    assert statistics is not None
    assert sorted(statistics.frequencies) == sorted(f"w{number}" for number in range(64))


# --- how it is answered


def plans_of(engine: sa.Engine, act: Callable[[], object]) -> list[str]:
    """The plans of the queries that are sent meanwhile."""
    sent: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        sent.append((arguments[2], arguments[3]))

    sa.event.listen(engine, "before_cursor_execute", note)
    act()
    sa.event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        set_for_message_search(connection)
        return [
            "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", values).scalars())
            for statement, values in sent
            if "message_lexemes" in statement
        ]


@pytest.fixture
def long_talk(engine: sa.Engine, store: Store) -> Transcript:
    talk = open_transcript(store, "long")
    talk.append([user(f"message number {number} says hello") for number in range(6_000)])
    talk.append(user("serendipity"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE cayu.message_lexemes"))
    return talk


def test_one_rare_word_is_answered_by_the_index(
    engine: sa.Engine, store: Store, long_talk: Transcript
) -> None:
    for search in (store.search_messages, long_talk.search):
        statistics, ranking = plans_of(engine, partial(search, "serendipity"))
        for plan in (statistics, ranking):
            assert "Bitmap Index Scan on ix_message_lexemes_tsv" in plan
            assert "Seq Scan on message_lexemes" not in plan
        assert re.search(r"pk_transcript_messages.*\n +Index Cond: .*transcript_key.*position", ranking)


def test_a_word_of_every_message_is_answered_by_the_newest(
    engine: sa.Engine, store: Store, long_talk: Transcript
) -> None:
    for search, index in (
        (store.search_messages, "ix_message_lexemes_tenant_created_at"),
        (long_talk.search, "pk_message_lexemes"),
    ):
        hits = search("hello message", limit=5)
        assert found(hits) == [5_999, 5_998, 5_997, 5_996, 5_995]
        assert (hits.truncated, hits.exact) == (True, False)
        _, ranking = plans_of(engine, partial(search, "hello message"))
        assert f"Index Scan Backward using {index}" in ranking


def test_a_rare_word_comes_first_and_a_common_one_fills_up(long_talk: Transcript) -> None:
    hits = long_talk.search("serendipity hello", limit=3)
    assert found(hits) == [6_000, 5_999, 5_998]
    assert hits[0].score > 10 * hits[1].score
    assert (hits.truncated, hits.exact) == (True, False)
    assert long_talk.search("serendipity hello", limit=1).exact


def test_a_search_sends_two_queries(engine: sa.Engine, talk: Transcript) -> None:
    talk.search("paris")
    with statements_of(engine) as sent:
        talk.search("degrees in paris")
    assert len([statement for statement in sent if not statement.startswith("SET")]) == 2


# --- as a channel


def test_hits_are_a_channel(talk: Transcript) -> None:
    hits = talk.search("degrees paris", limit=2)
    channel = message_channel(hits, candidate_limit=2)
    assert (channel.channel, channel.truncated, channel.candidate_limit) == ("messages", True, 2)
    assert [hit.identity.sort_key() for hit in channel.hits] == [
        ("transcript_message", f"talk:{hit.position}", "1") for hit in hits
    ]
    assert [(hit.rank, hit.raw_score) for hit in channel.hits] == [(1, hits[0].score), (2, hits[1].score)]


def test_chunks_and_messages_are_fused_in_one_ranking(store: Store, talk: Transcript) -> None:
    atlas = store.collection("atlas")
    atlas.ingest(["Paris is the capital of France.", "Rome is the capital of Italy."])
    result = atlas.search("capital Paris", channels=["text"])
    chunks = RankedRetrievalChannel(
        channel="chunks",
        index_version="1",
        candidate_limit=100,
        hits=tuple(
            RankedRetrievalHit(identity=hit.identity, rank=rank, representation="lexemes", content_hash="h")
            for rank, hit in enumerate(result.hits, start=1)
        ),
    )
    messages = message_channel(talk.search("capital Paris", limit=100), candidate_limit=100)
    config = WeightedReciprocalRankFusionConfig(
        configuration_version="1", channel_weights={"chunks": 1.0, "messages": 1.0}
    )
    fused = WeightedReciprocalRankFusion().fuse([chunks, messages], config)
    assert [each.identity.record_type for each in fused.candidates] == [
        "chunk",
        "transcript_message",
        "chunk",
        "transcript_message",
    ]
