"""Line charts of the planned learning rate: braille dots for the terminal, SVG for a file. Used by `kubectl deepseek lr`.

SVG, since it needs no library and every browser, chat and document shows it. Pure: returns text.
"""

import itertools
from html import escape

from rich.text import Text

from .curves import Plan

COLOURS = ("cyan", "magenta", "yellow", "green")
SVG_COLOURS = ("#0e7490", "#a21caf", "#a16207", "#15803d")
_DOT_COLUMNS, _DOT_ROWS = 2, 4
_BRAILLE = 0x2800
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_MARGIN = 10
"""Columns left of the chart, for the numbers."""


def terminal(plan: Plan, columns: int, rows: int) -> Text:
    """`columns` by `rows` characters of dots, with axes. Where two series meet, the first one's colour is seen."""
    wide, high = columns * _DOT_COLUMNS, rows * _DOT_ROWS
    top, last = _top(plan), max(2, plan.steps[-1])
    cells: dict[tuple[int, int], int] = {}
    colour: dict[tuple[int, int], str] = {}
    for number, series in enumerate(plan.series):
        points = [
            (round((step - 1) / (last - 1) * (wide - 1)), round((1 - value / top) * (high - 1)))
            for step, value in zip(plan.steps, series.values, strict=True)
        ]
        for x, y in _joined(points):
            cell = (y // _DOT_ROWS, x // _DOT_COLUMNS)
            cells[cell] = cells.get(cell, 0) | _BITS[y % _DOT_ROWS][x % _DOT_COLUMNS]
            colour.setdefault(cell, COLOURS[number % len(COLOURS)])
    text = Text()
    for row in range(rows):
        value_here = {0: f"{top:.2e}", rows // 2: f"{top / 2:.2e}", rows - 1: "0"}.get(row, "")
        text.append(f"{value_here:>{_MARGIN - 1}} ", "dim").append("│", "dim")
        for column in range(columns):
            text.append(
                chr(_BRAILLE + cells[row, column]) if (row, column) in cells else " ", colour.get((row, column))
            )
        text.append("\n")
    text.append(" " * _MARGIN + "└" + "─" * columns + "\n", "dim")
    middle, end = f"{(1 + last) // 2:,}", f"{last:,}"
    axis = "1".ljust(columns // 2) + middle
    text.append(" " * (_MARGIN + 1) + axis.ljust(columns - len(end)) + end + "  step\n", "dim")
    for number, series in enumerate(plan.series):
        text.append(" " * (_MARGIN + 1) + "━━ ", COLOURS[number % len(COLOURS)]).append(series.label + "\n")
    return text


def svg(plan: Plan, width: int = 720, height: int = 360) -> str:
    left, right, above, below = 70, 20, 40, 40 + 18 * len(plan.series)
    top, last = _top(plan), max(2, plan.steps[-1])

    def x(step: int) -> float:
        return left + (step - 1) / (last - 1) * (width - left - right)

    def y(value: float) -> float:
        return above + (1 - value / top) * (height - above - below)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="24" font-size="14">{escape(plan.title)}</text>',
    ]
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = f"{y(top * part):.1f}"
        parts.append(f'<path d="M{left} {at}H{width - right}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{at}" text-anchor="end" dy="4">{top * part:.2e}</text>')
        step = 1 + round(part * (last - 1))
        parts.append(f'<text x="{x(step):.1f}" y="{height - below + 18}" text-anchor="middle">{step:,}</text>')
    for number, series in enumerate(plan.series):
        line = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in zip(plan.steps, series.values, strict=True))
        colour, below_axis = SVG_COLOURS[number % len(SVG_COLOURS)], height - below + 40 + 18 * number
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{left}" y="{below_axis}" fill="{colour}">{escape(series.label)}</text>')
    return "\n".join((*parts, "</svg>\n"))


def _top(plan: Plan) -> float:
    return max((value for series in plan.series for value in series.values), default=0.0) or 1.0


def _joined(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points with the gaps between neighbours filled."""
    dots = points[:1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        count = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots += [
            (round(x0 + (x1 - x0) * part / count), round(y0 + (y1 - y0) * part / count)) for part in range(1, count + 1)
        ]
    return dots
