"""What a stage that does not sample learns from: rows, pairs or thumbs; one small function an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renshu.algorithms.dpo import DpoConfig
from renshu.algorithms.kto import KtoConfig
from renshu.algorithms.preferences import (
    Kept,
    PreferenceConfig,
    labelled_of,
    pairs_of,
    usable_labelled,
    usable_pairs,
)
from renshu.algorithms.rollouts import reward_of
from renshu.algorithms.sft import SftConfig
from renshu.data.dialogues import Dialogues, read_dialogues, reasons, rows_of
from renshu.data.preferences import read_labelled, read_pairs
from renshu.data.trajectories import Stored, read_groups
from renshu.envs import Environment, demonstrations
from renshu.errors import DataError
from renshu.pipeline.agent import Agent
from renshu.pipeline.origins import Origin, stored
from renshu.pipeline.recipe import Recipe, Stage
from renshu.seeding import stable_hash
from renshu.train.batches import usable
from renshu.types import Group, Row, Scored, Trajectory, row_of


@dataclass(frozen=True)
class Supply:
    """items: rows, pairs or thumbs. notes: a sentence for each thing that was left out or cut."""

    items: Sequence[Any] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Supplier:
    """Finds what the stages of a recipe learn from. base: the folder of its relative paths."""

    recipe: Recipe
    environment: type[Environment]
    agent: Agent
    base: Path

    def supply(self, stage: Stage, run: Path | None = None) -> Supply | None:
        """What a stage learns from; nothing where it samples. Raises DataError if too little can be used.

        run: the folder of the run that plays the recipe. Without it, the answer for a stage that reads what
        an earlier one has yet to sample is None.
        """
        if stage.samples:
            return Supply()
        if stage.trajectories is None:
            return _FROM_DATA[stage.algorithm](self, stage)
        origin = stored(self.recipe, stage, self.base)
        if origin is None:
            if run is None:
                return None
            origin = Origin(run, stage.trajectories)
        tools = [spec.schema for spec in self.environment().tools()]
        found = read_groups(origin.path, origin.stage, chat=self.agent.chat, tools=tools)
        supply = _FROM_GROUPS[stage.algorithm](self, stage, found)
        return Supply(supply.items, [f"trajectories: {note}" for note in found.notes] + [*supply.notes])

    @property
    def context(self) -> int:
        return self.agent.engine.context


def _rows(supplier: Supplier, stage: Stage) -> Supply:
    """From a file of dialogues, or the environment's demonstrations."""
    config = stage.sft
    assert config is not None
    if config.data is not None:
        dialogues = read_dialogues(supplier.base / config.data)
    else:
        dialogues = _demonstrated(supplier, stage, config)
    notes = []
    if config.data is None and len(dialogues.items) < config.demonstrations:
        shown, wanted = len(dialogues.items), config.demonstrations
        notes.append(f"demonstrations: {shown} instead of {wanted}, one for each training task")
    if dialogues.set_aside:
        notes.append(f"lines of {config.data} set aside ({reasons(dialogues.set_aside)})")
    supply = _cut(rows_of(dialogues, supplier.agent.chat), min(config.max_length, supplier.context))
    return Supply(supply.items, [*notes, *supply.notes])


def _demonstrated(supplier: Supplier, stage: Stage, config: SftConfig) -> Dialogues:
    environment = supplier.environment
    assert environment.tasks is not None  # the contract was checked
    tasks = environment.tasks.split("train")[: config.demonstrations]
    seed = stable_hash(supplier.recipe.seed, stage.name)
    shown = demonstrations(environment, tasks, careful=config.careful, seed=seed)
    return Dialogues([(demo.messages, demo.tools) for demo in shown])


def _cut(rows: Sequence[Row], length: int) -> Supply:
    found = usable(rows, length)
    notes = []
    if found.truncated:
        notes.append(f"rows cut at {length} tokens: {found.truncated} of {len(rows)}")
    if found.dropped:
        notes.append(f"rows without a token to train on, dropped: {found.dropped} of {len(rows)}")
    return Supply(found.rows, notes)


def _rows_of_groups(supplier: Supplier, stage: Stage, found: Stored) -> Supply:
    """The verified trajectories, each once."""
    config = stage.sft
    assert config is not None
    verified = [t for group in found.groups for t in _verified(group, config)]
    rows = [tuple(row_of(path) for path in trajectory.paths) for trajectory in verified]
    distinct = list({tuple((row.ids, row.trained) for row in own): own for own in rows}.values())
    total = found.exact + found.rendered
    wanted = "succeeded" if config.threshold is None else f"have a reward of {config.threshold:g} or more"
    if not distinct:
        raise DataError(f"stage {stage.name}: trajectories: none of {total} {wanted}: nothing to imitate")
    notes = [f"trajectories: {len(verified)} of {total} {wanted}"]
    if config.best_of_group:
        notes[0] += " and are the best of their group"
    if len(distinct) < len(verified):
        notes.append(f"trajectories that others equal, dropped: {len(verified) - len(distinct)}")
    trained = [row for own in distinct for row in own if any(row.trained)]
    supply = _cut(trained, min(config.max_length, supplier.context))
    return Supply(supply.items, [*notes, *supply.notes])


def _verified(group: Group, config: SftConfig) -> list[Trajectory]:
    good = []
    for trajectory in group.trajectories:
        score, reward = trajectory.score, reward_of(trajectory)
        if config.threshold is None:
            verified = isinstance(score, Scored) and score.success is True
        else:
            verified = reward is not None and reward >= config.threshold
        if verified:
            good.append((trajectory, reward or 0.0))
    if config.best_of_group and good:
        good = [max(good, key=lambda item: item[1])]
    return [trajectory for trajectory, _ in good]


def _pairs(supplier: Supplier, stage: Stage) -> Supply:
    assert stage.dpo is not None
    assert stage.dpo.data is not None
    read = read_pairs(supplier.base / stage.dpo.data, supplier.agent.chat)
    usable = usable_pairs(read.items, _short(stage.dpo, supplier))
    return _kept(stage, usable, _lines(stage.dpo, read.lines, read.set_aside))


def _thumbs(supplier: Supplier, stage: Stage) -> Supply:
    assert stage.kto is not None
    assert stage.kto.data is not None
    read = read_labelled(supplier.base / stage.kto.data, supplier.agent.chat)
    usable = usable_labelled(read.items, _short(stage.kto, supplier))
    return _both(_kept(stage, usable, _lines(stage.kto, read.lines, read.set_aside)))


def _pairs_of_groups(supplier: Supplier, stage: Stage, found: Stored) -> Supply:
    """The best and the worst of each group, or all that differ."""
    config = stage.dpo
    assert isinstance(config, DpoConfig)
    made = pairs_of(found.groups, choose=config.pairs, margin=config.margin)
    return _kept(stage, usable_pairs(made.items, _short(config, supplier)), _left_out(made.left_out))


def _thumbs_of_groups(supplier: Supplier, stage: Stage, found: Stored) -> Supply:
    """Every scored trajectory with a thumb by its success or reward."""
    config = stage.kto
    assert isinstance(config, KtoConfig)
    made = labelled_of(found.groups, threshold=config.threshold)
    return _both(
        _kept(stage, usable_labelled(made.items, _short(config, supplier)), _left_out(made.left_out))
    )


def _both(supply: Supply) -> Supply:
    """With a note where all thumbs point the same way."""
    ways = {item.good for item in supply.items}
    if len(ways) > 1:
        return supply
    note = f"all {len(supply.items)} thumbs point {'up' if True in ways else 'down'}: nothing is told apart"
    return Supply(supply.items, [*supply.notes, note])


def _short(config: PreferenceConfig, supplier: Supplier) -> PreferenceConfig:
    """The settings with rows no longer than the model can read."""
    return config.model_copy(update={"max_length": min(config.max_length, supplier.context)})


def _lines(config: PreferenceConfig, lines: int, set_aside: Mapping[str, int]) -> list[str]:
    count = sum(set_aside.values())
    return [f"{count} of {lines} lines of {config.data} set aside ({reasons(set_aside)})"] if count else []


def _left_out(counts: Mapping[str, int]) -> list[str]:
    some = {reason: count for reason, count in counts.items() if count and reason != "tied"}
    notes = [f"trajectories left out ({reasons(some)})"] if some else []
    if tied := counts.get("tied"):
        notes.append(f"groups left out, as their rewards differ too little: {tied}")
    return notes


def _kept(stage: Stage, kept: Kept[Any], notes: Sequence[str]) -> Supply:
    """What is left once equal sides and rows without a token to train on are gone."""
    left_out = {reason: count for reason, count in kept.left_out.items() if count}
    notes = [*notes, *([f"left out ({reasons(left_out)})"] if left_out else [])]
    if not kept.items:
        why = "; ".join(notes) or "the data is empty"
        raise DataError(f"stage {stage.name}: nothing to learn from: {why}")
    if kept.cut:
        notes.append(f"rows cut at their end: {kept.cut}")
    return Supply(kept.items, notes)


_FROM_DATA: Mapping[str, Callable[[Supplier, Stage], Supply]] = {"sft": _rows, "dpo": _pairs, "kto": _thumbs}
_FROM_GROUPS: Mapping[str, Callable[[Supplier, Stage, Stored], Supply]] = {
    "sft": _rows_of_groups,
    "dpo": _pairs_of_groups,
    "kto": _thumbs_of_groups,
}
