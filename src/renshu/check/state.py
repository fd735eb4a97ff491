"""What one episode leaves behind for the next: on the class, in the task, in the score."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from renshu.check.findings import Finding, found
from renshu.check.gold import answers_of
from renshu.check.plays import Play, Script, Stage, cheap_policies, gold, saying, within
from renshu.check.tasks import canonical
from renshu.check.witness import Witness
from renshu.check.wording import Told
from renshu.envs.adapters.trl import call_reward, is_trl_reward
from renshu.envs.environment import Environment
from renshu.envs.interaction import play_through
from renshu.types import Task, Trajectory

MUTABLE = (list, dict, set, bytearray)
LONGEST = 40  # characters of a value that is shown


def shared_values(environment: type[Environment]) -> dict[str, Any]:
    """Copies of what all episodes share and can change: attributes of the class, defaults, module globals."""
    values: dict[str, Any] = {}
    for owner in environment.__mro__:
        if owner.__module__.startswith("renshu.envs.") or owner is object:
            continue
        for name, value in vars(owner).items():
            function = inspect.unwrap(value) if isinstance(value, FunctionType) else None
            if isinstance(value, (*MUTABLE, int, float, str)) and not name.startswith("__"):
                values[f"{owner.__name__}.{name}"] = value
            for default in function.__defaults__ or () if function else ():
                if isinstance(default, MUTABLE):
                    values[f"the default of {owner.__name__}.{name}"] = default
    module = sys.modules.get(environment.__module__)
    for name, value in vars(module).items() if module else ():
        if isinstance(value, (*MUTABLE, int, float)) and not name.startswith("__"):
            values[f"global {name}"] = value
    return {name: _copy(value) for name, value in values.items() if "cache" not in name.casefold()}


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return repr(value)


def check_shared(
    before: dict[str, Any], environment: type[Environment], *, failing: bool = False
) -> Iterator[Finding]:
    """What the episodes since `before` have changed for all that follow. failing: the gold solution fails, so
    that a global is more than a cache.
    """
    after = shared_values(environment)
    for name, value in before.items():
        if name in after and repr(after[name]) != repr(value):
            was, now = (_brief(one) for one in (value, after[name]))
            what = f"an episode changed it from {was} to {now}: the next one finds that"
            harmless = name.startswith("global ") and not failing
            yield found("state_shared", name, what, "warning" if harmless else None)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def check_fields(before: dict[str, str], tasks: Sequence[Task]) -> Iterator[Finding]:
    """Tasks that the episodes have changed. before: their fields as text, by id."""
    changed = [task.id for task in tasks if before[task.id] != canonical(task)]
    if changed:
        what = f"episodes change the fields of {len(changed)} of {len(tasks)} tasks, e.g. {changed[0]}"
        yield found("task_changed", "tasks", what)


def check_repeats(stage: Stage, told: Sequence[Told], scripts: dict[str, Script]) -> Iterator[Finding]:
    """The same episode, played twice, earns the same."""
    for one in told[:4]:
        for policy, script in scripts.items():
            first = stage.play(policy, "train", one.task, script)
            again = stage.play(policy, "train", one.task, script)
            if first is None or again is None or None in (first.trajectory, again.trajectory):
                continue
            if not _same_score(first, again):
                what = f"policy {policy!r} earns {_told(first)}, then {_told(again)} for the same moves"
                yield found("score_random", f"task {one.task.id}", what)
                return


def _same_score(first: Play, again: Play) -> bool:
    assert first.trajectory is not None
    assert again.trajectory is not None
    return first.trajectory.score == again.trajectory.score


def _told(play: Play) -> str:
    return "no score" if play.score is None else f"{play.score.value:g} (success: {play.score.success})"


def check_types(
    stage: Stage, told: Sequence[Told], solved: bool, functions: Sequence[Any]
) -> Iterator[Finding]:
    """Comparisons that are never true. solved: whether the gold solution earns everything nevertheless."""
    witness = Witness()
    for one in told[:3]:
        for script in _scripts(stage, one):
            _watch(stage, one, script, functions, witness)
    for (name, own, other), count in witness.mismatches.items():
        if (name.replace("field", "column", 1), own, other) in witness.mismatches and "field" in name:
            continue  # the rewards of TRL's form are told by their column
        what = f"{name} is {_article(own)} and compared with {_article(other)} ({count} times): never equal"
        yield found("type_mismatch", "rewards, success or tools", what, "note" if solved else None)
    known = {key for one in told for key in one.task.fields}
    for key in witness.missing:
        if key not in known:
            what = f"the code asks for {key!r}; the tasks have {', '.join(sorted(known)) or 'no fields'}"
            yield found("field_missing", f"field {key!r}", what, "note" if solved else None)


def _article(kind: str) -> str:
    names = {"str": "text", "int": "a number", "float": "a number", "bool": "True or False"}
    return names.get(kind, f"a {kind}")


def _scripts(stage: Stage, one: Told) -> list[Script]:
    if stage.environment.has_script("solve"):
        return [gold]
    policies = cheap_policies(one.opening, one.task, None)
    return [*(saying((), text) for text in answers_of(one.task)), policies["random calls"]]


def _watch(stage: Stage, one: Told, script: Script, functions: Sequence[Any], witness: Witness) -> None:
    """Play one episode and score it again, everything under observation; what fails is told elsewhere."""
    environment = stage.environment()
    trajectory = _quietly(
        lambda: play_through(environment, witness.task(one.task), script(environment)), stage.limit
    )
    if isinstance(trajectory, Trajectory):
        _quietly(lambda: environment.rubric().score(witness.trajectory(trajectory)), stage.limit)
        plain = Trajectory(one.task, (), trajectory.messages, trajectory.stop, trajectory.score)
        for function in filter(is_trl_reward, functions):
            _quietly(partial(call_reward, function, plain, column=witness.column), stage.limit)


def _quietly(work: Callable[[], Any], limit: float) -> Any:
    try:
        return within(limit, work)
    except (Exception, SystemExit):
        return None
