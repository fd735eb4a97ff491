"""`renshu eval` as a function: a run or a model on an environment's held-out tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from renshu.envs import require_env
from renshu.errors import ConfigError
from renshu.evaluation import evaluate, tokens_a_task
from renshu.pipeline.agent import build_agent
from renshu.pipeline.environments import tasks_from
from renshu.pipeline.finished import environment_for, find_target
from renshu.pipeline.preflight import require_room
from renshu.pipeline.recipe import EvaluationSettings
from renshu.pipeline.watch import Watcher
from renshu.places import require_writable


def measure(
    name: str,
    *,
    env: str | None = None,
    tasks: int | None = None,
    split: str = "test",
    max_tokens: int | None = None,
    log: Path | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Success of a run's kept model, or of any model, as one arm of a summary, with what it was measured on.

    tasks, max_tokens: where absent, what the run's own recipe says, so that its success is found again.
    Temperature 0 in what is returned says that episodes are greedy; its tokens are means of one. Raises a
    RenshuError.
    """
    if log is not None and log.exists():
        raise ConfigError(f"{log} is there already; name another file for the log")
    if log is not None:
        require_writable(log, "--log")
    watcher = watcher or Watcher()
    target = find_target(name)
    environment = environment_for(target, env)
    require_env(environment)
    settings = target.recipe.eval if target.recipe is not None else EvaluationSettings()
    chosen = tasks_from(environment, split, count=tasks or settings.tasks)
    agent = build_agent(target.model, target.base, target.weights)
    if target.note:
        watcher.noted(target.note)
    require_room(environment, agent.chat, agent.engine.context)
    arm = Path(name).name
    budget = max_tokens or settings.max_tokens
    seed = target.recipe.seed if target.recipe is not None else 0
    result = evaluate(
        agent.engine,
        agent.chat,
        environment,
        chosen,
        arm=arm,
        log=log,
        progress=partial(watcher.evaluating, arm),
        max_tokens=budget,
        at_once=settings.at_once,
        seed=seed,
    )
    watcher.evaluated(result.summary())
    tokens = tokens_a_task(result.outcomes)
    return {
        **result.summary(),
        "model": target.model.name,
        "environment": environment.__name__,
        "split": split,
        "temperature": 0.0,
        "seed": seed,
        "max_tokens": budget,
        "at_once": settings.at_once,
        "tokens": None if tokens is None else tokens._asdict(),
    }
