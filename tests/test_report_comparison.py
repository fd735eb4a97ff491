"""The page of a comparison shows what is known, and no column of dashes."""

import re

import pytest

from renshu.cli.tables import show_comparison
from renshu.report.comparison import build_comparison

PAIR = {
    "n": 10,
    "difference": 0.9,
    "low": 0.7,
    "high": 0.95,
    "gained": 9,
    "lost": 0,
    "p": 0.004,
    "p_holm": 0.004,
}
TOKENS = {"prompt": 200.0, "sampled": 20.0, "sampled_low": 18.0, "sampled_high": 22.0}


def compared(seconds, cost):
    both = {"n": 10, "unscored": 0, "reward": 0.5, "tokens": TOKENS, "samples": None}
    both |= {"seconds": seconds, "cost_per_1000": cost}
    base = {"arm": "base", "success": 0.0, "low": 0.0, "high": 0.28, "against": None} | both
    final = {"arm": "final", "success": 0.9, "low": 0.6, "high": 0.98, "against": PAIR} | both
    told = {"environment": "Clerk", "split": "test", "max_tokens": 9, "seed": 0, "tasks": 10}
    return told | {"samples": None, "verdicts": [], "notes": [], "settings": [], "arms": [base, final]}


@pytest.mark.parametrize(
    ("seconds", "cost", "title", "heads"),
    [
        (None, None, "Tokens", ["prompt tokens", "sampled tokens", "95 % interval"]),
        (0.5, None, "Tokens", ["prompt tokens", "sampled tokens", "95 % interval", "seconds"]),
        (
            0.5,
            1.5,
            "Tokens and cost",
            ["prompt tokens", "sampled tokens", "95 % interval", "seconds", "cost of 1,000 tasks"],
        ),
    ],
)
def test_columns_are_those_that_hold_something(tmp_path, seconds, cost, title, heads):
    page = build_comparison(compared(seconds, cost), tmp_path / "c.html").read_text("utf-8")
    _, spent = page.split(f"<h2>{title}</h2>")
    found = re.findall("<th>(.*?)</th>", spent)
    assert found == ["arm", *heads]
    assert spent.count("<td>") == 2 * len(found)


@pytest.mark.parametrize("cost", [None, 1.5])
def test_the_terminal_tells_a_cost_only_where_there_is_a_price(capsys, cost):
    show_comparison(compared(0.5, cost))
    assert ("cost of 1,000 tasks" in capsys.readouterr().out) is (cost is not None)


def test_differences_are_points_on_the_axis_too(tmp_path):
    page = build_comparison(compared(None, None), tmp_path / "c.html").read_text("utf-8")
    success, difference = re.findall("<svg.*?</svg>", page, flags=re.S)
    assert re.findall('class="tick"[^>]*>(.*?)<', success)[:3] == ["0%", "20%", "40%"]
    assert re.findall('class="tick"[^>]*>(.*?)<', difference)[:3] == ["0", "20", "40"]
