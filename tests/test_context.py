"""Passages joined for a prompt; recorded cases in tests/data."""

from typing import Any

import pytest

from cayu_pg.context import format_context
from tests.golden import Case, decode, each, read

CASES = read("format_context.jsonl")


@each([case for case in CASES if "result" in case])
def test_context_is_joined_as_recorded(case: Case) -> None:
    assert format_context(decode(case["chunks"], {}), **case["kwargs"]) == case["result"]


@each([case for case in CASES if "error" in case and "quirk" not in case])
def test_what_is_not_a_list_of_texts_is_refused(case: Case) -> None:
    with pytest.raises(TypeError):
        format_context(decode(case["chunks"], {}), **case["kwargs"])


def test_replayed_data_is_complete() -> None:
    assert len(CASES) == 28


def test_numbers_let_a_model_cite() -> None:
    assert format_context(["alpha", "beta"], numbered=True) == "[1] alpha\n\n[2] beta"


def test_separator_is_text() -> None:
    nothing: Any = None
    with pytest.raises(AttributeError):
        format_context(["alpha", "beta"], separator=nothing)
