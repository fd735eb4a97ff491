"""The reference engine: transformers' own `generate`, for every model; each turn is computed from scratch."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from renshu.engines.driver import Driver, Request, TokenSession
from renshu.engines.modes import evaluating, model_context
from renshu.engines.protocol import EngineStats, Session
from renshu.engines.sampling import sample

T = TypeVar("T")


class ReferenceSession(TokenSession):
    """A path of tokens, and nothing else."""

    def __init__(self, engine: ReferenceEngine, ids: Sequence[int], seed: int) -> None:
        super().__init__(engine, ids, seed)
        self._engine = engine

    def fork(self, seeds: Sequence[int]) -> list[Session]:
        """One session per seed."""
        self.require_open()
        return [self._engine.open(self.ids, seed=seed) for seed in seeds]


class ReferenceEngine:
    """Samples from any causal model of transformers, all waiting sessions in one left-padded batch.

    context: tokens a session may hold; the model's own limit if None. rows: largest batch of `generate`.
    """

    def __init__(self, model: Any, *, context: int | None = None, rows: int = 64) -> None:
        self.model = model
        self.context = context or model_context(model)
        self.stats = EngineStats()
        self.driver: Driver[ReferenceSession] = Driver(self._step, self.stats, self._around)
        self._rows = rows

    def open(self, ids: Sequence[int], *, seed: int) -> ReferenceSession:
        return ReferenceSession(self, ids, seed)

    def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return self.driver.run(episodes)

    def refresh(self) -> None:
        """Nothing is cached."""

    @contextmanager
    def _around(self) -> Iterator[None]:
        """Without dropout, and without the sampling values that came with the checkpoint.

        `generate` fills whatever its caller left at None from `model.generation_config`, so that a repetition
        penalty or a top-k chosen for chat would silently bend what we train on.
        """
        from transformers import GenerationConfig

        model = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        held = model.generation_config
        model.generation_config = GenerationConfig()
        try:
            with evaluating(self.model):
                yield
        finally:
            model.generation_config = held

    @torch.inference_mode()
    def _step(self, requests: list[Request[ReferenceSession]]) -> None:
        """Sample the whole turn of the first waiting sessions."""
        from transformers import GenerationConfig

        requests = requests[: self._rows]
        longest = max(request.history for request in requests)
        device = self.model.get_input_embeddings().weight.device
        ids = torch.zeros(len(requests), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - request.history :] = torch.tensor(request.session.ids)
            mask[row, longest - request.history :] = 1
        chooser = Chooser(requests)
        self.model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=max(request.budget for request in requests),
                pad_token_id=0,
            ),
            logits_processor=[chooser],
            stopping_criteria=[chooser.stop],
        )
        self.stats.computed += sum(r.history + len(r.logprobs) - 1 for r in requests)


class Chooser:
    """Our own sampler inside `generate`: a logits processor that leaves only the chosen token."""

    def __init__(self, requests: Sequence[Request[ReferenceSession]]) -> None:
        self._requests = requests

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """ids: (B, length). scores: (B, vocab) logits. Returns scores that greedy search must obey."""
        waiting = [row for row, request in enumerate(self._requests) if not request.done]
        samplings = [self._requests[row].sampling for row in waiting]
        uniforms = [
            self._requests[row].session.random.random() if sampling.temperature else 0.0
            for row, sampling in zip(waiting, samplings, strict=True)
        ]
        tokens, logprobs = sample(scores[waiting], samplings, uniforms)
        for row, token, logprob in zip(waiting, tokens.tolist(), logprobs.tolist(), strict=True):
            self._requests[row].add(token, logprob)
        chosen = torch.tensor([request.session.ids[-1] for request in self._requests], device=scores.device)
        return torch.full_like(scores, float("-inf")).scatter(1, chosen[:, None], 0.0)

    def stop(self, ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        """Which rows (B,) are done: `generate` ends when all of them are."""
        return torch.tensor([request.done for request in self._requests], device=ids.device)
