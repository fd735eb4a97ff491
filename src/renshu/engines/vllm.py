"""The vLLM engine: a server of vLLM samples in token ids, with log-probs, and is sent the weights.

Protocol: https://docs.vllm.ai, OpenAI-compatible server, `/v1/completions` with prompts of token ids.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import torch

from renshu.engines.driver import Driver, Request, TokenSession
from renshu.engines.modes import evaluating, model_context
from renshu.engines.openai_client import Endpoint, Patience, Refused, key_from
from renshu.engines.protocol import EngineStats, Generated, Sampling, Session, Watch
from renshu.engines.settings import EngineSettings
from renshu.engines.vllm_server import Mode, Turn, completion, mode_of, read_card, read_turn, require_exact
from renshu.engines.vllm_sync import AdapterSync, Sync, Transport, WeightSync
from renshu.errors import ConfigError, EngineError
from renshu.types import Segment

T = TypeVar("T")
PROBE = tuple(range(10, 26))  # ids of a prompt that every vocabulary has
PROBED = 8  # tokens
GAP = 0.25  # nats: between one model in two precisions far less, between two models far more


class VllmSession(TokenSession):
    """A path of tokens; every turn is one request."""

    def __init__(self, engine: VllmEngine, ids: Sequence[int], seed: int) -> None:
        super().__init__(engine, ids, seed)
        self._engine = engine
        self._generating = False

    def fork(self, seeds: Sequence[int]) -> list[Session]:
        """One session per seed. The server finds what they share in its prefix cache."""
        self.require_open()
        return [self._engine.open(self.ids, seed=seed) for seed in seeds]

    async def generate(self, sampling: Sampling, watch: Watch | None = None) -> Generated:
        """Sample one turn and append it. `watch` sees its tokens when all of them are there.

        Raises EngineError or InfrastructureError where the server fails, ConfigError where it cannot tell the
        log-probs that training needs.
        """
        self.require_open()
        if not self._engine.endpoint.is_open:
            raise EngineError("generate() only works in an episode: pass the coroutine to engine.run([...])")
        if self._generating:
            raise EngineError("this session is already generating: fork it to sample two turns at once")
        self._generating = True
        try:
            return await self._engine.turn(self, sampling, watch)
        finally:
            self._generating = False


class _HttpDriver(Driver[VllmSession]):
    """Episodes await their own requests: nobody is held up, and there is no step."""

    def __init__(self, engine: VllmEngine) -> None:
        super().__init__(_no_step, engine.stats)
        self._engine = engine

    async def _drive(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        try:
            async with self._engine.endpoint.open():
                await self._engine.get_ready()
                return await super()._drive(episodes)
        finally:
            for episode in episodes:  # those that never began; for the others it does nothing
                episode.close()


class VllmEngine:
    """Samples through a server of vLLM that serves the model which is trained.

    model: the one that is trained; its weights are sent before the first episode, and before the next one
    after `refresh`. transport: how all weights are sent (`sync: weights`); default: NCCL. The seed of a turn
    is drawn from its session's stream: equal seeds give equal turns as far as the server's batches do. Raises
    ConfigError or EngineError if there is no such server, or the model cannot be kept in step with it.
    """

    def __init__(self, model: Any, settings: EngineSettings, *, transport: Transport | None = None) -> None:
        self.model = model
        patience = Patience(at_once=settings.at_once, seconds=settings.seconds)
        url = settings.url.rstrip("/").removesuffix("/v1")
        self.endpoint = Endpoint(url, key=key_from(settings.api_key_env), patience=patience)
        self.stats = EngineStats()
        self.driver: Driver[VllmSession] = _HttpDriver(self)
        self.context = model_context(model)
        self.mode: Mode = "raw"
        self.name = ""  # of what is asked: the served model, or the adapter that was sent last
        self._sync = _sync_of(model, settings, transport)
        self._stale, self._compared, self._greeted = False, False, False
        self.driver.run([])  # meet the server now, not after an hour
        self._stale = True

    def open(self, ids: Sequence[int], *, seed: int) -> VllmSession:
        return VllmSession(self, ids, seed)

    def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return self.driver.run(episodes)

    def refresh(self) -> None:
        """The weights changed: they are sent to the server before the next episode."""
        self._stale = True

    async def get_ready(self) -> None:
        """Meet the server; bring it in step with the model; once, see whether the two agree."""
        if not self._greeted:
            served, context = await self.endpoint.get("/v1/models", read_card)
            self.name = served
            self.context = min(self.context, context or self.context)
            self.mode = await self._probe_mode()
            self._greeted = True
        if self._stale:
            self.name = await self._sync.push(self.endpoint, self.name)
            self._stale = False
            if not self._compared:
                await self._compare()
                self._compared = True

    async def turn(self, session: VllmSession, sampling: Sampling, watch: Watch | None) -> Generated:
        """One request: what the server sampled, appended to the session."""
        require_exact(self.mode, sampling)
        history = list(session.ids)
        budget = min(sampling.max_tokens, self.context - len(history))
        seed = session.random.getrandbits(63)
        if budget <= 0:
            return Generated(Segment((), sampled=True, logprobs=()), "length")
        turn = await self._ask(completion(self.name, history, sampling, budget, seed), history)
        self._count(turn, len(history))
        ids, logprobs = turn.ids, turn.logprobs
        if watch is not None:
            said = enumerate(zip(ids, logprobs, strict=True), start=1)
            end = next((n for n, (token, logprob) in said if watch(token, logprob)), len(ids))
            ids, logprobs = ids[:end], logprobs[:end]
        if turn.stopped and turn.ids[-1] not in sampling.stop_ids:
            raise EngineError(
                f"{self.endpoint.url} ended a turn after token {turn.ids[-1]}, which is no stop token: its "
                "generation config adds some; start it with --generation-config vllm"
            )
        session.ids.extend(ids)
        stopped = bool(ids) and ids[-1] in sampling.stop_ids
        return Generated(Segment(ids, sampled=True, logprobs=logprobs), "stop" if stopped else "length")

    async def _ask(self, body: dict[str, Any], prompt: Sequence[int]) -> Turn:
        try:
            turn = await self.endpoint.post("/v1/completions", body, read_turn)
        except Refused as refused:
            raise EngineError(f"{self.endpoint.url} refuses to sample: {refused.text}") from None
        if turn.prompt != tuple(prompt):
            raise EngineError(
                f"{self.endpoint.url} read another prompt than it was sent ({len(turn.prompt)} tokens, not "
                f"{len(prompt)}): it changes token ids"
            )
        if not turn.ids or not all(map(math.isfinite, turn.logprobs)):
            raise EngineError(f"{self.endpoint.url} sampled nothing, or log-probs that are no numbers")
        return turn

    def _count(self, turn: Turn, history: int) -> None:
        self.stats.count(history=history, sampled=len(turn.ids))
        self.stats.computed += history - (turn.cached or 0) + len(turn.ids) - 1
        self.stats.untold += history if turn.cached is None else 0

    async def _probe_mode(self) -> Mode:
        """Which log-probs the server tells: the two likeliest tokens are twice as far apart at half the heat
        where these are processed.
        """
        tops = []
        for temperature in (1.0, 0.5):
            sampling = Sampling(1, temperature)
            body = completion(self.name, PROBE, sampling, 1, seed=0) | {"logprobs": 4}
            tops.append((await self._ask(body, PROBE)).top)
        return mode_of(*tops)

    @torch.no_grad()
    async def _compare(self) -> None:
        """Raise EngineError if the server's log-probs are not the model's: it serves another one."""
        body = completion(self.name, PROBE, Sampling(PROBED, 0.0), PROBED, seed=0)
        turn = await self._ask(body, PROBE)
        device = self.model.get_input_embeddings().weight.device
        ids = torch.tensor([[*PROBE, *turn.ids]], device=device)
        with evaluating(self.model):
            logits = self.model(input_ids=ids, use_cache=False).logits[0, len(PROBE) - 1 : -1].float()
        own = torch.log_softmax(logits, -1).gather(1, ids[0, len(PROBE) :, None])[:, 0]
        gap = (own.cpu() - torch.tensor(turn.logprobs)).abs().mean().item()
        if not gap <= GAP:
            raise EngineError(
                f"{self.endpoint.url} and the model that is trained disagree by {gap:.3g} nats a token: does "
                "it serve the same model, and does --logprobs-mode name log-probs?"
            )


def _sync_of(model: Any, settings: EngineSettings, transport: Transport | None) -> Sync:
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise ConfigError("engine.kind: vllm needs the whole model in every process, and this one is sharded")
    adapted = hasattr(model, "peft_config")
    kind = settings.sync if settings.sync != "auto" else "adapter" if adapted else "weights"
    if kind == "adapter":
        if not adapted:
            raise ConfigError(
                "engine.sync: adapter, but the model has none: set model.adapter, or sync: weights"
            )
        return AdapterSync(model, settings.folder)
    if adapted:
        raise ConfigError("engine.sync: weights sends a model without an adapter: take sync: adapter")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise ConfigError("engine.sync: weights goes from one process: train an adapter, or with one process")
    return WeightSync(model, transport)


def _no_step(requests: list[Request[VllmSession]]) -> None:
    raise AssertionError("no request of this engine waits for a step")
