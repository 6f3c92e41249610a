"""Calibration finds the channel that does not fit a collection, without judgements, and leaves the rest equal."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from cayu_pg.async_store import AsyncStore
from cayu_pg.calibration import (
    MIN_PROBES,
    MOST_WORDS,
    Asked,
    CalibrationReport,
    Found,
    Passage,
    Probe,
    asked,
    calibrated_config,
    few_words,
    misfit_of,
    misfit_warning,
    probes_of,
)
from cayu_pg.cli import main
from cayu_pg.collection import Collection
from cayu_pg.embedding import HashEmbedder
from cayu_pg.errors import InvalidInput
from cayu_pg.records import Document
from cayu_pg.store import Store
from tests.stores import rows, statements_of
from tests.test_fusion_configs import ChanceEmbedder

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
STOP_WORDS = re.findall(
    "[a-z]+",
    "about above after again against all and any are because been before being below between both but can did does"
    " doing down during each few for from further had has have having her here hers him himself his how into its more"
    " most myself nor not now off once only other our ours out over own same she should some such than that the their",
)
THAI = [chr(each) for each in range(0x0E01, 0x0E2F)]


def made_up(
    seed: int, count: int = 40, words: int = 60, letters: list[str] = SYLLABLES, gap: str = " "
) -> list[str]:
    """Passages of made-up words, each of its own."""
    dice = random.Random(seed)
    vocabulary = ["".join(dice.choices(letters, k=4)) for _ in range(1_000)]
    return [gap.join(dice.choices(vocabulary, k=words)) for _ in range(count)]


def found(vector: float, text: float, probes: int = 100) -> Asked:
    return Asked(
        probes=probes,
        found={"vector": Found(mrr=vector, recall=vector), "text": Found(mrr=text, recall=text)},
    )


@pytest.fixture
def fitting(engine: sa.Engine) -> Iterator[Store]:
    with Store(engine, embedder=HashEmbedder(256)) as opened:
        yield opened


@pytest.fixture
def unfitting(engine: sa.Engine) -> Iterator[Store]:
    """A store whose model knows nothing of the texts."""
    with Store(engine, embedder=ChanceEmbedder()) as opened:
        yield opened


@pytest.fixture
def misfitted(unfitting: Store) -> Collection:
    collection = unfitting.collection("notes")
    collection.ingest(made_up(1))
    return collection


# Questions


@given(st.text(min_size=1).filter(str.strip), st.binary(min_size=1, max_size=32))
def test_a_few_words_are_some_of_the_passage_in_their_order(text: str, content_hash: bytes) -> None:
    passage = Passage(content_hash, text, "a", None)
    query = few_words(passage)
    assert query == few_words(passage)
    assert query.strip()
    place = 0
    for piece in query.split(" "):
        place = text.index(piece, place) + len(piece)


@pytest.mark.parametrize(("words", "asked_with"), [(1, 1), (3, 3), (10, 3), (50, 10), (1_000, MOST_WORDS)])
def test_a_fifth_of_the_words_is_asked_with(words: int, asked_with: int) -> None:
    text = " ".join(f"w{number}" for number in range(words))
    assert len(few_words(Passage(b"hash", text, "a", None)).split()) == asked_with


def test_scripts_without_spaces_are_asked_in_pieces() -> None:
    query = few_words(Passage(b"hash", "".join(THAI) * 4, "a", None))
    assert len(query.split()) > 3
    assert all(len(piece) <= 4 for piece in query.split())


def test_a_title_asks_for_its_record_unless_two_records_share_it() -> None:
    passages = [
        Passage(b"1", "one text", "a", "Moons"),
        Passage(b"2", "another text", "a", "Moons"),
        Passage(b"3", "third text", "b", "Shared"),
        Passage(b"4", "fourth text", "c", "Shared"),
        Passage(b"5", "fifth text", "d", " "),
    ]
    assert [each for each in probes_of(passages) if each.known_by == "title"] == [
        Probe("title", "Moons", "a")
    ]
    assert [each.answer for each in probes_of(passages) if each.known_by == "words"] == [
        "31",
        "32",
        "33",
        "34",
        "35",
    ]


# The rule


def test_what_was_found_is_averaged() -> None:
    assert asked({"text": [1, 2, None, 20]}) == Asked(
        probes=4, found={"text": Found(mrr=(1 + 1 / 2 + 1 / 20) / 4, recall=0.5)}
    )


@pytest.mark.parametrize(
    ("words", "title", "misfit"),
    [
        (found(0.30, 0.95), None, "vector"),
        (found(0.95, 0.30), None, "text"),
        (found(0.70, 0.95), None, None),
        (found(0.10, 0.40), None, None),  # the questions are too hard for both
        (found(0.00, 1.00, probes=MIN_PROBES - 1), None, None),
        (found(0.30, 0.95), found(0.80, 0.90), None),  # what is asked with titles is found
        (found(0.30, 0.95), found(0.20, 0.90), "vector"),
        (found(0.30, 0.95), found(0.90, 0.95, probes=MIN_PROBES - 1), "vector"),
        (found(0.90, 0.95), found(0.20, 0.90), None),
    ],
)
def test_a_clear_misfit_is_one_by_words_and_titles(
    words: Asked, title: Asked | None, misfit: str | None
) -> None:
    assert misfit_of(words, title) == misfit


def test_a_misfit_is_left_out_and_all_else_is_equal() -> None:
    channels = ("vector", "text")
    assert calibrated_config("mine", channels, "vector", 100).channel_weights == {"text": 1.0}
    equal = calibrated_config("mine", channels, None, 100)
    assert (equal.channel_weights, equal.rrf_k) == ({"vector": 1.0, "text": 1.0}, 60.0)


@pytest.mark.parametrize(
    "evidence", [None, {}, {"from": "tuning", "misfit": "text"}, {"from": "calibration", "misfit": None}]
)
def test_only_a_calibration_that_saw_a_misfit_warns(evidence: dict[str, object] | None) -> None:
    assert misfit_warning("notes", "calibrated", evidence) is None


# On a database


def test_a_model_that_does_not_fit_is_left_out(misfitted: Collection) -> None:
    report = misfitted.calibrate()
    assert report.misfit == "vector"
    assert report.words.probes == 40
    assert report.words.found["text"].mrr == 1
    assert report.words.found["vector"].mrr < 0.5
    result = misfitted.search(made_up(1)[7][:60], fusion="calibrated")
    assert result.texts[0] == made_up(1)[7]
    assert set(result.diagnostics.channels) == {"text"}
    assert result.fusion.diagnostics.configuration_sha256 == report.fingerprint
    assert "the model chance does not fit 'notes'" in str(report)


def test_a_model_that_fits_keeps_its_weight(fitting: Store) -> None:
    collection = fitting.collection("notes")
    collection.ingest(made_up(1))
    report = collection.calibrate()
    assert report.misfit is None
    assert report.config.channel_weights == {"vector": 1.0, "text": 1.0}
    assert "no misfit, equal weights stay" in str(report)
    assert collection.misfit() is None


def test_a_text_configuration_that_does_not_fit_is_found(fitting: Store) -> None:
    collection = fitting.collection("notes", text_config="english")
    dice = random.Random(1)
    collection.ingest([" ".join(dice.sample(STOP_WORDS, 12)) for _ in range(40)])
    report = collection.calibrate()
    assert report.misfit == "text"
    assert report.config.channel_weights == {"vector": 1.0}
    assert "the text channel (english, standard" in str(collection.misfit())
    assert "or try another text_config or analyzer" in str(collection.misfit())


def test_few_passages_decide_nothing(unfitting: Store) -> None:
    collection = unfitting.collection("notes")
    collection.ingest(made_up(1)[: MIN_PROBES - 1])
    report = collection.calibrate()
    assert report.misfit is None
    assert "too few passages to tell" in str(report)


def test_the_same_collection_is_calibrated_alike(misfitted: Collection, engine: sa.Engine) -> None:
    first = misfitted.calibrate(probes=25)
    with Store(engine, embedder=ChanceEmbedder()) as other:
        assert other.collection("notes").calibrate(probes=25) == first
    assert first.words.probes == 25


def test_titles_are_asked_for_where_there_are_some(fitting: Store) -> None:
    collection = fitting.collection("notes")
    texts = made_up(1)
    collection.ingest(
        [
            Document(text, id=str(number), title=" ".join(text.split()[:5]))
            for number, text in enumerate(texts)
        ]
    )
    report = collection.calibrate()
    assert report.title is not None
    assert report.title.probes == len(texts)
    assert report.title.found["text"].recall > 0.9
    assert "by title, 40 probes" in str(report)


def test_nothing_is_written_but_the_configuration(misfitted: Collection, engine: sa.Engine) -> None:
    with statements_of(engine) as sent:
        misfitted.calibrate()
    writing = [each for each in sent if each.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE"))]
    assert [each.split("(")[0].split()[-1] for each in writing] == ["cayu.fusion_configs"]


def test_what_was_seen_is_kept_beside_the_configuration(misfitted: Collection, engine: sa.Engine) -> None:
    report = misfitted.calibrate(name="mine")
    [(name, evidence)] = rows(engine, "SELECT name, evidence FROM cayu.fusion_configs")
    assert (name, evidence) == ("mine", report.evidence())
    assert misfitted.fusion("mine") == report.config


def test_ingest_warns_of_a_known_misfit(misfitted: Collection) -> None:
    assert misfitted.ingest("One more text.").advice == []
    misfitted.calibrate()
    [advice] = misfitted.ingest("And yet another text.").advice
    assert advice == misfitted.misfit()
    assert "fusion='calibrated', or try change_embedder" in advice
    assert misfitted.ingest("And yet another text.").advice == []  # nothing new came


def test_what_was_seen_of_another_model_does_not_count(misfitted: Collection) -> None:
    misfitted.calibrate()
    misfitted.change_embedder(HashEmbedder(256))
    assert misfitted.misfit() is None
    assert misfitted.calibrate().misfit is None


def test_the_newest_calibration_counts(misfitted: Collection) -> None:
    misfitted.calibrate(name="first")
    misfitted.delete([each.record_id for each in misfitted.records(limit=30)])
    misfitted.calibrate(name="second")  # of ten passages
    assert misfitted.misfit() is None


def test_an_empty_collection_cannot_be_calibrated(fitting: Store) -> None:
    with pytest.raises(
        InvalidInput, match="one with passages to ask for; ingest some first, found none in 'notes'"
    ):
        fitting.collection("notes").calibrate()


@pytest.mark.parametrize("probes", [0, 10_001, True, 1.5])
def test_the_number_of_probes_is_checked(fitting: Store, probes: int) -> None:
    with pytest.raises(InvalidInput, match="probes: expected an int from 1 to 10000"):
        fitting.collection("notes").calibrate(probes=probes)


def test_progress_counts_the_searches(misfitted: Collection) -> None:
    told: list[tuple[int, int]] = []
    misfitted.calibrate(probes=20, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 40) for done in range(1, 41)]


def test_calibrating_in_the_callers_transaction_is_undone_with_it(
    misfitted: Collection, unfitting: Store
) -> None:
    with unfitting.engine.connect() as connection:
        unfitting.using(connection).collection("notes").calibrate()
        connection.rollback()
    assert misfitted.misfit() is None


def test_both_doors_calibrate_alike(misfitted: Collection, database_url: str) -> None:
    async def work() -> tuple[CalibrationReport, str | None]:
        async with AsyncStore(database_url, embedder=ChanceEmbedder()) as store:
            collection = await store.collection("notes")
            return await collection.calibrate(), await collection.misfit()

    assert asyncio.run(work()) == (misfitted.calibrate(), misfitted.misfit())
    assert misfitted.misfit() is not None


def test_the_doctor_tells_a_misfit(misfitted: Collection, unfitting: Store) -> None:
    assert "does not fit" not in str(unfitting.doctor())
    misfitted.calibrate()
    told = [each.found for each in unfitting.doctor().findings if each.level == "warning"]
    assert misfitted.misfit() in told


def test_the_command_calibrates_and_searches_with_the_outcome(
    engine: sa.Engine, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = made_up(1)
    Store(engine, embedder=HashEmbedder(64)).collection("notes").ingest(texts)

    def run(command: str, *arguments: str) -> str:
        assert main([command, *arguments, "-c", "notes", "--url", database_url]) == 0
        return capsys.readouterr().out

    assert "notes: calibrated" in run("calibrate")
    report = json.loads(run("calibrate", "--name", "mine", "--probes", "25", "--json"))
    assert (report["name"], report["words"]["probes"]) == ("mine", 25)
    found = json.loads(run("search", texts[0][:80], "--fusion", "mine", "--json"))
    assert found["fusion"]["diagnostics"]["configuration_sha256"] == report["fingerprint"]
