"""The demo's two episodes: a task that the untrained agent fails, and the same task afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from renshu.engines import Sampling
from renshu.pipeline.recipe import Recipe, read_recipe
from renshu.pipeline.train import Prepared
from renshu.rollout import collect
from renshu.types import Scored, Task, Trajectory

TRIED = 8  # dev tasks, of which one is shown


def demo_recipe(*, hack: bool, seed: int, overrides: Sequence[str] = ()) -> tuple[str, Recipe]:
    """The name and the settings of the recipe that the demo plays."""
    name = "flights-hack" if hack else "flights"
    folder = f"out=runs/demo{'-hack' if hack else ''}-{seed}"
    return name, read_recipe(name, [f"seed={seed}", folder, *overrides])


def failed_episode(prepared: Prepared) -> Trajectory:
    """An episode on a dev task that the agent fails as it is; the first one if it fails none."""
    assert prepared.environment.tasks is not None
    episodes = attempt(prepared, prepared.environment.tasks.split("dev")[:TRIED])
    return next((episode for episode in episodes if not solved(episode)), episodes[0])


def attempt(prepared: Prepared, tasks: Sequence[Task]) -> list[Trajectory]:
    """One greedy episode for each task."""
    agent = prepared.agent
    sampling = Sampling(
        max_tokens=prepared.recipe.eval.max_tokens, temperature=0.0, stop_ids=agent.chat.stop_ids
    )
    groups = collect(
        agent.engine, agent.chat, prepared.environment, tasks, group=1, sampling=sampling, seed=0
    )
    return [group.trajectories[0] for group in groups]


def solved(episode: Trajectory) -> bool:
    return isinstance(episode.score, Scored) and episode.score.success is True
