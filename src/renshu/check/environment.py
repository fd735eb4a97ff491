"""An environment, checked without a model: everything from its declarations to what cheap policies earn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from renshu.check.code import acting, check_code, judges, literals, names_used
from renshu.check.findings import Finding, found, sort
from renshu.check.gold import (
    check_answers,
    check_contract,
    check_hurried,
    check_rationale,
    check_tools_used,
    check_turns,
    play_gold,
)
from renshu.check.labels import check_labels
from renshu.check.plays import Hangs, Play, Stage, gold, saying, within
from renshu.check.scores import (
    KNOWING,
    PolicyLine,
    check_agreement,
    check_failures,
    check_range,
    check_spread,
    check_weights,
    distribution,
    play_cheap,
)
from renshu.check.state import check_fields, check_repeats, check_shared, check_types, shared_values
from renshu.check.tasks import canonical, check_alike, check_tasks
from renshu.check.tools import check_tools
from renshu.check.variants import check_variants
from renshu.check.wording import (
    Told,
    check_format,
    check_frame,
    check_leaks,
    check_names,
    last_words,
    sought_words,
    tell,
)
from renshu.envs.contract import declared
from renshu.envs.environment import Environment
from renshu.envs.tasks import SPLITS, Split
from renshu.errors import DataError, ToolDefinitionError
from renshu.types import Scored, Task

SLOW = 0.5  # seconds of one scripted episode


@dataclass(frozen=True)
class Checked:
    """What was found about an environment. tools: their schemas. policies: what scripted policies earned."""

    findings: list[Finding]
    tools: list[dict[str, Any]] = field(default_factory=list)
    policies: list[PolicyLine] = field(default_factory=list)


def check_environment(
    environment: type[Environment], *, samples: int = 12, budget: float = 60.0, limit: float = 10.0
) -> Checked:
    """Check declarations, tools and tasks, then play scripted policies on `samples` tasks of every split.

    budget: seconds of playing in all; limit: seconds of one episode. What keeps others from being looked for
    comes alone.
    """
    stage = Stage(environment, budget, limit)
    findings = _declarations(environment)
    tools: list[dict[str, Any]] = []
    try:
        specs = environment().tools()
        tools = [spec.schema["function"] for spec in specs]
        findings += check_tools(specs)
        findings += check_weights(stage)
    except (Exception, SystemExit):  # told by the declarations
        pass
    if any(finding.code in PREVENTING for finding in findings):
        return Checked(sort(findings), tools)
    assert environment.tasks is not None
    findings += check_tasks(environment.tasks, samples)
    chosen = _samples(environment, samples)
    shared = shared_values(environment)
    everyone = [task for tasks in chosen.values() for task in tasks]
    fields = {task.id: canonical(task) for task in everyone}
    findings += check_contract(stage, chosen)
    told = _told(stage, chosen.get("train", ()))
    if told and not any(finding.code == "hangs" for finding in findings):
        findings += _played(stage, chosen, told)
        findings += check_alike(stage, environment.tasks, names_used(environment))
    failing = any(finding.code in GOLDEN for finding in findings)
    findings[:0] = check_shared(shared, environment, failing=failing)  # the cause before what follows
    findings += check_fields(fields, everyone)
    if stage.exhausted:
        findings.append(found("cut_short", "the check", f"{budget:g} seconds were used up"))
    return Checked(sort(_once(_causes(findings))), tools, distribution(stage.plays))


PREVENTING = frozenset(
    {"not_made", "bad_system", "bad_rubric", "no_reward", "no_outcome", "no_turns", "no_tasks", "bad_tool"}
)


def _declarations(environment: type[Environment]) -> list[Finding]:
    name = environment.__name__
    try:
        environment()
    except (Exception, SystemExit) as error:
        return [found("not_made", name, f"{name}() fails: {type(error).__name__}: {error}")]
    try:
        problems = list(declared(environment))
    except ToolDefinitionError as error:
        return [found("bad_tool", name, str(error))]
    except (Exception, SystemExit) as error:
        return [found("not_made", name, f"{type(error).__name__}: {error}")]
    return [found(p.code, name, p.detail) for p in problems if p.code != "no_docstring"]


def _samples(environment: type[Environment], count: int) -> dict[Split, Sequence[Task]]:
    """The first tasks of every split that has some."""
    assert environment.tasks is not None
    chosen: dict[Split, Sequence[Task]] = {}
    for split in SPLITS:
        try:
            chosen[split] = list(environment.tasks.split(split)[:count])
        except DataError:  # told by the check of the tasks
            continue
    return chosen


def _told(stage: Stage, tasks: Sequence[Task]) -> list[Told]:
    told = []
    for task in tasks:
        try:
            told.append(within(stage.limit, lambda task=task: tell(stage, task)))  # type: ignore[misc]
        except (Exception, SystemExit, Hangs):  # told by the contract
            continue
    return told


def _played(stage: Stage, chosen: dict[Split, Sequence[Task]], told: Sequence[Told]) -> Iterator[Finding]:
    """All that is found by playing; the order is that in which time is spent."""
    environment = stage.environment
    train = [one.task for one in told]
    solved = play_gold(stage, chosen)
    practised = [play for play in solved if play.split == "train"]
    full = bool(solved) and all(play.score is not None and play.score.success is not False for play in solved)
    texts = literals(environment, judges(environment))
    cheap = play_cheap(stage, told[:8], practised, sought_words(list(texts), train))
    yield from check_turns(stage, solved)
    yield from check_tools_used(stage, solved)
    yield from check_hurried(stage, chosen)
    if not environment.has_script("solve"):
        yield found("no_gold", environment.__name__, "there is no solve()")
        yield from check_answers(stage, train)
    yield from check_rationale(stage, train, list(texts))
    yield from check_types(stage, told, full, list(getattr(environment, "judged_by", ())))
    replies = [last_words(play.trajectory) for play in practised if play.trajectory is not None]
    yield from check_format(told, texts, replies)
    yield from check_labels(told, texts, literals(environment, acting(environment)))
    yield from check_frame(stage, told, practised)
    parameters = {spec.name: list(_parameters(spec.schema)) for spec in environment().tools()}
    yield from check_names(told, parameters)
    yield from check_leaks(stage, told, practised)
    yield from check_code(environment)
    scripts = {"idle": saying((), "")} | ({"gold": gold} if solved else {})
    yield from check_repeats(stage, told, scripts)
    yield from check_failures([play for play in stage.plays if play.policy not in ("gold", "hurried")])
    yield from check_spread(stage, practised or _answers(stage), cheap)
    yield from check_variants(stage, practised)
    yield from check_agreement(stage, stage.plays)
    yield from check_range(stage, stage.plays)
    yield from _slow(stage)


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema["function"]["parameters"].get("properties", {})
    return properties


def _answers(stage: Stage) -> list[Play]:
    """Where there is no solve(), the best of the answers that each task holds stands for it."""
    best: dict[str, Play] = {}
    for play in stage.plays:
        if play.policy == "answer" and isinstance(play.score, Scored):
            before = best.get(play.task.id)
            if before is None or before.score is None or play.score.value > before.score.value:
                best[play.task.id] = play
    return list(best.values())


def _slow(stage: Stage) -> Iterator[Finding]:
    late = [play for play in stage.plays if play.trajectory and play.trajectory.counts.get("timeouts")]
    if late:
        yield found("tool_timeout", "tools", f"in {len(late)} of {len(stage.plays)} episodes time was up")
    known = [play for play in stage.plays if play.policy in (*KNOWING, "random calls") and play.trajectory]
    slow = [play for play in known if play.seconds > SLOW]
    if known and len(slow) > len(known) / 2:
        seconds = sorted(play.seconds for play in slow)[len(slow) // 2]
        yield found("tool_slow", "tools", f"a scripted episode takes {seconds:.1f} seconds without any model")


GOLDEN = frozenset({"gold_random", "gold_faults", "gold_fails", "gold_below_full"})
LASTING = frozenset({"state_shared", "task_changed"})  # what one episode leaves behind for the next
FOLLOWING = frozenset(
    {
        *("gold_random", "score_random", "one_answer_fits", "case_sensitive", "space_sensitive"),
        *("near_miss", "part_of_text", "early_success"),
    }
)  # what comes of comparing an episode with one played before


def _causes(findings: Sequence[Finding]) -> list[Finding]:
    """Without what may only come of another episode's remains: that is to be mended first."""
    lasting = any(finding.code in LASTING and finding.severity == "error" for finding in findings)
    return [finding for finding in findings if not (lasting and finding.code in FOLLOWING)]


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Of findings with one code: those that say something else, at most three; of policies only one."""
    kept: list[Finding] = []
    for finding in findings:
        same = [other for other in kept if other.code == finding.code]
        known = finding.what in {other.what for other in same}
        if not known and len(same) < 3 and not (same and finding.where.startswith("policy ")):
            kept.append(finding)
    return kept
