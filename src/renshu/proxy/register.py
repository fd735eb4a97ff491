"""All episodes of a run: what three threads share, under one lock.

The server's thread begins and ends episodes, the engine's records turns, the main one takes whole steps.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from renshu.algorithms import PracticeConfig
from renshu.chat import ChatFormat
from renshu.engines import Engine
from renshu.pipeline.keeper import Mark
from renshu.proxy.episode import Episode, Rules, Split
from renshu.proxy.groups import Groups
from renshu.seeding import stable_hash
from renshu.serve.refusals import Refusal
from renshu.types import Group, Score, Scored, Stop, Unscored

Phase = Literal["starting", "practice", "updating", "practised", "final", "over"]
TICK = 0.2  # seconds between two looks at the clock while nothing happens
MOST_OPEN = 4096  # episodes

Evaluated = Callable[[Episode], None]


class Over(Exception):
    """The agent's program asked for the end."""


class Register:
    """patience: seconds without a request or a reward after which an episode counts as abandoned. evaluated:
    told every episode of dev and test when it ends. updates: made so far, over all stages.
    """

    def __init__(
        self,
        chat: ChatFormat,
        engine: Engine,
        greedy: Rules,
        *,
        seed: int,
        patience: float,
        evaluated: Evaluated,
    ) -> None:
        self.chat, self.engine = chat, engine
        self._greedy, self._seed = greedy, seed
        self._patience, self._evaluated = patience, evaluated
        self._changed = threading.Condition()
        self._open: dict[str, Episode] = {}
        self._over: dict[str, str] = {}  # why an episode is over
        self._groups = Groups()
        self._looked: list[bool] = []  # success of dev episodes since the last update
        self._ignored: Counter[str] = Counter()
        self._paused = 0.0  # when the update began, by `monotonic`
        self._stage: tuple[str, PracticeConfig, Rules] | None = None
        self._train_asked = self._choose_asked = self.finish_asked = False
        self.phase: Phase = "starting"
        self.mark = Mark("", 0)
        self.updates = 0
        self.outcome: Mapping[str, Any] | None = None  # of the run, once it is over

    # The main thread

    def begin_stage(self, name: str, config: PracticeConfig, rules: Rules, step: int) -> None:
        """Take episodes of this stage, at so many of its steps; those of the stage before are abandoned."""
        with self._changed:
            self._abandon(self._groups.clear(), "the stage it belonged to is over")
            self._stage = name, config, rules
            self.phase = "practice"
            if step:
                self.mark = Mark(name, step)
            self._changed.notify_all()

    def gather(self, check: Callable[[], None]) -> list[Group]:
        """Wait for the groups of a step: as many as it takes, or those there are if POST /train asks for it.

        Episodes of dev and test that are open are waited for: they are of one model. Raises Over, and what
        `check` raises, which is called now and then.
        """
        assert self._stage is not None
        config = self._stage[1]
        with self._changed:
            while True:
                check()
                if self.finish_asked:
                    raise Over
                groups = None if self._measuring else self._ready(config)
                if groups is not None:
                    self.phase, self._paused = "updating", time.monotonic()
                    return groups
                self._tick(check)

    def _ready(self, config: PracticeConfig) -> list[Group] | None:
        groups = self._groups.take(config.tasks_per_step, config.group)
        return self._groups.take_ended() if groups is None and self._train_asked else groups

    def updated(self, step: int, *, last: bool) -> dict[str, float]:
        """An update was made; returns what was counted since the one before. last: of its stage, so that
        episodes wait for the next one.
        """
        with self._changed:
            assert self._stage is not None
            self.mark = Mark(self._stage[0], step)
            self.phase = "updating" if last else "practice"
            self.updates += 1
            self._train_asked = False
            counts = {f"ignored/{name}": float(count) for name, count in sorted(self._ignored.items())}
            self._ignored.clear()
            pause = time.monotonic() - self._paused
            for episode in self._open.values():  # nobody could be heard of
                episode.began += pause
                episode.seen = time.monotonic()
            self._changed.notify_all()
            return counts

    def look(self) -> list[bool]:
        """Success of the dev episodes that ended since the last update."""
        with self._changed:
            looked, self._looked = self._looked, []
            return looked

    def practised(self) -> None:
        """No stage is left: no more episodes to practise on, until `final` those of dev."""
        with self._changed:
            self._abandon(self._groups.clear(), "practice is over")
            self._stage, self.phase = None, "practised"
            self._changed.notify_all()

    def wait_for_choice(self, check: Callable[[], None]) -> None:
        """Wait until the best weights are wanted: by an episode of test, or for the end."""
        self._wait(check, lambda: (self._choose_asked or self.finish_asked) and not self._measuring)

    def final(self, mark: Mark) -> None:
        """The best weights are in place."""
        with self._changed:
            self.mark, self.phase = mark, "final"
            self._changed.notify_all()

    def wait_for_end(self, check: Callable[[], None]) -> None:
        self._wait(check, lambda: self.finish_asked)

    def close(self, outcome: Mapping[str, Any]) -> None:
        """The run is over, one way or the other: `outcome` is told to whoever waits for it."""
        with self._changed:
            self._abandon([*self._open.values()], "the run is over")
            self.outcome, self.phase = outcome, "over"
            self._changed.notify_all()

    # The server's thread

    def must_wait(self, split: Split) -> bool:
        """Whether an episode cannot begin just now: its weights are not there yet."""
        with self._changed:
            if self.phase == "practised" and split == "test":
                self._choose_asked = True
                self._changed.notify_all()
                return True
            return self.phase in ("starting", "updating") or (split != "train" and self._due)

    def begin(self, task: str, split: Split) -> Episode:
        """A new episode. Raises Refusal: 409 if it comes too late, 503 if too many are open."""
        with self._changed:
            self._require_place(split)
            slot = self._groups.waiting(task)
            seed = stable_hash(self._seed, self.updates, split, task, slot)
            practises = split == "train" and self._stage is not None
            rules = self._stage[2] if self._stage is not None and practises else self._greedy
            episode = Episode(task, split, self.mark, rules, seed, self.chat, self.engine)
            if self._stage is not None and practises:
                self._groups.add(episode, self._stage[1].group)
            self._open[episode.id] = episode
            return episode

    def find(self, identity: str) -> Episode:
        """An open episode. Raises Refusal: 409 if it is over, 404 if there is none."""
        with self._changed:
            if identity in self._over:
                raise Refusal(409, f"episode {identity} is over: {self._over[identity]}")
            if identity not in self._open:
                raise Refusal(
                    404,
                    f"there is no episode {identity[:40]!r}: begin one with POST /episodes (those that were "
                    "open when the proxy was started again are lost)",
                )
            return self._open[identity]

    def end(self, identity: str, score: Score) -> Score:
        """End an open episode; returns the score that counts, unknown where there is nothing to train on.

        Raises Refusal, as `find` does.
        """
        with self._changed:
            episode = self.find(identity)
            self._end(episode, score, "its reward was posted")
            assert episode.score is not None
            return episode.score

    def asks(self, episode: Episode, ignored: Sequence[str]) -> None:
        """A request of an episode is to be answered; ignored: what it named and the rules overrule."""
        with self._changed:
            episode.running += 1
            self._ignored.update(ignored)

    def answered(self, episode: Episode) -> None:
        """It was, or its client left."""
        with self._changed:
            episode.running -= 1
            episode.seen = time.monotonic()

    def train(self, update: int) -> None:
        """Make this update, counted from 1, with what is there. Raises Refusal: 409 if nothing is."""
        with self._changed:
            if update <= self.updates or self.phase == "updating":
                return
            if self._stage is None:
                raise Refusal(409, "all steps of the recipe are made")
            if update > self.updates + 1:
                raise Refusal(409, f"update {update} is not the next one: {self.updates} are made")
            if not self._groups.ended:
                raise Refusal(409, "there is nothing to learn from: no episode of train has ended since")
            self._train_asked = True
            self._changed.notify_all()

    def finish(self) -> None:
        """No more episodes: end the run, whatever steps are left."""
        with self._changed:
            self.finish_asked = True
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """Where the run stands."""
        with self._changed:
            stage = None
            if self._stage is not None:
                name, config, _ = self._stage
                step = self.mark.step if self.mark.stage == name else 0
                counts = config.model_dump(include={"steps", "tasks_per_step", "group"})
                stage = {"name": name, "step": step, **counts}
            episodes = {"open": len(self._open), "waiting": self._groups.ended}
            return {"phase": self.phase, "updates": self.updates, "stage": stage, "episodes": episodes}

    # Under the lock

    def _wait(self, check: Callable[[], None], over: Callable[[], bool]) -> None:
        with self._changed:
            while not over():
                self._tick(check)

    def _tick(self, check: Callable[[], None]) -> None:
        check()
        late = time.monotonic() - self._patience
        silent = [e for e in self._open.values() if not e.running and e.seen < late]
        self._abandon(silent, f"nothing was heard of it for {self._patience:g} seconds")
        if not silent:
            self._changed.wait(TICK)

    def _abandon(self, episodes: Sequence[Episode], why: str) -> None:
        for episode in episodes:
            if episode.score is None:
                self._end(episode, Unscored(f"abandoned: {why}"), why, Stop.TIMEOUT)

    def _end(self, episode: Episode, score: Score, why: str, stop: Stop | None = None) -> None:
        episode.end(score, stop)
        del self._open[episode.id]
        self._over[episode.id] = why
        if episode.split != "train":
            self._evaluated(episode)
        if episode.split == "dev" and isinstance(episode.score, Scored):
            self._looked.append(bool(episode.score.success))
        self._changed.notify_all()

    @property
    def _due(self) -> bool:
        """Whether an update is going to be made, as soon as nothing is measured any more."""
        if self._stage is None:
            return False
        config = self._stage[1]
        return self._train_asked or self._groups.complete(config.group) >= config.tasks_per_step

    @property
    def _measuring(self) -> bool:
        return any(episode.split != "train" for episode in self._open.values())

    def _require_place(self, split: Split) -> None:
        """Raises Refusal if no episode of this split can begin."""
        if self.phase == "over":
            raise Refusal(409, "the run is over")
        if split == "train" and self._stage is None:
            raise Refusal(409, "all steps of the recipe are made: only episodes of dev and test can begin")
        if split == "dev" and self.phase == "final":
            raise Refusal(409, "the best weights are chosen: only episodes of test can begin")
        if len(self._open) >= MOST_OPEN:
            raise Refusal(503, f"{MOST_OPEN} episodes are open: end some first", code="overloaded")
