from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cayu_pg.bm25 import DIMENSIONS, dimension, is_exact, threshold


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_word_has_a_dimension_that_a_sparsevec_allows(lexeme: str) -> None:
    assert 1 <= dimension(lexeme) <= DIMENSIONS
    assert dimension(lexeme) == dimension(lexeme)


def test_an_answer_is_exact_when_nothing_was_left_out() -> None:
    assert is_exact([], 10, 0.0)
    assert is_exact([1.0], 10, 0.0)


def test_an_answer_is_exact_when_the_last_candidate_beats_all_that_was_left_out() -> None:
    assert is_exact([5.0, 4.0], 2, 3.9)
    assert not is_exact([5.0, 4.0], 2, 4.0)
    assert not is_exact([5.0, 4.0], 2, 4.0 - 1e-7)


def test_a_short_answer_proves_nothing_while_words_were_left_out() -> None:
    assert not is_exact([5.0, 4.0], 3, 0.1)


def test_the_threshold_is_just_below_the_last_candidate_and_zero_when_there_are_too_few() -> None:
    assert 1.9999 < threshold([5.0, 2.0], 2) < 2.0
    assert threshold([5.0], 2) == 0.0
