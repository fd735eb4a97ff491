"""The native engine: every token is computed once, and no episode waits for another."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from renshu.engines.driver import Driver, Request, TokenSession
from renshu.engines.feeding import Pass, plan
from renshu.engines.modes import evaluating, model_context
from renshu.engines.prefixes import Prefixes
from renshu.engines.protocol import EngineStats, Session
from renshu.engines.sampling import sample
from renshu.engines.tiers import Stretch
from renshu.errors import EngineError
from renshu.tree.support import refusal

T = TypeVar("T")


class NativeSession(TokenSession):
    """A path of tokens; `leaf` is the stretch that ends it, once the engine has placed it."""

    def __init__(self, engine: NativeEngine, ids: Sequence[int], seed: int) -> None:
        super().__init__(engine, ids, seed)
        self.leaf: Stretch | None = None
        self._engine = engine

    def fork(self, seeds: Sequence[int]) -> list[Session]:
        """One session per seed. They find the keys and values of this one when they first generate."""
        self.require_open()
        return [self._engine.open(self.ids, seed=seed) for seed in seeds]

    def close(self) -> None:
        super().close()
        self._engine.forget(self)


class NativeEngine:
    """Samples from a transformers model through Renshu's attention.

    model: a causal model that takes token trees (`renshu.tree.supports_tree`), bare or wrapped by PEFT.
    context: tokens a session may hold; the model's own limit if None. Raises EngineError for other models.
    """

    def __init__(self, model: Any, *, context: int | None = None) -> None:
        if (reason := refusal(model)) is not None:
            raise EngineError(f"the native engine cannot run this model: {reason}; use the reference engine")
        self.model = model
        self.context = context or model_context(model)
        self.stats = EngineStats()
        self.driver: Driver[NativeSession] = Driver(self._step, self.stats, lambda: evaluating(model))
        self._placed: dict[int, NativeSession] = {}  # sessions that hold a leaf
        self.refresh()

    def open(self, ids: Sequence[int], *, seed: int) -> NativeSession:
        return NativeSession(self, ids, seed)

    def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return self.driver.run(episodes)

    def refresh(self) -> None:
        """Forget all keys and values and free their memory; open sessions that go on are computed anew."""
        self._prefixes = Prefixes()
        self._pass = Pass(self.model, self._prefixes.tiers)
        for session in self._placed.values():
            session.leaf = None
        self._placed.clear()

    def forget(self, session: NativeSession) -> None:
        """Let go of a closed session's keys and values."""
        if self._placed.pop(session.number, None) is not None and session.leaf is not None:
            with torch.inference_mode():
                self._prefixes.release(session.leaf)
            session.leaf = None

    @torch.inference_mode()
    def _step(self, requests: list[Request[NativeSession]]) -> None:
        """Compute what the requests' paths still lack, then sample one token for each."""
        moved = [tier.compact() for tier in self._prefixes.tiers]
        if any(moved):
            self._pass.moved()
        self._place([request.session for request in requests])
        leaves = [self._leaf(request.session) for request in requests]
        while feeds := plan(leaves):
            self._pass.run(feeds)
            self.stats.computed += sum(len(feed.tokens) for feed in feeds)
        uniforms = [r.session.random.random() if r.sampling.temperature else 0.0 for r in requests]
        tokens, logprobs = sample(_logits(leaves), [r.sampling for r in requests], uniforms)
        for request, token, logprob in zip(requests, tokens.tolist(), logprobs.tolist(), strict=True):
            request.add(token, logprob)

    def _place(self, sessions: Sequence[NativeSession]) -> None:
        new = [session for session in sessions if session.leaf is None]
        for session, stem in zip(new, self._prefixes.place([session.ids for session in new]), strict=True):
            stem.users += 1
            session.leaf = stem
            self._placed[session.number] = session

    def _leaf(self, session: NativeSession) -> Stretch:
        """The stretch that ends the session; a row of its own once it has gone beyond its stem."""
        leaf = session.leaf
        assert leaf is not None
        if leaf.ids is not session.ids and len(leaf.ids) < len(session.ids):
            row = self._prefixes.row(leaf, session.ids)  # is the stem's user in the session's stead
            row.users, leaf.users = 1, leaf.users - 1
            session.leaf = leaf = row
        if (
            len(leaf.ids) - leaf.cached > 1
        ):  # foreign tokens: a session ahead of this one may have had the same
            self._prefixes.borrow(leaf)
        return leaf


def _logits(leaves: Sequence[Stretch]) -> Tensor:
    """The logits (B, vocab) after the last token of each leaf."""
    found = [leaf.logits for leaf in leaves if leaf.logits is not None]
    matrix = found[0][0]
    rows = [row for _, row in found]
    if any(other is not matrix for other, _ in found):
        return torch.stack([other[row] for other, row in found])
    return matrix if rows == list(range(len(matrix))) else matrix[rows]
