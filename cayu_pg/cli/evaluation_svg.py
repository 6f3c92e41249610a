"""A picture that compares what channels and fusions did: each measure with the interval that chance leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor
from typing import NamedTuple
from xml.sax.saxutils import escape

from cayu_pg.evaluating import EQUAL, EvaluationReport
from cayu_pg.evaluation import bootstrap_interval
from cayu_pg.search_request import CHANNELS

WIDTH, LEFT, RIGHT = 760, 190, 80  # names stand on the left of the scale, values on the right
ROW, HEAD, FOOT = 24, 40, 34  # heights of a panel's rows, of its title, and of its scale
LONGEST_NAME = 24  # characters
CHANNEL_COLOUR, EQUAL_COLOUR, NAMED_COLOUR = "#7a7a7a", "#0072b2", "#d55e00"


class _Row(NamedTuple):
    name: str
    mean: float
    low: float
    high: float


def comparison_svg(report: EvaluationReport) -> str:
    """The picture as SVG: a panel for each measure, in it a row for each channel and fusion."""
    first = next(iter(report.measured.values())).evaluation
    panels = {
        f"nDCG@{first.k}": "ndcg",
        f"recall@{first.recall_k}": "recall",
        "MRR": "reciprocal_rank",
        "MAP": "average_precision",
    }
    height = HEAD + len(panels) * (HEAD + ROW * len(report.measured) + FOOT)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(
            16, 26, f"{report.collection}: {len(first.queries)} queries, means with 95 % intervals", size=15
        ),
    ]
    for place, (title, field) in enumerate(panels.items()):
        top = HEAD + place * (HEAD + ROW * len(report.measured) + FOOT)
        lines += _panel(top, title, [*_rows(report, field)])
    return "\n".join([*lines, "</svg>", ""])


def _rows(report: EvaluationReport, field: str) -> Iterator[_Row]:
    for name, measured in report.measured.items():
        values = [getattr(each, field) for each in measured.evaluation.queries.values()]
        yield _Row(name, sum(values) / len(values), *bootstrap_interval(values, resamples=2000))


def _panel(top: int, title: str, rows: list[_Row]) -> Iterator[str]:
    # Tenths, so that panels read alike; at least two, so that there is a scale.
    high = max(ceil(max(row.high for row in rows) * 10), 2)
    low = min(floor(min(row.low for row in rows) * 10), high - 2)
    yield _text(16, top + 28, title, weight="bold")
    bottom = top + HEAD + ROW * len(rows)
    step = (WIDTH - LEFT - RIGHT) / (high - low)
    for tick in range(low, high + 1):
        x = LEFT + (tick - low) * step
        yield f'<line x1="{x:.1f}" y1="{top + HEAD - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        yield _text(x, bottom + 16, f"{tick / 10:.1f}", anchor="middle", size=11)
    for place, row in enumerate(rows):
        x1, x, x2 = (LEFT + (value * 10 - low) * step for value in (row.low, row.mean, row.high))
        yield from _row(row, top + HEAD + ROW * place + ROW // 2, x1, x, x2)


def _row(row: _Row, y: int, x1: float, x: float, x2: float) -> Iterator[str]:
    colour = CHANNEL_COLOUR if row.name in CHANNELS else EQUAL_COLOUR if row.name == EQUAL else NAMED_COLOUR
    name = row.name if len(row.name) <= LONGEST_NAME else f"{row.name[: LONGEST_NAME - 1]}…"
    yield _text(LEFT - 14, y + 4, name, anchor="end")
    yield f'<line x1="{x1:.1f}" y1="{y}" x2="{x2:.1f}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
    yield f'<circle cx="{x:.1f}" cy="{y}" r="4.5" fill="{colour}"/>'
    yield _text(WIDTH - RIGHT + 14, y + 4, f"{row.mean:.4f}")


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
        f' fill="#222222">{escape(text)}</text>'
    )
