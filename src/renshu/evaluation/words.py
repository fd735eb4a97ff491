"""Numbers as they are read; what is unknown is a dash, never 0."""

from __future__ import annotations

UNKNOWN = "–"


def rate(share: float | None) -> str:
    """`41.3 %`."""
    return UNKNOWN if share is None else f"{share:.1%}".replace("%", " %")


def spread(low: float | None, high: float | None) -> str:
    """`36.0 to 47.1 %`."""
    return UNKNOWN if low is None or high is None else f"{100 * low:.1f} to {rate(high)}"


def points(share: float | None) -> str:
    """`12.3` of 0.123, `8` of 0.08: percentage points."""
    if share is None:
        return UNKNOWN
    text = f"{100 * share:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def p_value(p: float | None) -> str:
    """`p < 0.001`, `p = 0.012`."""
    return UNKNOWN if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def cost(dollars: float | None) -> str:
    """`$1.20`; three significant digits below a dollar."""
    return UNKNOWN if dollars is None else f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.3g}"
