"""Reward and success: do they tell good from bad, and do they agree?"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from renshu.check.findings import Finding, found
from renshu.check.plays import Play, Stage, cheap_policies, saying
from renshu.check.wording import Told, calls_of
from renshu.types import Scored, Unscored

CLOSE = 1e-9
THOUGHTLESS = ("idle", "echo", "ramble")
EVERY_WORD = "every word"  # of those that rewards look for: may be asked for, so that it weighs less
DOES = {"echo": "the prompt said back", "ramble": "words without content"}
KNOWING = ("gold", "hurried", "answer")  # policies that know the solution; all other plays are cheap


@dataclass(frozen=True)
class PolicyLine:
    """What one scripted policy earned: episodes scored, share of successes (None: not defined), rewards."""

    policy: str
    episodes: int
    unscored: int
    success: float | None
    lowest: float | None
    mean: float | None
    highest: float | None


def distribution(plays: Sequence[Play]) -> list[PolicyLine]:
    """One line a policy, in the order in which they were played."""
    lines = []
    for policy in dict.fromkeys(play.policy for play in plays):
        own = [play for play in plays if play.policy == policy]
        scores = [play.score for play in own if play.score is not None]
        values = [score.value for score in scores]
        known = [score.success for score in scores if score.success is not None]
        summary: tuple[Any, ...] = (min(values), fmean(values), max(values)) if values else (None,) * 3
        lines.append(
            PolicyLine(policy, len(own), len(own) - len(scores), fmean(known) if known else None, *summary)
        )
    return lines


def play_cheap(stage: Stage, told: Sequence[Told], gold: Sequence[Play], words: Sequence[str]) -> list[Play]:
    """The cheap policies on the tasks, the gold's own call (of the same task) repeated among them.

    words: what rewards look for; a policy says all of it.
    """
    by_task = {play.task.id: play for play in gold}
    plays = []
    for one in told:
        own = by_task.get(one.task.id)
        calls = calls_of(own.trajectory) if own is not None and own.trajectory is not None else []
        policies = dict(cheap_policies(one.opening, one.task, calls[0] if calls else None))
        if len(words) > 1:
            policies[EVERY_WORD] = saying((), " ".join(words))
        for name, script in policies.items():
            play = stage.play(name, "train", one.task, script)
            plays += [play] if play is not None else []
    return plays


def check_failures(plays: Sequence[Play]) -> Iterator[Finding]:
    """Episodes of any policy that the environment could not play or score."""
    for play in plays:
        where = f"policy {play.policy}, task {play.task.id}"
        if play.failure:
            code, _, detail = play.failure.partition(": ")
            yield found(code, where, detail)
        elif play.trajectory is not None and isinstance(play.trajectory.score, Unscored):
            yield from _unscored(play.trajectory.score.reason, where)


def _unscored(reason: str, where: str) -> Iterator[Finding]:
    cause = reason.partition(":")[0]
    if "non-finite" in reason:
        yield found("reward_nan", where, reason)
    elif "not a number" in reason or "neither True nor False" in reason:
        yield found("reward_not_a_number", where, reason)
    elif cause in ("reward_failed", "judge_failed"):
        yield found("reward_raises", where, reason)
    elif cause == "success_failed":
        yield found("success_raises", where, reason)


def check_weights(stage: Stage) -> Iterator[Finding]:
    rubric = stage.environment().rubric()
    if rubric.deciding and all(part.weight == 0 for part in rubric.deciding):
        yield found("weights_zero", "rewards", "every part that decides has weight 0")
        return
    for part in rubric.parts:
        if part.weight == 0:
            yield found("weight_zero", f"reward {part.name}", "its weight is 0")


def check_agreement(stage: Stage, plays: Sequence[Play]) -> Iterator[Finding]:
    """An episode that earns the full outcome reward is a success, and the other way round."""
    weights = {part.name: part.weight for part in stage.environment().rubric().deciding}
    told: set[str] = set()
    for play in plays:
        share = _share(play.score, weights) if play.score is not None else None
        if play.score is None or play.score.success is None or share is None:
            continue
        code = _disagreement(play.score.success, share)
        if code and code not in told:
            told.add(code)
            verdict = "a success" if play.score.success else "no success"
            what = f"{verdict} that earns {share:.0%} of the outcome reward (parts {dict(play.score.parts)})"
            yield found(code, f"policy {play.policy}, task {play.task.id}", what)


def _share(score: Scored, weights: dict[str, float]) -> float | None:
    """The part of the full outcome reward that was earned; None where nothing could be."""
    applied = {name: value for name, value in score.parts.items() if value is not None and name in weights}
    full = sum(max(0.0, weights[name]) for name in applied)
    return sum(weights[name] * value for name, value in applied.items()) / full if full > 0 else None


def _disagreement(success: bool, share: float) -> str | None:
    if success and share <= CLOSE:
        return "success_unpaid"
    if not success and share >= 1 - CLOSE:
        return "failure_paid"
    return "success_below_full" if success and share < 1 - CLOSE else None


def check_range(stage: Stage, plays: Sequence[Play]) -> Iterator[Finding]:
    """Parts lie within 0..1 by convention, but for those that are only measured."""
    told = {part.name for part in stage.environment().rubric().parts if part.weight == 0}
    for play in plays:
        for name, value in (play.score.parts if play.score is not None else {}).items():
            if value is not None and not -CLOSE <= value <= 1 + CLOSE and name not in told:
                told.add(name)
                yield found("reward_out_of_range", f"reward {name}", f"{value:g} for policy {play.policy}")


def check_spread(stage: Stage, gold: Sequence[Play], cheap: Sequence[Play]) -> Iterator[Finding]:
    """The gold solution earns more than what takes no skill, on the same tasks."""
    cheap = [play for play in cheap if play.score is not None]  # of what fails nothing is known
    scored = [play.score for play in (*gold, *cheap) if play.score is not None]
    values = {round(score.value, 9) for score in scored}
    tells = bool(gold) or (bool(values) and values != {0.0})
    if cheap and len(scored) > 2 and len(values) == 1 and tells:
        policies = len({play.policy for play in (*gold, *cheap)})
        what = f"{len(scored)} episodes of {policies} policies all earn {min(values):g}"
        yield found("reward_constant", "rewards", what)
    verdicts = {score.success for score in scored if score.success is not None}
    if gold and cheap and len(scored) > 2 and len(verdicts) == 1:
        verdict = "a success" if verdicts == {True} else "no success"
        yield found("success_constant", "@success", f"every one of {len(scored)} episodes is {verdict}")
    if len(values) > 1:
        formats = {p.name for p in stage.environment().rubric().parts if p.kind == "format"}
        yield from _cheap_rewards(gold, cheap, formats)
        if not gold:
            yield from _costly_success(cheap)
    if len(verdicts) > 1:
        yield from _cheap_successes(cheap)


def _costly_success(cheap: Sequence[Play]) -> Iterator[Finding]:
    """Successes by luck that all earn less than an empty answer: there is no gold solution to ask."""
    idle = {p.task.id: p.score for p in cheap if p.policy == "idle" and p.score is not None}
    lucky = [p for p in cheap if p.score is not None and p.score.success]
    pairs = [(p, p.score.value, idle[p.task.id]) for p in lucky if p.score is not None and p.task.id in idle]
    if pairs and all(not failed.success and value < failed.value - CLOSE for _, value, failed in pairs):
        play, value, failed = max(pairs, key=lambda pair: pair[1])
        what = (
            f"a success ({play.policy}, {play.task.id}) earns {value:.2f}, an empty answer {failed.value:.2f}"
        )
        yield found("reward_inverted", "rewards", what, "warning")


def _cheap_rewards(
    gold: Sequence[Play], cheap: Sequence[Play], formats: Collection[str]
) -> Iterator[Finding]:
    full = {play.task.id: play.score.value for play in gold if play.score is not None}
    for policy in dict.fromkeys(play.policy for play in cheap):
        own = [p for p in cheap if p.policy == policy and p.score is not None and p.task.id in full]
        earned = [play.score.value for play in own if play.score is not None]
        if not earned:
            continue
        best = fmean(full[play.task.id] for play in own)
        mean = fmean(earned)
        what = f"{policy!r} earns {mean:.2f} on average, the gold solution {best:.2f}"
        if mean > best + CLOSE and policy == "idle":
            yield found("reward_inverted", "rewards", what)
        elif mean >= best - CLOSE or math.isclose(mean, best):
            yield found("reward_for_noise", "rewards", what, "warning" if policy == EVERY_WORD else None)
        elif policy == "echo" and all(_only(play.score, formats) for play in own):
            continue  # an example of the format stands in the prompt
        elif policy in THOUGHTLESS and mean > 0:
            yield found("reward_for_nothing", "rewards", what)


def _only(score: Scored | None, names: Collection[str]) -> bool:
    """Whether nothing but the named parts was earned."""
    return score is not None and all(not value or name in names for name, value in score.parts.items())


def _cheap_successes(cheap: Sequence[Play]) -> Iterator[Finding]:
    for policy in dict.fromkeys(play.policy for play in cheap):
        known = [p.score.success for p in cheap if p.policy == policy and p.score is not None]
        share = fmean(bool(success) for success in known) if known else 0.0
        if policy == "idle" and share > 0:
            yield found("idle_success", "@success", f"an empty answer passes {share:.0%} of the tasks")
        elif share > (0.2 if policy in THOUGHTLESS else 0.5):
            does = f" ({DOES[policy]})" if policy in DOES else ""
            what = f"policy {policy!r}{does} passes {share:.0%} of the tasks"
            if policy == EVERY_WORD:
                yield found(
                    "success_for_nothing", "@success", f"{what}: all possible answers at once", "warning"
                )
            else:
                yield found("success_for_nothing", "@success", what)
