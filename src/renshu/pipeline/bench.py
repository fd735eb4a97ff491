"""Measuring arms on one set of tasks: from the files of a run where these tell the same, else by playing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from renshu.envs import Environment, Interaction
from renshu.errors import ConfigError, DataError, InfrastructureError
from renshu.evaluation import Outcome, Result, Tries, evaluate, read_result
from renshu.evaluation.endpoint import Kept, evaluate_endpoint, repeat_endpoint
from renshu.evaluation.records import message_record
from renshu.jsonl import read_rows
from renshu.models.adapters import fingerprint
from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.arms import BEFORE, Arm
from renshu.pipeline.endpoints import Access
from renshu.pipeline.environments import split_name
from renshu.pipeline.preflight import require_room
from renshu.pipeline.watch import Watcher
from renshu.types import Task


@dataclass
class Bench:
    """The tasks and settings that all arms of a comparison share. access: to arms behind an endpoint.

    sources: of the environment, as `source_record` has them; class_name: as it was named, "" if it was not.
    timed: seconds are wanted, which no file has: arms are played wherever they can be. notes: what a reader
    should know, as it comes up.
    """

    environment: type[Environment]
    sources: Mapping[str, str]
    class_name: str
    tasks: Sequence[Task]
    max_tokens: int
    at_once: int
    seed: int
    tries: Tries | None
    watcher: Watcher
    access: Access = field(default_factory=Access)
    timed: bool = False
    notes: list[str] = field(default_factory=list)
    _agent: tuple[Arm, Agent] | None = None

    def result(self, arm: Arm) -> Result:
        """The arm's outcomes. Raises a RenshuError if they are neither on file nor to be had anew."""
        if arm.address is not None:
            return self._behind_endpoint(arm)
        if self.timed and arm.target is not None:
            return self._measured(arm)
        refusal, logged = self._logged(arm, self.tries)
        if logged is not None:
            return logged
        if arm.target is not None:
            return self._measured(arm)
        if self.tries is not None and (logged := self._logged(arm, None)[1]) is not None:
            self.notes.append(f"{arm.name} has no samples: its weights are not kept")
            return logged
        raise ConfigError(
            f"{arm.name} cannot be measured, since its weights are not kept, nor read from the run: {refusal}"
        )

    def agent(self, arm: Arm) -> Agent:
        """The arm's model, loaded once for arms in a row that share it. Raises a RenshuError."""
        assert arm.target is not None
        if self._agent is not None and self._agent[0].target == arm.target:
            return self._agent[1]
        self._agent = None  # one model at a time in memory
        agent = build_agent(arm.target.model, arm.target.base, arm.target.weights)
        if arm.part == "final" and arm.target.note:
            self.notes.append(f"{arm.name}: {arm.target.note}")
        if arm.part in BEFORE and arm.run is not None:
            began = arm.run.provenance.get("weights")
            now = fingerprint(agent.loaded.model)
            if began and now and began != now:
                raise ConfigError(
                    f"{arm.name}: the model {arm.target.model.name} is no longer the one that {arm.place} "
                    "began with, so what it was before training cannot be measured"
                )
        self._agent = arm, agent
        return agent

    def _behind_endpoint(self, arm: Arm) -> Result:
        assert arm.address is not None
        model, kept = self.access.model(arm.address), self._kept(arm)
        found = evaluate_endpoint(
            model,
            arm.environment(self.environment),
            self.tasks,
            arm=arm.name,
            max_tokens=self.max_tokens,
            tries=self.tries,
            kept=kept,
            progress=partial(self.watcher.evaluating, arm.name),
        )
        self.notes += [f"{arm.name}: {note}" for note in model.notes]
        if found.known:
            self.notes.append(
                f"{arm.name}: {found.known} episodes were read from {kept.path}; remove it to ask again"
            )
        self.watcher.evaluated(found.result.summary())
        return found.result

    def repeated(self, arm: Arm, task: Task, times: int, temperature: float) -> list[Outcome]:
        """One task, played often by an arm behind an endpoint."""
        assert arm.address is not None
        model = self.access.model(arm.address)
        outcomes = repeat_endpoint(
            model,
            arm.environment(self.environment),
            task,
            times=times,
            temperature=temperature,
            max_tokens=self.max_tokens,
            kept=self._kept(arm),
            progress=lambda done: self.watcher.evaluating(arm.name, done, times),
        )
        self.notes += [f"{arm.name}: {note}" for note in model.notes]
        return outcomes

    def _kept(self, arm: Arm) -> Kept:
        assert arm.address is not None
        return self.access.kept(
            arm.address, self.sources, self.class_name or self.environment.__name__, self.max_tokens
        )

    def _measured(self, arm: Arm) -> Result:
        agent, environment = self.agent(arm), arm.environment(self.environment)
        require_room(environment, agent.chat, agent.engine.context)
        result = evaluate(
            agent.engine,
            agent.chat,
            environment,
            self.tasks,
            arm=arm.name,
            max_tokens=self.max_tokens,
            at_once=self.at_once,
            seed=self.seed,
            tries=self.tries,
            progress=partial(self.watcher.evaluating, arm.name),
        )
        self.watcher.evaluated(result.summary())
        return result

    def _logged(self, arm: Arm, tries: Tries | None) -> tuple[str, Result | None]:
        """What the run has on file if it tells the same as measuring would; else why it does not."""
        if arm.recipe is None or arm.run is None:
            return "a model has no files of an evaluation", None
        log = arm.run.evaluation(arm.part)
        settings = arm.recipe.eval
        if settings.max_tokens != self.max_tokens:
            return f"it was measured with max_tokens {settings.max_tokens}, not {self.max_tokens}", None
        if tries is not None and settings.samples != tries:
            return f"it has no {tries.k} samples of each task at temperature {tries.temperature:g}", None
        if not self._same_environment(arm.run.provenance):
            return "the environment is not the one of its run, or has changed since", None
        try:
            if other := self._other_tasks(arm, log):
                return other, None
            return "", read_result(arm.name, log, tries).first(len(self.tasks))
        except DataError as error:
            return str(error), None

    def _same_environment(self, record: Mapping[str, Any]) -> bool:
        """Whether a run with this provenance was played in this environment, as it is now."""
        sources = {key: value for key, value in record.items() if key.startswith("source ")}
        named = {self.class_name, split_name(str(record.get("environment", "")))[1]} - {""}
        return sources == self.sources and len(named) < 2

    def _other_tasks(self, arm: Arm, log: Path) -> str | None:
        """Why the episodes on file are not of these tasks, or None if they are."""
        records = read_rows(log)
        if len(records) < len(self.tasks):
            return f"{log.name} has {len(records)} of {len(self.tasks)} tasks"
        environment = arm.environment(self.environment)
        for record, task in zip(records, self.tasks, strict=False):
            if record["task"] != task.id:
                return f"it was measured on other tasks ({record['task']}, not {task.id})"
            try:
                messages = Interaction(environment(), task).messages
            except InfrastructureError:
                continue  # it is unscored, then as now
            opening = json.loads(json.dumps([message_record(m) for m in messages], default=str))
            if record["messages"] and record["messages"][: len(opening)] != opening:
                return f"task {task.id} has changed since"
        return None
