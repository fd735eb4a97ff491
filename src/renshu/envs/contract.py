"""Does an environment keep its contract? Asked before training, where a wrong answer costs seconds, not GPU
hours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from renshu.envs.environment import Environment
from renshu.envs.interaction import play_through
from renshu.envs.moves import Moves, say
from renshu.envs.tasks import Tasks
from renshu.errors import ContractError, ToolDefinitionError
from renshu.rewards import Rubric, cause_of
from renshu.types import Message, Scored, Task, Trajectory, Unscored


@dataclass(frozen=True)
class Problem:
    """One way in which an environment breaks its contract. `code` is for machines, `detail` says what to
    do.
    """

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


def require_env(environment: type[Environment], *, samples: int = 3) -> None:
    """Raise ContractError with all problems `check_env` finds, if it finds any."""
    if problems := check_env(environment, samples=samples):
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ContractError(f"{environment.__name__} cannot be trained on:\n{listed}")


def check_env(environment: type[Environment], *, samples: int = 3) -> list[Problem]:
    """All that is wrong with an environment, found by its declarations and by playing `samples` training
    tasks.

    Each task is set up twice, left at once with an empty answer and, if there is a `solve`, solved. Problems
    that keep others from being looked for come first and alone.
    """
    try:
        environment()
    except (Exception, SystemExit) as error:
        return [Problem("not_made", f"{environment.__name__}() fails: {type(error).__name__}: {error}")]
    problems = list(declared(environment))
    if problems:
        return problems
    assert environment.tasks is not None
    tasks = environment.tasks.split("train")[:samples]
    problems = list(setups(environment, tasks))
    if problems:
        return problems
    return [problem for task in tasks for problem in played(environment, task)]


def declared(environment: type[Environment]) -> Iterator[Problem]:
    """What is wrong with the declarations; nothing is played."""
    try:
        for spec in environment().tools():
            if not spec.description:
                yield Problem("no_docstring", f"tool {spec.name}: a docstring tells the model what it is for")
    except ToolDefinitionError as error:
        yield Problem("bad_tool", str(error))
    try:
        yield from _rubric_problems(environment, environment().rubric())
    except ContractError as error:
        yield Problem("bad_rubric", str(error))
    if not isinstance(environment.max_turns, int) or environment.max_turns < 1:
        yield Problem("no_turns", f"max_turns is {environment.max_turns!r}; the model needs at least 1")
    if not isinstance(environment.system, str):
        yield Problem("bad_system", f"system is {environment.system!r:.60}; write the system prompt as text")
    if not isinstance(environment.tasks, Tasks) or not environment.tasks.train:
        yield Problem("no_tasks", "set `tasks` to Tasks with a train split that is not empty")


def _rubric_problems(environment: type[Environment], rubric: Rubric) -> Iterator[Problem]:
    if not rubric.parts:
        yield Problem("no_reward", "mark a method with @reward(1.0): there is nothing to train on")
    elif not rubric.deciding:
        kinds = ", ".join(sorted({part.kind for part in rubric.parts}))
        yield Problem("no_outcome", f"all rewards are of kind {kinds}; one must be of kind outcome or judge")
    if rubric.success is None:
        yield Problem("no_success", "mark a method with @success: the truth that evaluation reports")


def setups(environment: type[Environment], tasks: Sequence[Task]) -> Iterator[Problem]:
    """Two fresh objects must open a task alike: groups share the prompt, and resumed runs repeat it."""
    for task in tasks:
        openings: list[tuple[Message, ...]] = []
        for _ in range(2):
            try:
                openings.append(environment().opening(task))
            except (Exception, SystemExit) as error:
                yield Problem("setup_failed", f"task {task.id}: {type(error).__name__}: {error}")
                break
        else:
            if openings[0] != openings[1]:
                yield Problem("setup_random", f"task {task.id}: setup is never the same; seed by task.id")


def played(environment: type[Environment], task: Task) -> Iterator[Problem]:
    """What goes wrong when a task is left with an empty answer and when it is solved."""
    idle = _try(environment, task, "an empty answer", _idle)
    if isinstance(idle, Problem):
        yield idle
    elif isinstance(idle.score, Scored) and idle.score.success:
        yield Problem("idle_success", f"task {task.id}: an empty answer counts as success")
    if not environment.has_script("solve"):
        return
    gold = _try(environment, task, "solve()", environment.solve)
    if isinstance(gold, Problem):
        yield gold
        return
    again = _try(environment, task, "solve()", environment.solve)
    if isinstance(again, Problem) or again.score != gold.score or again.messages != gold.messages:
        yield Problem("gold_random", f"task {task.id}: solve() does not repeat itself; seed by task.id")
    yield from _gold_problems(environment, task, gold)


def _gold_problems(environment: type[Environment], task: Task, gold: Trajectory) -> Iterator[Problem]:
    if isinstance(gold.score, Unscored):
        yield Problem("gold_unscored", f"task {task.id}: solve(): {gold.score.reason}")
        return
    faults = {name: gold.counts[name] for name in ("bad_calls", "tool_errors", "timeouts")}
    if any(faults.values()):
        yield Problem("gold_faults", f"task {task.id}: solve() makes calls that fail: {faults}")
    if gold.score.success is False:
        yield Problem("gold_fails", f"task {task.id}: solve() is no success (parts {dict(gold.score.parts)})")
    weights = {part.name: part.weight for part in environment().rubric().parts}
    full = sum(max(0.0, weights[name]) for name, value in gold.score.parts.items() if value is not None)
    if gold.score.value < full and not math.isclose(gold.score.value, full):
        detail = f"earns {gold.score.value:g} of {full:g} (parts {dict(gold.score.parts)})"
        yield Problem("gold_below_full", f"task {task.id}: solve() {detail}")


def _try(
    environment: type[Environment], task: Task, what: str, script: Callable[[Environment], Moves]
) -> Trajectory | Problem:
    """The scripted episode, or what kept it from being played or scored."""
    fresh = environment()
    try:
        trajectory = play_through(fresh, task, script(fresh))
    except (Exception, SystemExit) as error:
        return Problem("play_failed", f"task {task.id}: {what}: {type(error).__name__}: {error}")
    if isinstance(trajectory.score, Unscored) and cause_of(trajectory.score) != "no_outcome":
        return Problem("unscored", f"task {task.id}: {what}: {trajectory.score.reason}")
    return trajectory


def _idle(_: Environment) -> Moves:
    while True:
        yield say("")
