"""Small charts as inline SVG: no script, no request, readable on paper. Colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A named line. points: (x, y), in order of x. dots: draw the points too."""

    name: str
    points: Sequence[Point]
    dots: bool = False


@dataclass(frozen=True)
class Bar:
    """One row of an interval chart, in the unit of the axis (0 to 1)."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def ticks(low: float, high: float, about: int = 5, *, least: float = 0.0) -> list[float]:
    """Round numbers that cover [low, high], about so many of them, at least `least` apart."""
    if high <= low:
        high = low + 1.0
    rough = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = magnitude * next(factor for factor in (1, 2, 5, 10) if factor * magnitude >= rough * 0.999)
    step = max(step, least)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def line_chart(series: Sequence[Series], *, x_label: str, y_label: str, y_from_zero: bool = True) -> Markup:
    """Lines over a common x axis of whole numbers, with a legend. Points that are not finite are left out."""
    kept = [Series(s.name, [p for p in s.points if all(map(math.isfinite, p))], s.dots) for s in series]
    kept = [s for s in kept if s.points]
    if not kept:
        return Markup('<p class="empty">no data</p>')
    xs = [x for s in kept for x, _ in s.points]
    ys = [y for s in kept for _, y in s.points] + ([0.0] if y_from_zero else [])
    x_ticks, y_ticks = ticks(min(xs), max(xs), 8, least=1.0), ticks(min(ys), max(ys))
    x_scale = _Scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    y_scale = _Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x_ticks, y_ticks, x_scale, y_scale, y_label), _x_label(x_label)]
    for i, s in enumerate(kept):
        path = " ".join(f"{x_scale(x)},{y_scale(y)}" for x, y in s.points)
        parts.append(f'<polyline class="line c{i % 8}" points="{path}"/>')
        if s.dots or len(s.points) == 1:
            parts += [_dot(x_scale(x), y_scale(y), i, f"{s.name}: {y:.3g} at {x:g}") for x, y in s.points]
    return _svg(parts, HEIGHT) + _legend([s.name for s in kept])


def interval_chart(
    bars: Sequence[Bar],
    low: float = 0.0,
    high: float = 1.0,
    said: Callable[[float], str] = "{:.1%}".format,
    axis: Callable[[float], str] = "{:.0%}".format,
    colour: int = 0,
) -> Markup:
    """One row for each arm: the estimate with its interval on a common axis from `low` to `high`.

    said: a value in words; axis: one of the axis. colour: of the first row; the others follow.
    """
    left, row = min(300, max(150, 20 + 7 * max((len(bar.name) for bar in bars), default=0))), 30
    height = row * len(bars) + BOTTOM
    marks = ticks(low, high)
    scale = _Scale(marks[0], marks[-1], left, WIDTH - 110)
    parts = []
    for tick in marks:
        x = scale(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="4" y2="{height - BOTTOM}"/>')
        parts.append(_text(x, height - BOTTOM + 16, axis(tick)))
    for i, bar in enumerate(bars):
        y, c = row * i + row // 2, (colour + i) % 8
        ends = f'x1="{scale(bar.low)}" x2="{scale(bar.high)}"'
        parts.append(_text(left - 10, y + 4, bar.name, "end", "label"))
        parts.append(f'<line class="bar c{c}" {ends} y1="{y}" y2="{y}"/>')
        if math.isfinite(bar.value):
            title = f"{bar.name}: {said(bar.value)}, 95 % interval {said(bar.low)} to {said(bar.high)}"
            parts.append(_dot(scale(bar.value), y, c, title))
        parts.append(_text(WIDTH - 100, y + 4, bar.note, "start"))
    return _svg(parts, height)


def stacked_chart(
    columns: Sequence[tuple[float, Mapping[str, float]]], names: Sequence[str], *, x_label: str
) -> Markup:
    """Shares (0 to 1) of `names` in each column, stacked; columns are (x, shares) in order of x."""
    if not columns:
        return Markup('<p class="empty">no data</p>')
    scale = _Scale(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    room = (WIDTH - RIGHT - LEFT) / len(columns)
    every = math.ceil(len(columns) / 10)  # so that the numbers below do not overlap
    parts = [_text(LEFT - 6, scale(tick) + 4, f"{tick:.0%}", "end") for tick in ticks(0, 1)]
    for column, (x, shares) in enumerate(columns):
        start, level = LEFT + column * room, 0.0
        for i, name in enumerate(names):
            share = shares.get(name, 0.0)
            if share > 0:
                title = f"{name}: {share:.0%} at {x:g}"
                parts.append(_box(start, scale(level + share), room - 1, scale(level), i, title))
                level += share
        if column % every == 0:
            parts.append(_text(start + room / 2, HEIGHT - BOTTOM + 16, f"{x:g}"))
    parts.append(_x_label(x_label))
    return _svg(parts, HEIGHT) + _legend(names)


def _axes(
    x_ticks: Sequence[float], y_ticks: Sequence[float], x_scale: _Scale, y_scale: _Scale, y_label: str
) -> list[str]:
    parts = []
    for tick in y_ticks:
        y = y_scale(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", "end"))
    parts += [_text(x_scale(tick), HEIGHT - BOTTOM + 16, f"{tick:g}") for tick in x_ticks]
    turned = f"translate(12 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)"
    parts.append(f'<g transform="{turned}">{_text(0, 0, y_label, css="label")}</g>')
    return parts


def _text(x: float, y: float, text: str, anchor: str = "middle", css: str = "tick") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x_label(text: str) -> str:
    return _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, text, css="label")


def _box(x: float, top: float, width: float, bottom: float, colour: int, title: str) -> str:
    size = f'width="{max(width, 0.5):.1f}" height="{bottom - top:.1f}"'
    title = f"<title>{escape(title)}</title>"
    return f'<rect class="fill c{colour % 8}" x="{x:.1f}" y="{top}" {size}>{title}</rect>'


def _dot(x: float, y: float, colour: int, title: str) -> str:
    title = f"<title>{escape(title)}</title>"
    return f'<circle class="dot c{colour % 8}" cx="{x}" cy="{y}" r="4">{title}</circle>'


def _legend(names: Sequence[str]) -> Markup:
    items = (f'<li><span class="key c{i % 8}"></span>{escape(name)}</li>' for i, name in enumerate(names))
    return Markup(f'<ul class="legend">{"".join(items)}</ul>')


def _svg(parts: Sequence[str], height: int) -> Markup:
    return Markup(f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>')
