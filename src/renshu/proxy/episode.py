"""One episode of an agent that runs elsewhere: what it may still sample, and what it has."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, replace
from typing import Literal

from renshu.chat import ChatFormat
from renshu.engines import Engine, Generated, Sampling
from renshu.pipeline.keeper import Mark
from renshu.proxy.recording import Recording
from renshu.rollout import Limits
from renshu.rollout.episode import UNLIMITED
from renshu.seeding import stable_hash
from renshu.serve.answer import Answerer
from renshu.serve.paths import Opening
from renshu.serve.refusals import Refusal
from renshu.serve.request import ChatRequest
from renshu.types import Message, Score, Scored, Stop, Task, Trajectory, Unscored

Split = Literal["train", "dev", "test"]
NO_TOKENS = "no_tokens: the agent asked this endpoint nothing; does its base_url point here?"


@dataclass(frozen=True)
class Rules:
    """How episodes are sampled, whatever their agents ask for. sampling.max_tokens: of the whole episode."""

    sampling: Sampling
    limits: Limits = UNLIMITED


class Episode:
    """mark: of the weights with which it began. stop: why it ends, should it end now. running: requests that
    are being answered. seen: when it was last heard of, by `monotonic`. score: None while it is open.
    """

    def __init__(
        self, task: str, split: Split, mark: Mark, rules: Rules, seed: int, chat: ChatFormat, engine: Engine
    ) -> None:
        self.id = secrets.token_hex(8)
        self.task, self.split, self.mark, self.rules, self.seed = task, split, mark, rules, seed
        self.answerer = Answerer(chat, engine, self._record)
        self.recording = Recording()
        self.stop = Stop.ANSWERED
        self.score: Score | None = None
        self.running = self.sampled = self._asked = 0
        self.began = self.seen = time.monotonic()
        self._guard = threading.Lock()

    def end(self, score: Score, stop: Stop | None = None) -> None:
        """It is over; what is still being sampled for it is not recorded."""
        with self._guard:
            self.score, self.stop = score, stop or self.stop
            if not self.recording and isinstance(score, Scored):
                self.score = Unscored(NO_TOKENS)

    def trajectory(self) -> Trajectory:
        """What was recorded, once it is over."""
        assert self.score is not None
        return self.recording.trajectory(Task(self.task), self.stop, self.score)

    def ruled(self, request: ChatRequest) -> ChatRequest:
        """The request as it is carried out: by the rules, within what the episode has left.

        Raises Refusal for several answers, and for an episode that has used up what it may.
        """
        if request.choices > 1:
            text = "n: one answer a request: what an agent does not use would be rewarded with what it uses"
            raise Refusal(400, text, param="n")
        self._require_budget()
        self._asked += 1
        rules = self.rules.sampling
        most = min(request.sampling.max_tokens, rules.max_tokens - self.sampled)
        return replace(
            request, sampling=replace(rules, max_tokens=most), seed=stable_hash(self.seed, self._asked)
        )

    def ignored(self, request: ChatRequest) -> list[str]:
        """Settings that the request named and that the rules overrule."""
        rules = self.rules.sampling
        return sorted(
            name
            for name in request.sampled_by
            if name == "seed" or getattr(request.sampling, name) != getattr(rules, name)
        )

    def _require_budget(self) -> None:
        limits, most = self.rules.limits, self.rules.sampling.max_tokens
        if self.sampled >= most:
            self.stop, text = Stop.LENGTH, f"it may sample {most} tokens, and has"
        elif limits.turns is not None and self.recording.turns >= limits.turns:
            self.stop, text = Stop.TURNS, f"it may have {limits.turns} answers, and had them"
        elif limits.seconds is not None and time.monotonic() - self.began > limits.seconds:
            self.stop, text = Stop.TIMEOUT, f"its {limits.seconds:g} seconds are over"
        else:
            return
        raise Refusal(
            400, f"episode {self.id} has come to its end: {text}; post its reward", code="episode_over"
        )

    def _record(self, opening: Opening, generated: Generated, said: Message) -> None:
        with self._guard:
            if self.score is not None:
                return
            self.recording.add(opening, generated, said)
            self.sampled += len(generated.segment.ids)
            cut = generated.finish == "length" and self.sampled >= self.rules.sampling.max_tokens
            self.stop = Stop.LENGTH if cut else Stop.ANSWERED
