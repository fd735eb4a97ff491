"""The one training loop: batch → no-grad extras → credit → loss → step → observe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Generic

import torch
from torch import Tensor, nn

from renshu.algorithms import Algorithm, Credit, Extras, LossInputs, Mean
from renshu.algorithms.protocol import BatchT, Need
from renshu.errors import TrainingError
from renshu.models.critic import Critic
from renshu.models.load import disable_dropout
from renshu.models.reference import Reference
from renshu.models.sharded import whole, whole_tensor
from renshu.seeding import stable_hash
from renshu.train import optimiser as optimisers
from renshu.train.extras import Says, ask
from renshu.train.minibatch import MicroBatch, Minibatch, learning, minibatches
from renshu.train.observe import Finding, Observer, Snapshot
from renshu.train.processes import ALONE, Processes
from renshu.train.tally import Tally
from renshu.tree import TokenLogprobs, supports_tree, token_logprobs
from renshu.tree.packing import Layout, deal
from renshu.types import Row

SAMPLER_GAP = 0.05  # nats: rounding in bfloat16 stays below, stale weights or another temperature do not
_NEEDED = {"reference": "a reference model", "values": "a critic"}
MAX_BAD_UPDATES = 3  # consecutive updates without a finite gradient


class Trainer(Generic[BatchT]):
    """A model being trained by one algorithm for `steps` steps.

    reference: log-probs of the reference model; critic: values of tokens, trained along. processes: those
    that train it together: each does its share of the passes, and what is made of them is the same in all.
    TrainingError where the algorithm needs a model that is not given.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm[BatchT],
        *,
        steps: int,
        seed: int = 0,
        reference: Reference | None = None,
        critic: Critic | None = None,
        processes: Processes = ALONE,
    ) -> None:
        for need, given in (("reference", reference), ("values", critic)):
            if need in algorithm.needs and given is None:
                raise TrainingError(f"{algorithm.name} needs {_NEEDED[need]}, and none was given")
        if "rollouts" in algorithm.needs:
            disable_dropout(model)
        self.model, self.algorithm, self.steps, self.seed = model, algorithm, steps, seed
        self.reference = reference if "reference" in algorithm.needs else None
        self.critic = critic if "values" in algorithm.needs else None
        self.layout: Layout = "tree" if supports_tree(model) else "padded"
        self.processes, self.wrapped = processes, processes.wrap(model)
        self.trained = optimisers.trainable(model, self.critic)
        self.optimiser = optimisers.build(self.trained, algorithm.config)
        self.bad_updates = 0

    def step(self, step: int, batch: BatchT) -> tuple[dict[str, float], list[Finding]]:
        """Learn from one batch; `step` is 0-based. Returns metrics and findings.

        Raises TrainingError at the third consecutive update without a finite gradient; none of them is made.
        """
        torch.manual_seed(stable_hash("train", self.seed, step))  # dropout, the same after a resume
        rate = optimisers.learning_rate(self.algorithm.config, step, self.steps)
        optimisers.set_rate(self.optimiser, rate)
        tally = Tally()
        self._train(True)
        credit, extras = self._credit(batch, tally)
        parts = minibatches(
            credit,
            self.algorithm.minibatches,
            extras=extras,
            skip_zero=self.algorithm.skip_zero,
            deal=self._deal,
            rank=self.processes.rank,
            device=next(iter(self.trained.values())).device,
        )
        for iteration in range(self.algorithm.iterations):
            for part in parts:
                on_policy = iteration == 0 and part is parts[0]
                self._update(part, credit.reference_point, tally, on_policy=on_policy)
        self._train(False)
        tally = Tally.of_all(self.processes.each(lambda: tally))
        metrics = {"learning_rate": rate, **tally.metrics(), **credit.metrics}
        metrics["rows_skipped"] = sum(part.skipped for part in parts)
        return metrics, _findings(credit, metrics)

    def _train(self, mode: bool) -> None:
        for module in (self.model, self.critic):
            if module is not None:
                module.train(mode)

    def _deal(self, rows: Sequence[Row]) -> list[list[list[int]]]:
        """The micro-batches of each process."""
        budget, whole_groups = self.algorithm.config.token_budget, self.algorithm.whole_groups
        return deal(rows, self.processes.size, budget, self.layout, whole_groups=whole_groups)

    def _credit(self, batch: BatchT, tally: Tally) -> tuple[Credit, Extras]:
        """What the batch has to teach, with all that models have to say for it."""
        credit = self.algorithm.credit(batch)
        needs = self.algorithm.needs
        wanted = [True] * len(credit.rows)
        if self.algorithm.estimate is None:
            wanted = learning(credit, skip_zero=self.algorithm.skip_zero)
        extras = self._extras(credit.rows, wanted, needs, tally)
        if self.algorithm.estimate is not None:
            probed: frozenset[Need] = needs - {"values"} | {"policy"}
            probes = self._extras(credit.probes, [True] * len(credit.probes), probed, tally)
            credit = self.algorithm.estimate(credit, extras, probes)
        return credit, extras

    def _extras(
        self, rows: Sequence[Row], wanted: Sequence[bool], needs: frozenset[Need], tally: Tally
    ) -> Extras:
        models: dict[str, Says] = {}
        if "policy" in needs:
            models["policy"] = lambda rows: self._forward(rows, tally).logprobs
        if "reference" in needs and (reference := self.reference) is not None:
            models["reference"] = lambda rows: reference(rows, self.algorithm.temperature)
        if "values" in needs and (critic := self.critic) is not None:
            models["values"] = lambda rows: critic(
                rows, self._forward(rows, tally) if critic.shares_trunk else None
            )
        with whole(self.model):
            return ask(models, rows, wanted, self._deal, self.processes)

    def _forward(self, rows: Sequence[Row], tally: Tally) -> TokenLogprobs:
        forward = token_logprobs(
            self.wrapped if torch.is_grad_enabled() else self.model,
            rows,
            temperature=self.algorithm.temperature,
            layout=self.layout,
            entropy="entropy" in self.algorithm.needs,
            hidden=self.critic is not None and self.critic.shares_trunk,
        )
        tally.add({}, tokens_computed=forward.computed, tokens_naive=forward.naive)
        return forward

    def _update(self, part: Minibatch, reference_point: float, tally: Tally, *, on_policy: bool) -> None:
        """One optimiser update; none where nothing has a gradient: AdamW would move on by momentum alone."""
        if not part.passes:
            return
        self.optimiser.zero_grad()
        loss = 0.0
        for number in range(part.passes):
            with self.processes.accumulating(self.wrapped, last=number + 1 == part.passes):
                if number < len(part.micro):
                    loss += self._learn(part, part.micro[number], reference_point, tally, on_policy=on_policy)
                else:
                    self._keep_pace(part.shortest)
        self.processes.average_gradients(optimisers.of_critic(self.trained).values())
        loss = self.processes.total(loss)
        norms = self._clip()
        length = math.hypot(*norms.values())
        self._apply(length)
        if self.processes.leads:  # all know it
            means = {name: Mean(norm, 1) for name, norm in norms.items()}
            tally.add({"loss": Mean(loss, 1), **means}, bad_updates=not math.isfinite(length))

    def _learn(
        self, part: Minibatch, micro: MicroBatch, reference_point: float, tally: Tally, *, on_policy: bool
    ) -> float:
        """Add the gradient of a micro-batch; returns its part of the loss."""
        denominator = self.algorithm.denominator(part.counts)
        forward = self._forward(micro.rows, tally)
        output = self.algorithm.loss(
            LossInputs(
                logprobs=forward.logprobs,
                row=micro.row,
                rows=len(micro.rows),
                denominator=denominator,
                tokens=part.counts.tokens,
                old_logprobs=micro.old_logprobs,
                reference_logprobs=micro.reference_logprobs,
                policy_logprobs=micro.policy_logprobs,
                entropy=forward.entropy,
                values=self.critic(micro.rows, forward) if self.critic is not None else None,
                advantages=micro.advantages,
                old_values=micro.old_values,
                returns=micro.returns,
                labels=micro.labels,
                reference_point=reference_point,
            )
        )
        self._backward(output.total / denominator)
        tally.add(output.metrics)
        if on_policy and micro.old_logprobs is not None:
            tally.compare(forward.logprobs.detach(), micro.old_logprobs)
        return output.total.item() / denominator

    def _keep_pace(self, row: Row) -> None:
        """Pass a row that teaches nothing: other processes have more to do, and passes are made together."""
        self._backward(self._forward([row], Tally()).logprobs.sum() * 0.0)

    def _backward(self, loss: Tensor) -> None:
        """Gradients are averaged over the processes; their sum is wanted."""
        (loss * self.processes.size).backward()  # type: ignore[no-untyped-call]

    def _clip(self) -> dict[str, float]:
        """Scale gradients down to the allowed length, policy and critic each; their lengths before."""
        limit = self.algorithm.config.max_gradient_norm
        parts = {
            "gradient_norm": optimisers.of_policy(self.trained),
            "critic_gradient_norm": optimisers.of_critic(self.trained),
        }
        return {
            name: whole_tensor(torch.nn.utils.clip_grad_norm_(list(part.values()), limit)).item()
            for name, part in parts.items()
            if part
        }

    def _apply(self, norm: float) -> None:
        if math.isfinite(norm):
            self.optimiser.step()
            self.bad_updates = 0
            return
        self.bad_updates += 1
        self.optimiser.zero_grad()
        if self.bad_updates >= MAX_BAD_UPDATES:
            raise TrainingError(
                f"the gradient was not finite in {MAX_BAD_UPDATES} updates in a row; none of them was made. "
                "Lower learning_rate, and look for NaN in the weights"
            )


def _findings(credit: Credit, metrics: dict[str, float]) -> list[Finding]:
    found = [Finding("credit", text) for text in credit.warnings]
    if not metrics.get("sampler_gap", 0.0) <= SAMPLER_GAP:
        why = (
            "stale weights in the engine, another temperature, or dropout left on; for an engine that "
            "computes otherwise, GRPO has a correction"
        )
        if "correction" in metrics:  # a difference is what the loss expects then
            mean, beyond = metrics["correction"], metrics["correction_beyond"]
            why = f"corrected by weights of {mean:.3g} on average, {beyond:.1%} of them beyond the cap"
        text = f"sampler and trainer disagree by {metrics['sampler_gap']:.3g} nats a token: {why}"
        found.append(Finding("sampler_gap", text))
    if metrics["bad_updates"]:
        found.append(Finding("gradient", "the gradient was not finite: the update was not made"))
    return found


def train(
    trainer: Trainer[BatchT],
    source: Callable[[int], BatchT],
    observers: Sequence[Observer] = (),
    *,
    start: int = 0,
) -> str | None:
    """Train from step `start` to the end; `source(step)` yields the batch of a step, sampled when asked for.

    Every observer sees every step. Returns the reason for which one of them ended the training, or None.
    """
    for step in range(start, trainer.steps):
        began = time.perf_counter()
        batch = source(step)
        sampled = time.perf_counter()
        metrics, findings = trainer.step(step, batch)
        metrics["seconds_source"] = sampled - began
        metrics["seconds_train"] = time.perf_counter() - sampled
        snapshot = Snapshot(step + 1, trainer.steps, metrics, tuple(findings), batch)
        reasons = [observer(snapshot) for observer in observers]
        for reason in reasons:
            if reason:
                return reason
    return None
