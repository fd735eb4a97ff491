"""From a recipe to a proxy that runs: loaded, checked, at its place, listening."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from renshu.errors import ConfigError
from renshu.pipeline.agent import build_agent
from renshu.pipeline.course import standing
from renshu.pipeline.origins import require_start
from renshu.pipeline.prepare import Prepared
from renshu.pipeline.recipe import CheckSettings, EvaluationSettings, Recipe, dump_recipe
from renshu.pipeline.resume import reopen_run
from renshu.pipeline.run_folder import RECIPE, SUMMARY, RunFolder, is_run
from renshu.pipeline.stand import Saved
from renshu.pipeline.trackers import require_trackers
from renshu.pipeline.train import new_run, out_folder
from renshu.pipeline.watch import Watcher
from renshu.proxy.app import Proxy, application
from renshu.proxy.course import Course, Elsewhere
from renshu.seeding import stable_hash
from renshu.serve.run import Server, bind, server_of

HOST = "127.0.0.1"


def run_proxy(
    recipe: Recipe,
    *,
    name: str,
    base: str | Path = ".",
    port: int,
    overwrite: bool = False,
    patience: float = 600.0,
    watcher: Watcher | None = None,
) -> Path:
    """Train agents that run elsewhere, until their program asks for the end; returns the run folder.

    A run of this recipe that was broken off goes on from its last checkpoint; episodes that no saved step has
    learned from are lost. port: 0 takes any free one. patience: seconds without a request or reward after
    which an episode counts as abandoned. Raises a RenshuError that says what to change.
    """
    began, watcher = time.perf_counter(), watcher or Watcher()
    require_elsewhere(recipe)
    run, prepared, saved = _open(recipe, name, Path(base), overwrite, watcher)
    again = "the same command (renshu proxy)"
    with standing(prepared, run, watcher, began, saved, again) as stand:
        course = Course(stand, prepared.name, patience)
        proxy = Proxy(prepared.name, course.register, course.worker)
        outcome: dict[str, Any] = {"error": "the proxy was broken off; the same command goes on with it"}
        with _listening(proxy, port) as address:
            watcher.noted(f"agents begin their episodes at {address}/episodes")
            try:
                summary = course.play(saved)
                outcome = {"run": str(run.path), "summary": summary}
            except Exception as error:
                outcome = {"error": f"the proxy failed: {type(error).__name__}: {error}"}
                raise
            finally:
                course.register.close(outcome)
    return run.path


def require_elsewhere(recipe: Recipe) -> None:
    """Raises ConfigError for what a proxy cannot do: it has no environment, and no tasks."""
    if recipe.env is not None:
        raise ConfigError(
            f"env: {recipe.env}: agents of the proxy act elsewhere: leave env out, or use renshu train"
        )
    for stage in recipe.stages:
        if not stage.samples:
            raise ConfigError(
                f"stage {stage.name}: {stage.algorithm} learns from data, not from agents: play it with "
                "renshu train, and name its weights as model.name (runs/NAME/checkpoints/final)"
            )
    used = {"max_tokens", "at_once"}
    default = EvaluationSettings()
    for key in EvaluationSettings.model_fields.keys() - used:
        if getattr(recipe.eval, key) != getattr(default, key):
            raise ConfigError(
                f"eval.{key}: the agents' program says what is measured, and when: leave it out"
            )
    if recipe.checks != CheckSettings():
        raise ConfigError("checks: the proxy has no environment to play cases in: leave it out")


def _prepare(recipe: Recipe, *, name: str, base: str | Path) -> Prepared:
    require_trackers(recipe.trackers)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    torch.manual_seed(stable_hash(recipe.seed, "adapter"))  # its first weights are random
    agent = build_agent(recipe.model, base, engine=recipe.engine)
    for stage in recipe.stages:
        require_start(recipe, stage, agent, Path(base))
    return Prepared(recipe, name, Path(base), Elsewhere, None, agent, (None,) * len(recipe.stages), ())


def _open(
    recipe: Recipe, name: str, base: Path, overwrite: bool, watcher: Watcher
) -> tuple[RunFolder, Prepared, Saved | None]:
    """A new run, or the one that was broken off."""
    folder = out_folder(recipe, name)
    if overwrite or not is_run(folder) or (folder / SUMMARY).is_file():
        prepared = _prepare(recipe, name=name, base=base)
        return new_run(prepared, overwrite=overwrite), prepared, None
    if (folder / RECIPE).read_text("utf-8") != dump_recipe(recipe):
        raise ConfigError(
            f"{folder} holds a run of other settings that did not come to its end: put them back to go on "
            "with it, pass --overwrite, or choose another place with out=…"
        )
    return reopen_run(folder, _prepare, force=False, watcher=watcher)


@contextmanager
def _listening(proxy: Proxy, port: int) -> Iterator[str]:
    """A server on a thread of its own: its address."""
    server: Server = server_of(application(proxy), proxy, HOST, port)
    socket = bind(server)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [socket]}, name="renshu-proxy", daemon=True
    )
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://{HOST}:{socket.getsockname()[1]}"
    finally:
        proxy.close(at_once=True)  # clients that still wait are told
        server.should_exit = True
        thread.join()
