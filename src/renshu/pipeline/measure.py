"""`renshu eval` as a function: a run or a model on an environment's held-out tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from renshu.envs import Environment, require_env
from renshu.errors import ConfigError
from renshu.evaluation import Result, evaluate, tokens_a_task
from renshu.evaluation.endpoint import evaluate_endpoint
from renshu.jsonl import append_rows
from renshu.pipeline.agent import build_agent
from renshu.pipeline.endpoints import Access, Address, is_api
from renshu.pipeline.environments import split_name, tasks_from
from renshu.pipeline.finished import environment_for, find_target
from renshu.pipeline.preflight import require_room
from renshu.pipeline.recipe import EvaluationSettings
from renshu.pipeline.sources import source_record
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
    access: Access | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Success of a run's kept model, or of any model, as one arm of a summary, with what it was measured on.

    tasks, max_tokens: where absent, what the run's own recipe says, so that its success is found again.
    Temperature 0 in what is returned says that episodes are greedy; its tokens are means of one. name may be
    that of a model behind an endpoint, to which `access` leads; its episodes are kept in its folder. Raises a
    RenshuError.
    """
    if log is not None and log.exists():
        raise ConfigError(f"{log} is there already; name another file for the log")
    if log is not None:
        require_writable(log, "--log")
    watcher = watcher or Watcher()
    if is_api(name):
        return _behind_endpoint(name, env, tasks, split, max_tokens, log, access or Access(), watcher)
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
    return {
        **_told(result, target.model.name, environment, split, budget),
        "seed": seed,
        "at_once": settings.at_once,
    }


def _behind_endpoint(
    name: str,
    env: str | None,
    tasks: int | None,
    split: str,
    max_tokens: int | None,
    log: Path | None,
    access: Access,
    watcher: Watcher,
) -> dict[str, Any]:
    address, settings = Address.read(name), EvaluationSettings()
    environment = environment_for(None, env)
    require_env(environment)
    assert env is not None
    model, budget = access.model(address), max_tokens or settings.max_tokens
    sources, named = source_record(env, Path()), split_name(env)[1]
    kept = access.kept(address, sources, named or environment.__name__, budget)
    found = evaluate_endpoint(
        model,
        environment,
        tasks_from(environment, split, count=tasks or settings.tasks),
        arm=address.model,
        max_tokens=budget,
        kept=kept,
        progress=partial(watcher.evaluating, address.model),
    )
    for note in model.notes:
        watcher.noted(note)
    if found.known:
        watcher.noted(f"{found.known} episodes were read from {kept.path}; remove it to ask again")
    if log is not None:
        append_rows(log, found.rows)
    watcher.evaluated(found.result.summary())
    return {
        **_told(found.result, name, environment, split, budget),
        "seed": None,  # an endpoint takes none
        "at_once": access.patience.at_once,
    }


def _told(
    result: Result, model: str, environment: type[Environment], split: str, max_tokens: int
) -> dict[str, Any]:
    tokens = tokens_a_task(result.outcomes)
    return {
        **result.summary(),
        "model": model,
        "environment": environment.__name__,
        "split": split,
        "temperature": 0.0,
        "max_tokens": max_tokens,
        "tokens": None if tokens is None else tokens.record(),
    }
