"""What a comparison compares: `RUN`, `RUN:base`, `RUN:few-shot`, `RUN:STAGE`, `MODEL` or `MODEL:few-shot`,
where MODEL may be `api:MODEL@URL`.
"""

from __future__ import annotations

import filecmp
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from renshu.envs import Environment
from renshu.errors import ConfigError
from renshu.evaluation import few_shot_arm
from renshu.pipeline.endpoints import Address, is_api
from renshu.pipeline.finished import Target, find_target
from renshu.pipeline.recipe import EvaluationSettings, Recipe
from renshu.pipeline.run_folder import RunFolder, is_run
from renshu.train.checkpoint import WEIGHTS, is_complete

BEFORE = ("base", "few-shot")  # arms of the untrained model


@dataclass(frozen=True)
class Arm:
    """One arm. place: the run or model that it is of. part: base, few-shot, a stage or final; of a bare model
    `model` or few-shot.

    target: how to load it; None if its weights are not kept. address: of a model behind an endpoint.
    expected: the user did not name it, so it may be left out where it cannot be had.
    """

    name: str
    place: str
    part: str
    target: Target | None
    recipe: Recipe | None
    expected: bool = False
    address: Address | None = None

    @property
    def run(self) -> RunFolder | None:
        return None if self.recipe is None else RunFolder(self.place)

    def environment(self, environment: type[Environment]) -> type[Environment]:
        """The environment as this arm plays it: with solved dialogues in the prompt, or as it is.

        Raises ConfigError, or DataError, if few-shot has nothing to show.
        """
        if self.part != "few-shot":
            return environment
        settings = self.recipe.eval if self.recipe is not None else EvaluationSettings()
        seed = self.recipe.seed if self.recipe is not None else 0
        return few_shot_arm(environment, settings.shots, seed)


def find_arms(targets: Sequence[str]) -> list[Arm]:
    """The arms that are asked for; one run alone stands for all its arms. Raises ConfigError."""
    places = [split_target(target) for target in targets]
    if len(places) == 1 and places[0][1] is None and is_run(places[0][0]):
        ((run, _),) = places
        parts = (*BEFORE, *(stage.name for stage in RunFolder(run).recipe.stages), "final")
        return [replace(_arm(run, part), name=part, expected=True) for part in parts]
    arms = [_arm(place, part) for place, part in places]
    return [replace(arm, name=name) for arm, name in zip(arms, _names(arms), strict=True)]


def split_target(target: str) -> tuple[str, str | None]:
    """Place and part. A path that is there is a place, whatever colons it has."""
    place, colon, part = target.rpartition(":")
    if colon and not Path(target).exists() and (is_run(place) or part in BEFORE):
        return place, part
    return target, None


def _arm(place: str, part: str | None) -> Arm:
    if is_api(place):
        if part == "base":
            raise ConfigError(f"{place}:base: nobody trains it here; the model itself is {place}")
        return Arm("", place, part or "model", None, None, address=Address.read(place))
    if not is_run(place):
        if part == "base":
            raise ConfigError(f"{place}:base: {place} is no run; the model itself is {place}")
        return Arm("", place, part or "model", find_target(place), None)
    recipe, part = RunFolder(place).recipe, part or "final"
    known = [*BEFORE, *(stage.name for stage in recipe.stages), "final"]
    if part not in known:
        raise ConfigError(f"{place} has no arm {part!r}; it has {', '.join(known)}")
    return Arm("", place, part, _target(place, part, recipe), recipe)


def _target(run: str, part: str, recipe: Recipe) -> Target | None:
    base = RunFolder(run).base
    if part in BEFORE:
        return Target(recipe.model, base, recipe)  # an adapter that is untrained adds nothing
    if part == "final":
        try:
            return find_target(run)
        except ConfigError:
            return None
    weights = Path(run) / "checkpoints" / "stages" / part
    return Target(recipe.model, base, recipe, weights) if is_complete(weights) else None


def same_weights(arms: Sequence[Arm]) -> dict[str, str]:
    """The last stage of each `final` among the arms with whose weights it was kept, by names."""
    found = {}
    for final in arms:
        kept = Path(final.place) / "checkpoints" / "best" / WEIGHTS
        for arm in arms:
            stage = Path(final.place) / "checkpoints" / "stages" / arm.part / WEIGHTS
            if (final.part, arm.place) == ("final", final.place) and _equal(kept, stage):
                found[final.name] = arm.name
    return found


def _equal(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _names(arms: Sequence[Arm]) -> list[str]:
    """As short as they can be told apart. Raises ConfigError if one is asked for twice."""
    places = list(dict.fromkeys(arm.place for arm in arms))
    ends = [Address.read(place).model if is_api(place) else Path(place).name or place for place in places]
    labels = {place: end if ends.count(end) == 1 else place for place, end in zip(places, ends, strict=True)}
    names = [
        arm.part
        if len(places) == 1 and arm.recipe is not None
        else labels[arm.place] + ("" if arm.part in ("final", "model") else f":{arm.part}")
        for arm in arms
    ]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} is named twice: an arm is compared with others, not with itself")
    return names
