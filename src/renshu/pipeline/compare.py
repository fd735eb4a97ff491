"""`renshu compare` as a function: arms on the same held-out tasks, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from renshu.config import load_yaml
from renshu.engines import Sampling
from renshu.envs import Interaction, require_env
from renshu.errors import ConfigError, ContextOverflow, DataError, ModelError
from renshu.evaluation import Outcome, Prices, Result, Tries, compare, repeated, verdicts
from renshu.evaluation.records import outcome_record
from renshu.pipeline.arms import Arm, find_arms, same_weights
from renshu.pipeline.bench import Bench
from renshu.pipeline.endpoints import Access
from renshu.pipeline.environments import load_environment, split_name, tasks_from
from renshu.pipeline.finished import environment_for
from renshu.pipeline.recipe import EvaluationSettings
from renshu.pipeline.run_folder import RECIPE, RunFolder
from renshu.pipeline.sources import source_record
from renshu.pipeline.watch import Watcher
from renshu.rollout import collect
from renshu.seeding import stable_hash
from renshu.types import Task

PLACES = ("out", "base", "started")  # they say where and when, not what
ABSENT = (ConfigError, ContextOverflow, DataError, ModelError)  # an expected arm may be left out for these


def compare_targets(
    targets: Sequence[str],
    *,
    env: str | None = None,
    tasks: int | None = None,
    max_tokens: int | None = None,
    tries: Tries | None = None,
    prices: Prices | None = None,
    own_prices: Mapping[str, Prices] | None = None,
    access: Access | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """All arms on the same test tasks, as JSON. Raises a RenshuError.

    targets: see `arms`. tasks, max_tokens, tries: where absent, as in the first run's recipe. own_prices: of
    arms by name, instead of `prices`. access: to models behind an endpoint.
    """
    arms = find_arms(targets)
    own = _own_prices(arms, prices, own_prices or {})
    bench = _bench(arms, env, tasks, max_tokens, tries, watcher, access)
    bench.timed = prices is not None and prices.hour is not None
    results: list[Result] = []
    for arm in arms:
        try:
            results.append(bench.result(arm))
        except ABSENT as error:
            if not arm.expected:
                raise
            bench.notes.append(f"{arm.name} is left out: {error}")
    if not results:
        raise ConfigError(f"{targets[0]}: there is nothing to compare yet: {'; '.join(bench.notes)}")
    compared = compare(results, prices, own)
    return {
        **_conditions(bench),
        "tasks": len(bench.tasks),
        "samples": None if bench.tries is None else bench.tries.model_dump(),
        "arms": compared,
        "verdicts": verdicts(compared, same_weights(arms)),
        "notes": [*bench.notes, *_caution(arms)],
        "settings": settings_difference(_runs(arms)),
    }


def repeat_task(
    targets: Sequence[str],
    number: int,
    *,
    times: int,
    temperature: float,
    env: str | None = None,
    max_tokens: int | None = None,
    access: Access | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Test task `number` (from 0) played `times` times by every arm, as JSON. Raises a RenshuError."""
    arms = find_arms(targets)
    bench = _bench(arms, env, None, max_tokens, None, watcher, access)
    (task,) = tasks_from(bench.environment, "test", number, 1)
    rows = []
    for arm in arms:
        try:
            if arm.target is None and arm.address is None:
                raise ConfigError(f"{arm.name} cannot be asked: its weights are not kept")
            rows.append({"arm": arm.name, **repeated(_asked(bench, arm, task, times, temperature))})
        except ABSENT as error:
            if not arm.expected:
                raise
            bench.notes.append(f"{arm.name} is left out: {error}")
    request = Interaction(bench.environment(), task).messages[-1].content
    return {
        **_conditions(bench),
        "task": task.id,
        "request": request,
        "times": times,
        "temperature": temperature,
        "arms": rows,
        "notes": bench.notes,
    }


def settings_difference(runs: Mapping[str, RunFolder]) -> list[dict[str, Any]]:
    """The keys of recipe and provenance in which runs differ: `{"key": …, "values": {run: value}}`.

    A value is None where the run has no such key. A stage, or an algorithm of one, that a run lacks is one
    key, and its value what is not as by default. Raises DataError.
    """
    settings = {name: _flat(load_yaml(run.path / RECIPE)) for name, run in runs.items()}
    sections = [{part for key in told for part in _sections(key)} for told in settings.values()]
    anywhere = set[str]().union(*sections)
    for section in sorted(anywhere - anywhere.intersection(*sections)):
        for name, run in runs.items():
            inner = [key for key in settings[name] if key.startswith(f"{section}.")]
            if inner:
                settings[name] = _folded(settings[name], section, inner, _chosen(run, section))
    for name, run in runs.items():
        settings[name] |= {
            f"provenance: {key}": value
            for key, value in run.provenance.items()
            if key not in ("seed", "model", "settings")  # told by the recipe's own keys
        }
    keys = dict.fromkeys(key for told in settings.values() for key in told)
    differing = [key for key in keys if len({_shown(told.get(key)) for told in settings.values()}) > 1]
    return [
        {"key": key, "values": {name: told.get(key) for name, told in settings.items()}}
        for key in differing
        if key.removeprefix("provenance: ") not in PLACES
    ]


def _bench(
    arms: Sequence[Arm],
    env: str | None,
    tasks: int | None,
    max_tokens: int | None,
    tries: Tries | None,
    watcher: Watcher | None,
    access: Access | None,
) -> Bench:
    recipe = next((arm.recipe for arm in arms if arm.recipe is not None), None)
    settings = recipe.eval if recipe is not None else EvaluationSettings()
    count = tasks or settings.tasks
    place, base = (env, Path()) if env is not None else _common_environment(arms, count)
    environment = load_environment(place, base)
    require_env(environment)
    assert environment.tasks is not None
    return Bench(
        environment,
        source_record(place, base),
        split_name(place)[1],
        environment.tasks.split("test")[:count],
        max_tokens or settings.max_tokens,
        settings.at_once,
        recipe.seed if recipe is not None else 0,
        tries or settings.samples,
        watcher or Watcher(),
        access or Access(),
    )


def _common_environment(arms: Sequence[Arm], count: int) -> tuple[str, Path]:
    """Name and base of the environment of the runs that have one. Raises ConfigError if none has, or if they
    differ in their tasks.
    """
    runs = {arm.place: arm for arm in arms if arm.recipe is not None and arm.recipe.env is not None}
    if not runs:
        environment_for(arms[0].target, None)  # refuses
    first, *others = map(_own_environment, runs.values())
    for place, other in zip(list(runs)[1:], others, strict=True):
        if _test_tasks(*other, count) != _test_tasks(*first, count):
            raise ConfigError(
                f"{next(iter(runs))} and {place} were measured on other tasks than each other: name the "
                "environment that all arms should play with --env"
            )
    return first


def _own_environment(arm: Arm) -> tuple[str, Path]:
    assert arm.recipe is not None
    assert arm.run is not None
    return arm.recipe.environment, arm.run.base


def _test_tasks(env: str, base: Path, count: int) -> list[tuple[str, dict[str, Any]]]:
    environment = load_environment(env, base)
    require_env(environment)
    assert environment.tasks is not None
    return [(task.id, dict(task.fields)) for task in environment.tasks.split("test")[:count]]


def _asked(bench: Bench, arm: Arm, task: Task, times: int, temperature: float) -> list[Outcome]:
    if arm.address is not None:
        return bench.repeated(arm, task, times, temperature)
    agent, environment = bench.agent(arm), arm.environment(bench.environment)
    sampling = Sampling(max_tokens=bench.max_tokens, temperature=temperature, stop_ids=agent.chat.stop_ids)
    outcomes: list[Outcome] = []
    while len(outcomes) < times:
        (group,) = collect(
            agent.engine,
            agent.chat,
            environment,
            [task],
            group=min(bench.at_once, times - len(outcomes)),
            sampling=sampling,
            seed=stable_hash(bench.seed, "repeated"),
            step=len(outcomes),
        )
        outcomes += [Outcome.of(outcome_record(trajectory)) for trajectory in group.trajectories]
        bench.watcher.evaluating(arm.name, len(outcomes), times)
    return outcomes


def _own_prices(arms: Sequence[Arm], prices: Prices | None, own: Mapping[str, Prices]) -> dict[str, Prices]:
    """The prices by arm. An hour of this machine is no price of another's. Raises ConfigError."""
    names = [arm.name for arm in arms]
    if unknown := [name for name in own if name not in names]:
        raise ConfigError(f"--price {unknown[0]}: there is no such arm; there are {', '.join(names)}")
    hourly = prices is not None and prices.hour is not None
    free = {arm.name: Prices() for arm in arms if hourly and arm.address is not None}
    return {**free, **own}


def _conditions(bench: Bench) -> dict[str, Any]:
    return {
        "environment": bench.environment.__name__,
        "split": "test",
        "max_tokens": bench.max_tokens,
        "seed": bench.seed,
        "at_once": bench.at_once,
    }


def _runs(arms: Sequence[Arm]) -> dict[str, RunFolder]:
    """The runs among the arms by the name of their folder, or by path where two names are equal."""
    places = list(dict.fromkeys(arm.place for arm in arms if arm.recipe is not None))
    ends = [Path(place).name for place in places]
    return {
        end if ends.count(end) == 1 else place: RunFolder(place)
        for place, end in zip(places, ends, strict=True)
    }


def _caution(arms: Sequence[Arm]) -> list[str]:
    trained = {arm.place for arm in arms if arm.recipe is not None and arm.part not in ("base", "few-shot")}
    if len(trained) < 2:
        return []
    return [
        "one run of each: the intervals cover which tasks were drawn, not the luck of a seed; "
        "train with several seeds before you prefer one recipe to another"
    ]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[str, Any] = {}
    for key, part in inner:
        found |= _flat(part, f"{path}.{key}" if path else str(key))
    return found if inner else {path: value}


def _sections(key: str) -> list[str]:
    """Of stages: `stages.0.kto.steps` lies in `stages.0` and in `stages.0.kto`."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(2, len(parts))] if parts[0] == "stages" else []


def _folded(told: dict[str, Any], section: str, inner: Sequence[str], value: Any) -> dict[str, Any]:
    """A single key for a whole section, where the section began."""
    return {
        section if key == inner[0] else key: value if key == inner[0] else old
        for key, old in told.items()
        if key == inner[0] or key not in inner
    }


def _chosen(run: RunFolder, section: str) -> dict[str, Any]:
    """What is not as by default in a section of the run's recipe, with dotted keys."""
    flat = _flat(run.recipe.model_dump(mode="json", exclude_defaults=True, by_alias=True))
    return {
        key.removeprefix(f"{section}."): value for key, value in flat.items() if key.startswith(f"{section}.")
    }


def _shown(value: Any) -> str:
    return yaml.safe_dump(value)
