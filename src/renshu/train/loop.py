"""The one training loop: batch → no-grad extras → credit → loss → step → observe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from renshu.algorithms import Algorithm, Credit, Extras, LossInputs, Mean
from renshu.algorithms.protocol import BatchT, Need
from renshu.errors import TrainingError
from renshu.models.critic import Critic
from renshu.models.load import disable_dropout
from renshu.models.reference import Reference
from renshu.seeding import stable_hash
from renshu.train import optimiser as optimisers
from renshu.train.minibatch import Minibatch, learning, minibatches
from renshu.train.observe import Finding, Observer, Snapshot
from renshu.tree import TokenLogprobs, pack, supports_tree, token_logprobs
from renshu.tree.packing import Layout
from renshu.types import Row

SAMPLER_GAP = 0.05  # nats: rounding in bfloat16 stays below, stale weights or another temperature do not
_NEEDED = {"reference": "a reference model", "values": "a critic"}
MAX_BAD_UPDATES = 3  # consecutive updates without a finite gradient


class Trainer(Generic[BatchT]):
    """A model being trained by one algorithm for `steps` steps.

    reference: log-probs of the reference model; critic: values of tokens, trained along. TrainingError where
    the algorithm needs one that is not given.
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
    ) -> None:
        for need, given in (("reference", reference), ("values", critic)):
            if need in algorithm.needs and given is None:
                raise TrainingError(f"{algorithm.name} needs {_NEEDED[need]}, and none was given")
        if "rollouts" in algorithm.needs:
            disable_dropout(model)
        self.model, self.algorithm, self.steps, self.seed = model, algorithm, steps, seed
        self.reference = reference if "reference" in algorithm.needs else None
        self.critic = critic if "values" in algorithm.needs else None
        self.trained = optimisers.trainable(model, self.critic)
        self.optimiser = optimisers.build(self.trained, algorithm.config)
        self.layout: Layout = "tree" if supports_tree(model) else "padded"
        self.bad_updates = 0

    def step(self, step: int, batch: BatchT) -> tuple[dict[str, float], list[Finding]]:
        """Learn from one batch; `step` is 0-based. Returns metrics and findings.

        Raises TrainingError at the third consecutive update without a finite gradient; none of them is made.
        """
        torch.manual_seed(stable_hash("train", self.seed, step))  # dropout, the same after a resume
        rate = optimisers.learning_rate(self.algorithm.config, step, self.steps)
        optimisers.set_rate(self.optimiser, rate)
        tally = _Tally()
        self._train(True)
        credit, extras = self._credit(batch, tally)
        parts = minibatches(
            credit,
            self.algorithm.minibatches,
            extras=extras,
            skip_zero=self.algorithm.skip_zero,
            pack=self._pack,
            device=next(iter(self.trained.values())).device,
        )
        for iteration in range(self.algorithm.iterations):
            for part in parts:
                on_policy = iteration == 0 and part is parts[0]
                self._update(part, credit.reference_point, tally, on_policy=on_policy)
        self._train(False)
        metrics = {"learning_rate": rate, **tally.metrics(), **credit.metrics}
        metrics["rows_skipped"] = sum(part.skipped for part in parts)
        return metrics, _findings(credit, metrics)

    def _train(self, mode: bool) -> None:
        for module in (self.model, self.critic):
            if module is not None:
                module.train(mode)

    def _pack(self, rows: Sequence[Row]) -> list[list[int]]:
        return pack(
            rows, self.algorithm.config.token_budget, self.layout, whole_groups=self.algorithm.whole_groups
        )

    def _credit(self, batch: BatchT, tally: _Tally) -> tuple[Credit, Extras]:
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

    @torch.no_grad()
    def _extras(
        self, rows: Sequence[Row], wanted: Sequence[bool], needs: frozenset[Need], tally: _Tally
    ) -> Extras:
        """What models say about the wanted rows before the first update; of the others an empty tensor."""
        temperature = self.algorithm.temperature
        ask: dict[str, Callable[[Sequence[Row]], Tensor]] = {}
        if "policy" in needs:
            ask["policy"] = lambda rows: self._forward(rows, tally).logprobs
        if "reference" in needs and (reference := self.reference) is not None:
            ask["reference"] = lambda rows: reference(rows, temperature)
        if "values" in needs and (critic := self.critic) is not None:
            ask["values"] = lambda rows: critic(
                rows, self._forward(rows, tally) if critic.shares_trunk else None
            )
        chosen = [index for index, want in enumerate(wanted) if want]
        packs = self._pack([rows[index] for index in chosen]) if ask and chosen else []
        answers = {name: [torch.empty(0)] * len(rows) for name in ask}
        for indices in packs:
            part = [rows[chosen[i]] for i in indices]
            lengths = [sum(row.trained) for row in part]
            for name, model in ask.items():
                for i, tensor in zip(indices, torch.split(model(part).cpu(), lengths), strict=True):
                    answers[name][chosen[i]] = tensor
        return Extras(**{name: tuple(tensors) for name, tensors in answers.items()})

    def _forward(self, rows: Sequence[Row], tally: _Tally) -> TokenLogprobs:
        forward = token_logprobs(
            self.model,
            rows,
            temperature=self.algorithm.temperature,
            layout=self.layout,
            entropy="entropy" in self.algorithm.needs,
            hidden=self.critic is not None and self.critic.shares_trunk,
        )
        tally.add({}, tokens_computed=forward.computed, tokens_naive=forward.naive)
        return forward

    def _update(self, part: Minibatch, reference_point: float, tally: _Tally, *, on_policy: bool) -> None:
        """One optimiser update; none where nothing has a gradient: AdamW would move on by momentum alone."""
        if not part.micro:
            return
        denominator = self.algorithm.denominator(part.counts)
        self.optimiser.zero_grad()
        loss = 0.0
        for micro in part.micro:
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
            (output.total / denominator).backward()  # type: ignore[no-untyped-call]
            loss += output.total.item() / denominator
            tally.add(output.metrics)
            if on_policy and micro.old_logprobs is not None:
                tally.compare(forward.logprobs.detach(), micro.old_logprobs)
        norms = self._clip()
        length = math.hypot(*norms.values())
        self._apply(length)
        means = {name: Mean(norm, 1) for name, norm in norms.items()}
        tally.add({"loss": Mean(loss, 1), **means}, bad_updates=not math.isfinite(length))

    def _clip(self) -> dict[str, float]:
        """Scale gradients down to the allowed length, policy and critic each; their lengths before."""
        limit = self.algorithm.config.max_gradient_norm
        parts = {
            "gradient_norm": optimisers.of_policy(self.trained),
            "critic_gradient_norm": optimisers.of_critic(self.trained),
        }
        return {
            name: torch.nn.utils.clip_grad_norm_(list(part.values()), limit).item()
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


class _Tally:
    """Sums and means over the updates of a step."""

    def __init__(self) -> None:
        self.means: dict[str, Mean] = {"loss": Mean(0.0, 0)}
        self.sums: dict[str, float] = {"tokens_computed": 0, "tokens_naive": 0, "bad_updates": 0}
        self.largest_gap = 0.0

    def add(self, means: Any, **sums: float) -> None:
        for name, mean in means.items():
            self.means[name] = self.means.get(name, Mean(0.0, 0)) + mean
        for name, value in sums.items():
            self.sums[name] += value

    def compare(self, trainer: Tensor, sampler: Tensor) -> None:
        """The canary: before the first update both come from the same weights and must agree."""
        gap = (trainer - sampler).abs()
        self.add({"sampler_gap": Mean(gap.sum().item(), gap.numel())})
        self.largest_gap = max(self.largest_gap, gap.max().item())

    def metrics(self) -> dict[str, float]:
        found = {name: mean.value for name, mean in self.means.items()} | self.sums
        return found | ({"sampler_gap_max": self.largest_gap} if "sampler_gap" in found else {})


def _findings(credit: Credit, metrics: dict[str, float]) -> list[Finding]:
    found = [Finding("credit", text) for text in credit.warnings]
    if not metrics.get("sampler_gap", 0.0) <= SAMPLER_GAP:
        why = "stale weights in the engine, another temperature, or dropout left on"
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
