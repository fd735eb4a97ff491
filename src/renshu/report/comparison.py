"""compare.html: arms side by side on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from renshu.evaluation.words import p_value, points
from renshu.report.charts import Bar, interval_chart
from renshu.report.data import bars
from renshu.report.pages import write_page


def build_comparison(compared: Mapping[str, Any], path: Path) -> Path:
    """Write what `compare_targets` found as a page and return its path."""
    differing = difference_bars(compared["arms"])
    low = min((bar.low for bar in differing), default=0.0)
    high = max((bar.high for bar in differing), default=0.0)
    return write_page(
        path,
        "compare.html.jinja",
        compared=compared,
        first=compared["arms"][0]["arm"],
        success=interval_chart(bars(compared["arms"])),
        difference=interval_chart(differing, min(low, 0.0), max(high, 0.0), points, points, colour=1),
    )


def difference_bars(arms: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """How the arms differ from the first, those that can be compared with it, as rows of a chart."""
    return [
        Bar(arm["arm"], pair["difference"], pair["low"], pair["high"], p_value(pair["p_holm"]))
        for arm in arms
        if (pair := arm["against"]) is not None and pair["difference"] is not None
    ]
