"""`renshu eval` as a function: a run or a model on an environment's held-out tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, get_args

from renshu.envs import require_env
from renshu.envs.tasks import Split
from renshu.errors import ConfigError
from renshu.evaluation import evaluate
from renshu.pipeline.agent import build_agent
from renshu.pipeline.finished import environment_for, find_target
from renshu.pipeline.preflight import check_prompts
from renshu.pipeline.watch import Watcher


def measure(
    name: str,
    *,
    env: str | None = None,
    tasks: int = 300,
    split: str = "test",
    max_tokens: int = 512,
    log: Path | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Success of a run's kept model, or of any model, as one arm of a summary. Raises a RenshuError."""
    if split not in get_args(Split):
        raise ConfigError(f"split {split!r}: expected one of {', '.join(get_args(Split))}")
    watcher = watcher or Watcher()
    target = find_target(name)
    environment = environment_for(target, env)
    require_env(environment)
    assert environment.tasks is not None
    chosen = environment.tasks.split("dev" if split == "dev" else "train" if split == "train" else "test")[
        :tasks
    ]
    agent = build_agent(target.model, target.base)
    check_prompts(environment, agent.chat, agent.engine.context)
    if log is not None:
        log.unlink(missing_ok=True)
    arm = Path(name).name
    result = evaluate(
        agent.engine,
        agent.chat,
        environment,
        chosen,
        arm=arm,
        max_tokens=max_tokens,
        log=log,
        progress=partial(watcher.evaluating, arm),
    )
    watcher.evaluated(result.summary())
    return result.summary()
