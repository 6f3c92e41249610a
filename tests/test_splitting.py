"""Cutting texts into chunks and spans: recorded cases in tests/data, and what holds for every text."""

import hashlib
import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cayu_pg.errors import InvalidInput
from cayu_pg.splitting import Span, split_spans, split_text
from tests.golden import Case, decode, each, read

CASES = read("split_text.jsonl.gz")
RECORDED = [case for case in CASES if "quirk" not in case]
LENGTHS: dict[str, Callable[[str], int]] = {
    "len": len,
    "words": lambda text: len(text.split()),
    "utf8": lambda text: len(text.encode()),
    "half": lambda text: (len(text) + 1) // 2,
}


def split(case: Case) -> list[str]:
    settings = decode(case["kwargs"], {})
    if "length_function" in settings:
        settings["length_function"] = LENGTHS[settings["length_function"]]
    return split_text(decode(case["text"], {}), **settings)


def texts(text: str, **settings: Any) -> list[str]:
    return [text[start:end] for start, end in split_spans(text, **settings)]


@each([case for case in RECORDED if "error" not in case])
def test_text_is_cut_as_recorded(case: Case) -> None:
    chunks = split(case)
    if "chunks" in case:
        assert chunks == case["chunks"]
        return
    text = json.dumps(chunks, sort_keys=True, separators=(",", ":"))
    assert len(chunks) == case["chunk_count"]
    assert hashlib.sha256(text.encode()).hexdigest() == case["chunks_sha256"]


@each([case for case in RECORDED if "error" in case])
def test_bad_sizes_are_refused_as_recorded(case: Case) -> None:
    with pytest.raises(ValueError, match="chunk_"):
        split(case)


def test_replayed_data_is_complete() -> None:
    assert (len(CASES), len(RECORDED)) == (196, 190)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk_size": 0}, "chunk_size: expected an int from 1, found 0"),
        ({"chunk_size": True}, "chunk_size: expected an int from 1, found True"),
        ({"chunk_size": 10.0}, "chunk_size: expected an int from 1, found 10.0"),
        ({"chunk_size": 100}, "chunk_overlap: expected an int from 0 to 99, below chunk_size, found 200"),
        ({"chunk_overlap": False}, "chunk_overlap: .* found False"),
        ({"chunk_overlap": -1}, "chunk_overlap: .* found -1"),
        ({"separators": []}, r"separators: expected a list of at least one text, found \[\]"),
        ({"separators": "\n\n"}, "separators: "),
        ({"separators": [" ", 5]}, "separators: "),
    ],
)
@pytest.mark.parametrize("function", [split_text, split_spans])
def test_bad_settings_are_refused(function: Callable[..., Any], settings: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        function("some text", **settings)


@pytest.mark.parametrize("function", [split_text, split_spans])
def test_only_text_is_split(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match="text: expected a text, found a value of type bytes"):
        function(b"some text")


def test_blank_text_has_no_spans() -> None:
    assert split_spans("") == split_spans(" \r\n\u3000") == []


def test_piece_without_a_finer_separator_stays_whole() -> None:
    assert split_text("aaaaaaaaaa|bb", chunk_size=5, chunk_overlap=0, separators=["|"]) == [
        "aaaaaaaaaa",
        "bb",
    ]
    assert split_text("no bars", chunk_size=5, chunk_overlap=0, separators=["|"]) == ["no bars"]


def test_piece_of_exactly_the_size_is_split_further() -> None:
    one_word = {"chunk_size": 1, "chunk_overlap": 0, "length_function": LENGTHS["words"]}
    assert split_text("alpha beta", **one_word) == list("alphabeta")


def test_character_wider_than_the_size_is_a_chunk() -> None:
    settings = {"chunk_size": 2, "chunk_overlap": 0, "length_function": LENGTHS["utf8"]}
    assert split_text("a\U0001f600b", **settings) == ["a", "\U0001f600", "b"]


def test_spans_keep_the_full_stop_that_chunks_lose() -> None:
    text = "First one. Second one. Third."
    assert split_text(text, chunk_size=12, chunk_overlap=0) == ["First one", "Second one", "Third."]
    assert texts(text, chunk_size=12, chunk_overlap=0) == ["First one.", "Second one.", "Third."]


def test_visible_part_of_a_coarser_separator_stays_with_the_last_piece_before_it() -> None:
    settings = {"chunk_size": 4, "chunk_overlap": 0, "separators": ["; ", " "]}
    assert texts("aa bb cc; dd", **settings) == ["aa", "bb", "cc;", "dd"]


def test_text_of_separators_alone_is_kept_in_spans() -> None:
    assert split_text(". ", chunk_size=1, chunk_overlap=0) == []
    assert texts(". ", chunk_size=1, chunk_overlap=0) == ["."]


def test_crlf_is_a_newline_in_spans() -> None:
    text = "a\r\n\r\nb c\r\n"
    assert split_spans(text, chunk_size=4, chunk_overlap=0) == [Span(0, 1), Span(5, 8)]
    assert texts(text, chunk_size=4, chunk_overlap=0) == ["a", "b c"]
    assert texts("ab\r\ncd", chunk_size=3, chunk_overlap=0, separators=["\r\n"]) == ["ab", "cd"]


def test_spans_have_neither_blank_chunks_nor_blank_edges() -> None:
    assert split_text("a  ", chunk_size=1, chunk_overlap=0) == ["a", " "]
    assert texts("a  ", chunk_size=1, chunk_overlap=0) == ["a"]
    assert texts("      word", chunk_size=5, chunk_overlap=0) == ["word"]


def test_span_that_only_repeats_the_one_before_is_left_out() -> None:
    settings = {"chunk_size": 3, "chunk_overlap": 2, "separators": [""]}
    assert split_text("ab   ", **settings) == ["ab ", "b  ", "   "]
    assert texts("ab   ", **settings) == ["ab"]


def test_spans_overlap_in_whole_pieces() -> None:
    assert texts("one two three four", chunk_size=9, chunk_overlap=4) == ["one two", "two three", "four"]


SEPARATORS = [
    None,
    [""],
    ["\n"],
    ["\n\n", ". "],
    [". ", ""],
    ["|", " "],
    ["\r\n", "b", ""],
    ["", "a"],
    [" | ", " "],
]


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(1, 12))
    return {
        "chunk_size": size,
        "chunk_overlap": draw(st.one_of(st.just(0), st.integers(0, size - 1))),
        "separators": draw(st.sampled_from(SEPARATORS)),
        "length_function": draw(st.sampled_from(list(LENGTHS.values()))),
    }


some_text = st.text("ab .|\n\r\u3000\u4f60\u001c", max_size=60)


@given(some_text, settings())
def test_spans_hold_every_visible_character_in_order(text: str, settings: Any) -> None:
    spans = split_spans(text, **settings)
    covered = {place for start, end in spans for place in range(start, end)}
    assert covered >= {place for place, character in enumerate(text) if not character.isspace()}
    assert all(chunk and chunk == chunk.strip() for chunk in (text[start:end] for start, end in spans))
    assert [span.start for span in spans] == sorted(span.start for span in spans)
    assert all(left.end < right.end for left, right in pairwise(spans))


@given(some_text, settings())
def test_spans_without_overlap_do_not_overlap(text: str, settings: Any) -> None:
    spans = split_spans(text, **settings | {"chunk_overlap": 0})
    assert all(left.end <= right.start for left, right in pairwise(spans))


@given(some_text, settings())
def test_spans_are_the_chunks_of_split_text_with_what_was_lost_at_their_ends(
    text: str, settings: Any
) -> None:
    text = text.replace("\r", "")  # what is a newline for spans alone makes other cuts
    if settings["separators"]:
        settings["separators"] = [each.replace("\r", "") for each in settings["separators"]]
    spans = [text[start:end] for start, end in split_spans(text, **settings)]
    for chunk in split_text(text, **settings):
        assert not chunk.strip() or any(chunk.strip() in span for span in spans)


@given(some_text, st.integers(1, 12), st.data())
def test_no_chunk_exceeds_the_size(text: str, size: int, data: st.DataObject) -> None:
    chunks = split_text(text, chunk_size=size, chunk_overlap=data.draw(st.integers(0, size - 1)))
    assert all(0 < len(chunk) <= size and chunk in text for chunk in chunks)


LARGE = {
    "unbroken": ("x" * 100_000, {}),
    "one-character pieces": ("a " * 50_000, {"chunk_size": 100, "chunk_overlap": 90}),
    "newlines": ("\n" * 100_000 + "x", {}),
    "long pieces": (("y" * 1_500 + "\n\n") * 66, {}),
    "no separator": ("x" * 100_000, {"separators": ["|"]}),
    "many separators": ("word " * 20_000, {"separators": [*map(chr, range(0x4E00, 0x4E40)), " "]}),
    "other lengths": ("word " * 20_000, {"length_function": LENGTHS["utf8"]}),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("function", [split_text, split_spans])
def test_splitting_is_linear_in_the_text(function: Callable[..., Any], name: str) -> None:
    text, settings = LARGE[name]

    def seconds(times: int) -> float:
        measured = []
        for _ in range(3):
            start = time.perf_counter()
            function(text * times, **settings)
            measured.append(time.perf_counter() - start)
        return min(measured)

    assert seconds(8) < 30 * seconds(1) + 0.01  # squared it would be 64 times


def test_there_may_be_more_separators_than_frames() -> None:
    separators = [chr(0x4E00 + place) for place in range(3_000)]
    text = "".join(f"{separator}ab" for separator in separators)
    settings = {"chunk_size": 5, "chunk_overlap": 0, "separators": separators}
    assert split_text(text, **settings) == ["ab"] * 2_998 + [text[-5:]]  # the last two fit together
