"""Documents are cut into chunks here: at the largest unit that fits, with some overlap.

The cuts are those of aimu 0.38.0. A text is split at the first separator that occurs in it; pieces that are still
too long are split at the separators after that one, and short neighbours are packed together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from cayu_pg.errors import InvalidInput

DEFAULT_SEPARATORS = ("\n\n", "\n", ". ", " ", "")

Length = Callable[[str], int]


class Span(NamedTuple):
    """A part of a text, as offsets: `text[start:end]`."""

    start: int
    end: int


def split_text(
    text: str,
    *,
    chunk_size: int = 1000,
    chunk_overlap: int = 200,
    separators: Sequence[str] | None = None,
    length_function: Length = len,
) -> list[str]:
    """The text in chunks of at most `chunk_size`, in order; [] for blank text.

    A chunk repeats at most `chunk_overlap` of the one before, in whole pieces, and nothing where a piece had to be
    split further. Sizes are what `length_function` says of a piece and of a separator, added up. `separators` go
    from the largest unit to the smallest; "" stands for single characters (code points), and without it a chunk
    can exceed the size. The separator at a cut is left out. Raises InvalidInput.
    """
    _check_text(text)
    _check_sizes(chunk_size, chunk_overlap)
    if not text.strip():
        return []
    rule = _rule(chunk_size, chunk_overlap, separators, length_function)
    return [text[cut.start : cut.end] for cut in _cuts(text, rule) if cut.start < cut.end]


def split_spans(
    text: str,
    *,
    chunk_size: int = 1000,
    chunk_overlap: int = 200,
    separators: Sequence[str] | None = None,
    length_function: Length = len,
) -> list[Span]:
    """The chunks of `split_text` as spans of the text that together hold everything but white space.

    What is visible of the separator at a cut stays with the chunk before it (a sentence keeps its full stop), so
    that a chunk may exceed the size by that much. CRLF counts as a newline. Spans have no white space at their
    edges, and one that adds nothing to the span before it is left out. Raises InvalidInput.
    """
    _check_text(text)
    _check_sizes(chunk_size, chunk_overlap)
    rule = _rule(chunk_size, chunk_overlap, separators, length_function)
    rule = rule._replace(separators=tuple(each.replace("\r\n", "\n") for each in rule.separators))
    spans: list[Span] = []
    for start, end in _original(text, _cuts(text.replace("\r\n", "\n"), rule)):
        span = _trimmed(text, start, end)
        if span.start < span.end and (not spans or span.end > spans[-1].end):
            spans.append(span)
    return spans


class _Rule(NamedTuple):
    size: int
    overlap: int
    separators: tuple[str, ...]
    length: Length


class _Cut(NamedTuple):
    """A part of the text that is split at the separators from `level` on, or a chunk when none is left.

    `visible` is where the visible part of the separator behind it ends, or `end` when there is none.
    """

    start: int
    end: int
    visible: int
    level: int


def _cuts(text: str, rule: _Rule) -> Iterator[_Cut]:
    """The chunks in order; some may be empty."""
    # A stack instead of recursion: there may be more separators than Python has frames.
    parts = [iter([_Cut(0, len(text), len(text), 0)])]
    while parts:
        for cut in parts[-1]:
            if cut.level < len(rule.separators):
                parts.append(_split(text, cut, rule))
                break
            yield cut
        else:
            parts.pop()


def _split(text: str, cut: _Cut, rule: _Rule) -> Iterator[_Cut]:
    """The part split at the first separator that occurs in it: chunks, and parts that are still too long."""
    part = text[cut.start : cut.end]
    level = _level(part, cut.level, rule.separators)
    separator = rule.separators[level]
    pieces = part.split(separator) if separator else part
    places = _edges(cut.start, list(map(len, pieces)), len(separator))
    sizes = _sizes(pieces, rule.length)
    gap = rule.length(separator)
    edges = places if rule.length is len else _edges(0, sizes, gap)
    whole = len(rule.separators)

    def joined(first: int, last: int, level: int) -> _Cut:
        end = places[last + 1] - len(separator)
        visible = cut.visible if last == len(pieces) - 1 else end + len(separator.rstrip())
        return _Cut(places[first], end, visible, level)

    first = 0
    for long in _long(sizes, rule.size):
        yield from (joined(low, high, whole) for low, high in _packed(edges, first, long, gap, rule))
        yield joined(long, long, level + 1 if separator else whole)
        first = long + 1
    yield from (joined(low, high, whole) for low, high in _packed(edges, first, len(pieces), gap, rule))


def _level(part: str, level: int, separators: tuple[str, ...]) -> int:
    for place in range(level, len(separators)):
        if separators[place] in part:  # "" is in every text
            return place
    return len(separators) - 1


def _sizes(pieces: Sequence[str], length: Length) -> list[int]:
    if isinstance(pieces, str):  # a million characters are few different ones
        known = {character: length(character) for character in set(pieces)}
        return [known[character] for character in pieces]
    return list(map(length, pieces))


def _long(sizes: list[int], size: int) -> list[int]:
    """The pieces that reach the size and are therefore not packed."""
    return (
        [place for place, found in enumerate(sizes) if found >= size] if max(sizes, default=0) >= size else []
    )


def _edges(start: int, lengths: list[int], gap: int) -> list[int]:
    """Where pieces start that stand `gap` apart, and where one more would."""
    return list(accumulate([length + gap for length in lengths] if gap else lengths, initial=start))


def _packed(edges: list[int], first: int, stop: int, gap: int, rule: _Rule) -> Iterator[tuple[int, int]]:
    """The first and last piece of each chunk: as many as fit, beginning with those that overlap."""
    place = first
    while first < stop:
        place = bisect_right(edges, edges[first] + rule.size + gap, lo=place + 2, hi=stop + 1) - 1
        yield first, place - 1
        if place == stop:
            return
        keep = max(edges[place] - rule.overlap, edges[place + 1] - rule.size) - gap
        first = bisect_left(edges, keep, lo=first, hi=place)


def _original(text: str, cuts: Iterator[_Cut]) -> Iterator[tuple[int, int]]:
    """The places of cuts, made in the text with its CRLFs as newlines, in the text itself."""
    if "\r\n" not in text:
        yield from ((cut.start, cut.visible) for cut in cuts)
        return
    lengths = accumulate(len(line) + 1 for line in text.split("\r\n"))
    newlines = [length - 1 for length in lengths][:-1]
    for cut in cuts:
        start, end = (place + bisect_left(newlines, place) for place in (cut.start, cut.visible))
        yield start, end


def _trimmed(text: str, start: int, end: int) -> Span:
    chunk = text[start:end]
    return Span(start + len(chunk) - len(chunk.lstrip()), start + len(chunk.rstrip()))


def _rule(size: int, overlap: int, separators: Sequence[str] | None, length: Length) -> _Rule:
    if not callable(length):
        raise InvalidInput("length_function", "something that can be called", repr(length)[:80])
    if separators is None:
        return _Rule(size, overlap, DEFAULT_SEPARATORS, length)
    texts = isinstance(separators, list | tuple) and all(isinstance(each, str) for each in separators)
    if not texts or not separators:
        raise InvalidInput("separators", "a list of at least one text", repr(separators)[:80])
    return _Rule(size, overlap, tuple(separators), length)


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput("text", "a text", f"a value of type {type(text).__name__}")


def _check_sizes(size: int, overlap: int) -> None:
    if type(size) is not int or size < 1:
        raise InvalidInput("chunk_size", "an int from 1", repr(size)[:40])
    if type(overlap) is not int or not 0 <= overlap < size:
        raise InvalidInput(
            "chunk_overlap", f"an int from 0 to {size - 1}, below chunk_size", repr(overlap)[:40]
        )
