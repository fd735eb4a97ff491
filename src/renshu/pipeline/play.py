"""`renshu play` as functions: a person, a script, a model or a log acts; the episodes can be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from renshu.envs import Environment, Interaction, demonstration_row, play_through
from renshu.envs.interaction import in_own_loop
from renshu.envs.moves import Think
from renshu.errors import ConfigError, DataError
from renshu.jsonl import append_rows
from renshu.pipeline.environments import tasks_from
from renshu.pipeline.typed import read_typed
from renshu.types import Message, Scored, Stop, Task, Trajectory

Ask = Callable[[], str | None]  # the next line that was typed; None: no more
Show = Callable[[Message], None]  # called for every message but the person's own
Hint = Callable[[str], None]  # a sentence for the person; nothing was done

SCRIPTS = ("solve", "hurried")
AT_ONCE = 64  # episodes of a model that run together; bounds memory


def choose_tasks(
    environment: type[Environment], split: str, first: int, count: int, *, to_save: bool = False
) -> Sequence[Task]:
    """`count` tasks of a split from number `first` on, fewer where it ends before.

    Raises ConfigError as `tasks_from` does, and where what is saved would be of tasks that measure or choose
    models.
    """
    tasks = tasks_from(environment, split, first, count)
    if to_save and split != "train":
        raise ConfigError(
            f"--save with the {split} split: what is trained on must not be measured; use train"
        )
    return tasks


def play_by_hand(environment: Environment, task: Task, ask: Ask, show: Show, hint: Hint) -> Trajectory | None:
    """One episode with a person as the policy; None if they left before it ended.

    Everything they type goes through what a model's reply goes through: same tools, same checks, same score.
    """
    return in_own_loop(_by_hand(Interaction(environment, task), ask, show, hint))


async def _by_hand(interaction: Interaction, ask: Ask, show: Show, hint: Hint) -> Trajectory | None:
    for message in interaction.messages:
        show(message)
    thought = None
    while (line := ask()) is not None:
        try:
            typed = read_typed(line, interaction.tools)
        except DataError as error:
            hint(str(error))
            continue
        if isinstance(typed, Think):
            thought = typed.text if thought is None else f"{thought}\n{typed.text}"
            continue
        before = len(interaction.messages) + 1
        outcome = await interaction.answer(replace(typed, reasoning=thought))
        thought = None
        for message in interaction.messages[before:]:
            show(message)
        if isinstance(outcome, Stop):
            return interaction.finish(outcome)
    return None


@dataclass
class Collected:
    """Episodes of a policy as rows to train on. left_out: those that are not, by reason."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    success: Counter[str] = field(default_factory=Counter)  # solved, failed, unscored
    left_out: Counter[str] = field(default_factory=Counter)

    def add(
        self, trajectory: Trajectory, schemas: Sequence[Mapping[str, Any]], *, only_success: bool
    ) -> None:
        score = trajectory.score
        solved = score.success if isinstance(score, Scored) else None
        self.success["unscored" if solved is None else "solved" if solved else "failed"] += 1
        if why := _unusable(trajectory):
            self.left_out[why] += 1
        elif only_success and not solved:
            self.left_out["not solved"] += 1
        else:
            self.rows.append(demonstration_row(trajectory.messages, schemas, trajectory))


def _unusable(trajectory: Trajectory) -> str | None:
    """Why an episode cannot be written as a dialogue to imitate, or None."""
    if trajectory.stop not in (Stop.ANSWERED, Stop.ENV_DONE, Stop.TURNS):
        return f"ended by {trajectory.stop}"
    written = sum(len(message.tool_calls) for message in trajectory.messages)
    return "a call that cannot be read" if written != trajectory.counts["calls"] else None


def collect_from_script(
    environment: type[Environment], script: str, tasks: Sequence[Task], *, only_success: bool = False
) -> Collected:
    """Every task played by `solve()` or `hurried()`. Raises ConfigError if the environment has no such
    script.
    """
    if script not in SCRIPTS or not environment.has_script(script):  # type: ignore[arg-type]
        raise ConfigError(f"{environment.__name__} has no {script}(): write one, or name another --policy")
    collected = Collected()
    for task in tasks:
        played = environment()
        schemas = [spec.schema for spec in played.tools()]
        trajectory = play_through(played, task, getattr(played, script)())
        collected.add(trajectory, schemas, only_success=only_success)
    return collected


def collect_from_model(
    environment: type[Environment],
    name: str,
    tasks: Sequence[Task],
    *,
    temperature: float = 0.0,
    max_tokens: int = 512,
    seed: int = 0,
    only_success: bool = False,
) -> Collected:
    """Every task played by a model: a run folder, a model's folder or name. Raises a RenshuError."""
    from renshu.engines import Sampling
    from renshu.pipeline.agent import build_agent
    from renshu.pipeline.finished import find_target
    from renshu.rollout import collect

    target = find_target(name)
    agent = build_agent(target.model, target.base, target.weights)
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, stop_ids=agent.chat.stop_ids)
    collected = Collected()
    schemas = [spec.schema for spec in environment().tools()]
    for start in range(0, len(tasks), AT_ONCE):
        chunk = tasks[start : start + AT_ONCE]
        for group in collect(
            agent.engine, agent.chat, environment, chunk, group=1, sampling=sampling, seed=seed
        ):
            collected.add(group.trajectories[0], schemas, only_success=only_success)
    return collected


def collect_from_log(environment: type[Environment], path: Path, limit: int | None = None) -> Collected:
    """The dialogues of a log that the environment's tools would have taken, `limit` at most."""
    from renshu.data.dialogues import dialogues_of_log

    dialogues = dialogues_of_log(path, environment)
    rows = [demonstration_row(messages, tools) for messages, tools in dialogues.items[:limit]]
    return Collected(rows, Counter(), Counter(dialogues.set_aside))


def save_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append JSON lines; a last line without its end, as editors leave it, is ended first."""
    if path.is_file() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    append_rows(path, rows)
