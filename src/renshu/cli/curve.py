"""A curve made of block characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], *, width: int, height: int, top: float) -> list[str]:
    """`height` lines of columns from 0 to `top`, the last `width` values, one column each."""
    eighths = [round(max(0.0, min(1.0, value / top)) * height * 8) for value in values[-width:]]
    rows = range(height - 1, -1, -1)
    return ["".join(BLOCKS[max(0, min(8, level - 8 * row))] for level in eighths) for row in rows]
