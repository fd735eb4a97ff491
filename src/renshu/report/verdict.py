"""The verdict of a run in one honest sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from renshu.evaluation.words import p_value


def verdict(summary: Mapping[str, Any]) -> str:
    """What training did to success on held-out tasks, with n, interval and paired test."""
    if "unfinished" in summary:
        return str(summary["unfinished"])
    (benchmark, result), *_ = summary["evaluation"].items()
    arms = {arm["arm"]: arm for arm in result["arms"]}
    final, base = arms["final"], arms.get("base")
    if not final["n"] + final["unscored"]:
        return "No verdict: no held-out task was measured with the weights that were kept."
    if final["success"] is None:
        return f"No verdict: none of the {final['unscored']} episodes on {benchmark} could be scored."
    now = (
        f"{final['success']:.0%} of {final['n']} held-out {benchmark} tasks "
        f"(95 % interval {final['low']:.0%} to {final['high']:.0%})"
    )
    if base is None or base["success"] is None:
        return f"The agent solves {now}."
    if final["p_vs_base"] is None or final["p_vs_base"] >= 0.05:
        return f"No proven gain: the agent solves {now}, {base['success']:.0%} before training ({_p(final)})."
    word = "Training paid" if final["success"] > base["success"] else "Training did harm"
    return f"{word}: the agent solves {now}, {base['success']:.0%} before training ({_p(final)})."


def tokens_sentence(summary: Mapping[str, Any]) -> str:
    """How many tokens were computed, of those that a trainer computes that repeats every shared prefix."""
    computed, naive = summary["tokens"]["computed"], summary["tokens"]["naive"]
    if computed >= naive:
        return (
            f"{computed:,} tokens were computed for {naive:,}: this model shares nothing and pads its rows."
        )
    share = f"{computed:,} of {naive:,} tokens were computed ({computed / naive:.0%})"
    return f"{share}; the others were shared prefixes."


def _p(arm: Mapping[str, Any]) -> str:
    return "unpaired" if arm["p_vs_base"] is None else p_value(arm["p_vs_base"])
