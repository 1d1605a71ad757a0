"""Renders plots as inline SVG: lines over time, and bars. Pure. The module escapes names. The page's style sheet
defines the colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from offsetmgr.core.document import moment

Point = tuple[int, float]
"""A time in milliseconds since 1970, and a value."""

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 30
_STEPS: Final = 4
_SHOW_SECONDS_BELOW_MS: Final = 600_000
"""Labels show seconds if the plot's time span (ms) is shorter than this."""


def tick_size(minimum: float) -> float:
    """Returns the smallest round number (1, 2, 2.5 or 5 times a power of ten) that is at least ``minimum``; 1 for 0."""
    if minimum <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= minimum * (1 - 1e-9))


def short(value: float) -> str:
    """Formats a number for an axis: ``950``, ``1.2k``, ``3M``."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def lines(series: Mapping[str, Sequence[Point]], title: str) -> str:
    """Renders one line for each name, at most `COLOURS` lines. The vertical axis goes from 0 to a round number. If
    there are no points, a sentence replaces the plot."""
    points = [point for line in series.values() for point in line]
    if not points:
        return f'<p class="none">{escape(title)}: nothing to show.</p>'
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    step = tick_size(max(value for _, value in points) / _STEPS)
    top = step * _STEPS
    span = (last - first) or 1

    def x(at: int) -> float:
        return _LEFT + (at - first) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">']
    for number in range(_STEPS + 1):
        value = step * number
        parts.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for at, anchor in ((first, "start"), (last, "end")) if last > first else ((first, "start"),):
        text = moment(at, seconds=span < _SHOW_SECONDS_BELOW_MS)
        parts.append(f'<text x="{x(at):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{text}</text>')
    legend = []
    for number, (name, line) in enumerate(series.items()):
        path = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in line)
        if len(line) == 1:
            parts.append(f'<circle class="c{number}" cx="{x(line[0][0]):.1f}" cy="{y(line[0][1]):.1f}" r="3"/>')
        elif path:
            parts.append(f'<path class="line c{number}" d="M{path}"/>')
        legend.append(f'<li class="c{number}">{escape(name)}</li>')
    return "".join([*parts, f'</svg><ul class="legend">{"".join(legend)}</ul>'])


def bars(values: Sequence[tuple[str, float]], title: str) -> str:
    """Renders one bar for each name, with its value as text."""
    if not values:
        return f'<p class="none">{escape(title)}: nothing to show.</p>'
    top = max(value for _, value in values) or 1.0
    rows = "".join(
        f'<tr><th class="name">{escape(name)}</th><td class="bar"><svg viewBox="0 0 100 8" preserveAspectRatio="none" '
        f'aria-hidden="true"><rect class="c0" width="{100 * value / top:.2f}" height="8"/></svg></td>'
        f'<td class="number">{value:,.0f}</td></tr>'
        for name, value in values
    )
    return f'<table class="bars" aria-label="{escape(title, quote=True)}">{rows}</table>'
