"""Comparisons as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from renshu.evaluation.words import UNKNOWN, cost, p_value, points, rate, spread


def show_comparison(found: Mapping[str, Any]) -> None:
    """Print what `compare_targets` found: success and differences, tries, tokens, settings, verdict."""
    console = Console()
    arms = found["arms"]
    title = f"{found['environment']}: {found['tasks']} {found['split']} tasks, greedy"
    if len(arms) > 1:
        title += f"; points and p against {arms[0]['arm']}"
    _table(
        console,
        title,
        ("arm", "success", "95 %", "n", "points", "95 %", "p"),
        [_success(arm) for arm in arms],
    )
    if found["samples"]:
        k, temperature = found["samples"]["k"], found["samples"]["temperature"]
        tried = ("arm", "one try", f"pass^{k}", "95 %", f"pass@{k}", "distinct", "n")
        rows = [_samples(arm) for arm in arms]
        _table(console, f"{k} tries of every task, temperature {temperature:g}", tried, rows)
    _table(console, "means of a task", *_spending(arms))
    if found["settings"]:
        runs = list(found["settings"][0]["values"])
        rows = [(row["key"], *(_value(row["values"][run]) for run in runs)) for row in found["settings"]]
        _table(console, "settings that differ", ("key", *runs), rows)
    for sentence in found["verdicts"]:
        console.print(sentence, style="bold", highlight=False, markup=False, soft_wrap=True)
    _notes(console, found["notes"])


def show_repeated(found: Mapping[str, Any]) -> None:
    """Print what `repeat_task` found."""
    console = Console()
    console.print(f"{found['task']}: {found['request']}", highlight=False, markup=False, soft_wrap=True)
    heads = ("arm", "success", "95 %", "n", "distinct answers", "commonest", "share")
    rows = [
        (
            arm["arm"],
            rate(arm["success"]),
            spread(arm["low"], arm["high"]),
            _count(arm),
            f"{arm['distinct']} of {found['times'] - arm['unanswered']}",
            _value(arm["commonest"]),
            rate(arm["share"]),
        )
        for arm in found["arms"]
    ]
    _table(console, f"asked {found['times']} times, temperature {found['temperature']:g}", heads, rows)
    _notes(console, found["notes"])


def _success(arm: Mapping[str, Any]) -> tuple[str, ...]:
    pair = arm["against"]
    compared = ("", "", "")
    if pair is not None:
        interval = f"{points(pair['low'])} to {points(pair['high'])}" if pair["n"] else UNKNOWN
        compared = points(pair["difference"]), interval, p_value(pair["p_holm"])
    return arm["arm"], rate(arm["success"]), spread(arm["low"], arm["high"]), _count(arm), *compared


def _samples(arm: Mapping[str, Any]) -> tuple[str, ...]:
    told = arm.get("samples")
    if told is None or not told["n"]:
        return arm["arm"], *[UNKNOWN] * 5, "0" if told is None else _count(told)
    rates = rate(told["pass_hat"][0]), rate(told["pass_hat"][-1]), spread(told["low"], told["high"])
    return arm["arm"], *rates, rate(told["pass_at"][-1]), rate(told["distinct"]), _count(told)


def _spending(arms: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of what a task takes; columns of which nothing is known are left out."""
    columns = {
        "arm": [arm["arm"] for arm in arms],
        "prompt tokens": [_tokens(arm, "prompt", 0) for arm in arms],
        "of these cached": [_tokens(arm, "cached", 0) for arm in arms],
        "sampled tokens": [_tokens(arm, "sampled", 1) for arm in arms],
        "seconds": [UNKNOWN if arm["seconds"] is None else f"{arm['seconds']:.2f}" for arm in arms],
        "cost of 1,000 tasks": [cost(arm["cost_per_1000"]) for arm in arms],
    }
    always = ("arm", "prompt tokens", "sampled tokens")
    shown = {k: cells for k, cells in columns.items() if k in always or set(cells) != {UNKNOWN}}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def _tokens(arm: Mapping[str, Any], kind: str, digits: int) -> str:
    count = None if arm["tokens"] is None else arm["tokens"].get(kind)
    return UNKNOWN if count is None else f"{count:,.{digits}f}"


def _count(arm: Mapping[str, Any]) -> str:
    """`300`, or `297 + 3 unscored`."""
    return f"{arm['n']} + {arm['unscored']} unscored" if arm["unscored"] else str(arm["n"])


def _value(value: Any) -> str:
    if isinstance(value, dict):  # a section of settings that another run lacks
        return ", ".join(f"{key}: {part}" for key, part in value.items()) or "defaults"
    return UNKNOWN if value is None else str(value)


def _table(console: Console, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console.print(title, style="italic", highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # text, so that nothing in it is read as markup
    console.print(table)
    console.print()


def _notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"! {note}", highlight=False, markup=False, soft_wrap=True)
