"""The card of a packed run: what it is, how it was trained, what was measured, what it is not good for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LICENCES = {"embedded": "Apache-2.0 (Renshu's embedded model)", "smollm2-135m": "Apache-2.0 (SmolLM2)"}


def card(
    summary: Mapping[str, Any], recipe: Mapping[str, Any], provenance: Mapping[str, Any], kind: str
) -> str:
    """Markdown. kind: what the weights are, `all weights` or `an adapter`."""
    name = f"{summary['recipe']}-{summary['seed']}"
    base = str(recipe["model"]["name"])
    licence = LICENCES.get(base, "named on its own card: look there before you share")
    (benchmark, result), *_ = summary["evaluation"].items()
    return "\n".join(
        [
            f"# {name}",
            "",
            f"An agent trained with Renshu {provenance['renshu']} for the environment `{recipe['env']}`.",
            "",
            "| | |",
            "| --- | --- |",
            f"| base model | `{base}`, {provenance['parameters']:,} parameters |",
            f"| weights here | {kind}, {provenance['trainable']:,} trained parameters, safetensors |",
            f"| licence of the base | {licence} |",
            f"| seed | {summary['seed']} |",
            f"| trained on | {provenance['machine']}, {provenance['threads']} threads |",
            f"| time | {summary['seconds']:,.0f} seconds with evaluation |",
            "",
            "## How it was trained",
            "",
            *_stages(summary),
            "",
            "Every setting is in `recipe.resolved.yaml`, every version in `lock.txt`.",
            "",
            "## Results",
            "",
            f"Greedy, on held-out tasks of {benchmark}. Intervals are Wilson's, 95 %; p is McNemar's exact",
            "paired test against the base model.",
            "",
            "| arm | success | 95 % interval | tasks | unscored | p |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_row(arm) for arm in result["arms"]),
            "",
            "## Limits",
            "",
            "- Measured on this environment's tasks only; nothing is known about others.",
            "- It acts on what its tools and users say: give it no tool whose misuse you cannot bear.",
            "- The reward it was trained on is not success; `report.html` shows both.",
            "",
            "## Use",
            "",
            "```",
            f"renshu reproduce {name}.renshu.zip --out {name} --unpack   # then, for instance:",
            f"renshu serve {name}",
            f"renshu reproduce {name}.renshu.zip                # trains it again, and compares",
            "```",
            "",
        ]
    )


def _stages(summary: Mapping[str, Any]) -> list[str]:
    return [
        f"{number}. {stage['name']}: {stage['algorithm']}, {stage['steps']} steps"
        for number, stage in enumerate(summary["stages"], start=1)
    ]


def _row(arm: Mapping[str, Any]) -> str:
    if arm["success"] is None:
        return f"| {arm['arm']} | unknown | – | {arm['n']} | {arm['unscored']} | – |"
    p = "–" if arm.get("p_vs_base") is None else f"{arm['p_vs_base']:.3g}"
    interval = f"{arm['low']:.1%} to {arm['high']:.1%}"
    return f"| {arm['arm']} | {arm['success']:.1%} | {interval} | {arm['n']} | {arm['unscored']} | {p} |"
