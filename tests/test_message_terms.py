"""Rare words choose the messages to score, common ones add to their scores, and a bound tells what could be missing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cayu_pg.message_terms import Choice, choose, extrapolated, is_exact, with_newest_of_all


def test_rare_words_choose_until_the_budget_is_spent() -> None:
    choice = choose({"common": 900, "rare": 2, "some": 90, "more": 70}, 1000, limit=10, budget=100)
    assert (choice.all_of, choice.newest_of) == (["rare", "more"], [])
    assert list(choice.idf) == ["rare", "more", "some", "common"]


def test_where_they_are_too_few_the_next_word_gives_its_newest() -> None:
    choice = choose({"common": 900, "rare": 2}, 1000, limit=10, budget=100)
    assert (choice.all_of, choice.newest_of) == (["rare"], ["common"])
    assert choose({"common": 900}, 1000, limit=10, budget=100).newest_of == ["common"]


def test_a_word_is_worth_what_its_rarity_says() -> None:
    idf = choose({"rare": 1, "everywhere": 10, "unknown": 0}, 10, limit=1, budget=100).idf
    assert idf["rare"] == pytest.approx(math.log(1 + 9.5 / 1.5))
    assert idf["everywhere"] == pytest.approx(math.log(1 + 0.5 / 10.5))
    assert idf["unknown"] == pytest.approx(math.log(1 + 10.5 / 0.5))


@given(st.dictionaries(st.text(), st.floats(0, 1e9)), st.floats(0, 1e9), st.integers(1, 100))
def test_no_frequency_gives_a_negative_worth(
    frequencies: dict[str, float], messages: float, limit: int
) -> None:
    choice = choose(frequencies, messages, limit, 5000)
    assert all(idf >= 0 for idf in choice.idf.values())
    assert sum(frequencies[word] for word in choice.all_of) <= 5000


def test_widened_every_word_gives_its_newest() -> None:
    choice = choose({"common": 900, "rare": 2, "often": 700}, 1000, limit=10, budget=100)
    assert with_newest_of_all(choice).newest_of == ["often", "common"]


CHOICE = Choice({"rare": 5.0, "some": 1.0, "common": 0.5}, ["rare"], ["some"])


def test_exact_when_the_words_left_out_cannot_reach_the_last_hit() -> None:
    assert is_exact(CHOICE, [9.0, 3.4], limit=2, complete=False)
    assert not is_exact(CHOICE, [9.0, 3.2], limit=2, complete=False)
    assert not is_exact(CHOICE, [9.0], limit=2, complete=False)


def test_a_word_whose_messages_were_all_chosen_is_not_left_out() -> None:
    assert is_exact(CHOICE, [9.0, 1.2], limit=2, complete=True)
    assert not is_exact(CHOICE, [9.0, 1.0], limit=2, complete=True)
    assert is_exact(with_newest_of_all(CHOICE), [9.0], limit=2, complete=True)


def test_the_share_of_keys_tells_how_many_there_are() -> None:
    assert extrapolated(500, 2**31 - 1) == 1000
    assert extrapolated(500, 2**32 - 1) == 500
