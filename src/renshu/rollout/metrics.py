"""What a step's rollouts were like, measured on all of them: before masking, filtering or any advantage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from renshu.algorithms.advantages import spread
from renshu.rewards import cause_of
from renshu.types import Group, Scored, Stop, Trajectory, Unscored, row_of


def why_untrained(group: Group, *, compared: bool = True) -> str | None:
    """Why a group teaches nothing, or None if it does.

    compared: rollouts learn from each other; else each that is scored teaches by itself.
    `missing_logprobs`, `equal_rewards`, `single_rollout`, or the most frequent cause of its unscored rollouts
    (`judge_failed`, `infrastructure`, …) if fewer than two are scored.
    """
    scored = [t for t in group.trajectories if isinstance(t.score, Scored)]
    if not compared and scored:
        return None
    if len(scored) < 2:
        causes = Counter(cause_of(t.score) for t in group.trajectories if isinstance(t.score, Unscored))
        return causes.most_common(1)[0][0] if causes else "single_rollout"
    if any(row_of(path).logprobs is None for t in scored for path in t.paths):
        return "missing_logprobs"
    return None if spread(_rewards(group)) else "equal_rewards"


def rollout_metrics(groups: Sequence[Group], *, compared: bool = True) -> dict[str, float]:
    """Numbers of one step by name. A mean over nothing is left out rather than called zero.

    compared: see `why_untrained`.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    if not trajectories:
        return {}
    scores = [t.score for t in trajectories]
    scored = [score for score in scores if isinstance(score, Scored)]
    causes = Counter(cause_of(score) for score in scores if isinstance(score, Unscored))
    verdicts = Counter(why_untrained(group, compared=compared) for group in groups)
    return {
        "rollouts": len(trajectories),
        "unscored": len(trajectories) - len(scored),
        **{f"unscored/{cause}": count for cause, count in sorted(causes.items())},
        "groups": len(groups),
        "groups/trained": verdicts.pop(None, 0),
        **{f"groups/{reason}": count for reason, count in sorted(verdicts.items(), key=str)},
        "groups/spread": fmean(spread(_rewards(group)) > 0 for group in groups),
        "duplicates": fmean(duplicate for group in groups for duplicate in _duplicates(group)),
        **_score_metrics(scored),
        **{f"stop/{stop}": fmean(t.stop is stop for t in trajectories) for stop in Stop},
        **_count_metrics(trajectories),
        **length_metrics(trajectories),
    }


def length_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Sampled tokens of an episode; those cut at the limit count in full, and their share is `clipped`."""
    lengths = [t.sampled_tokens for t in trajectories]
    return {
        "tokens/mean": fmean(lengths),
        "tokens/min": min(lengths),
        "tokens/max": max(lengths),
        "tokens/clipped": fmean(t.stop is Stop.LENGTH for t in trajectories),
    }


def tool_sequences(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """How often each sequence of tools was called: `calendar > search > book`; "" where none was."""
    return Counter(
        " > ".join(call.name for message in t.messages for call in message.tool_calls) for t in trajectories
    )


def _score_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    if not scored:
        return {}
    values = [score.value for score in scored]
    metrics = {"reward": fmean(values), "reward/std": pstdev(values)}
    successes = [score.success for score in scored if score.success is not None]
    if successes:
        metrics["success"] = fmean(successes)
    for name in dict.fromkeys(name for score in scored for name in score.parts):
        known = [value for score in scored if (value := score.parts.get(name)) is not None]
        if known:
            metrics[f"reward/{name}"] = fmean(known)
    return metrics


def _count_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    names = dict.fromkeys(name for t in trajectories for name in t.counts)
    return {f"{name}/mean": fmean(t.counts.get(name, 0) for t in trajectories) for name in names}


def _rewards(group: Group) -> list[float]:
    return [t.score.value for t in group.trajectories if isinstance(t.score, Scored)]


def _duplicates(group: Group) -> list[bool]:
    """For each rollout, whether the model wrote exactly what it wrote in an earlier one of the group."""
    written = [tuple(s.ids for path in t.paths for s in path if s.sampled) for t in group.trajectories]
    return [ids in written[:i] for i, ids in enumerate(written)]
