"""The one training loop: batch → no-grad extras → credit → loss → step → observe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from renshu.algorithms import Algorithm, Credit, LossInputs, Mean
from renshu.algorithms.protocol import BatchT
from renshu.errors import TrainingError
from renshu.models.load import disable_dropout
from renshu.models.reference import Reference
from renshu.seeding import stable_hash
from renshu.train import optimiser as optimisers
from renshu.train.minibatch import MicroBatch, Minibatch, minibatches
from renshu.train.observe import Finding, Observer, Snapshot
from renshu.tree import pack, supports_tree, token_logprobs
from renshu.tree.packing import Layout

SAMPLER_GAP = 0.05  # nats: rounding in bfloat16 stays below, stale weights or another temperature do not
MAX_BAD_UPDATES = 3  # consecutive updates without a finite gradient


class Trainer(Generic[BatchT]):
    """A model being trained by one algorithm for `steps` steps.

    reference: log-probs of the reference model; needed by algorithms with a KL (TrainingError without it).
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm[BatchT],
        *,
        steps: int,
        seed: int = 0,
        reference: Reference | None = None,
    ) -> None:
        if "reference" in algorithm.needs and reference is None:
            raise TrainingError(f"{algorithm.name} with a KL needs a reference model, and none was given")
        if "rollouts" in algorithm.needs:
            disable_dropout(model)
        self.model, self.algorithm, self.steps, self.seed = model, algorithm, steps, seed
        self.reference = reference if "reference" in algorithm.needs else None
        self.optimiser = optimisers.build(model, algorithm.config)
        self.parameters = list(optimisers.trainable(model).values())
        self.layout: Layout = "tree" if supports_tree(model) else "padded"
        self.bad_updates = 0

    def step(self, step: int, batch: BatchT) -> tuple[dict[str, float], list[Finding]]:
        """Learn from one batch; `step` is 0-based. Returns metrics and findings.

        Raises TrainingError at the third consecutive update without a finite gradient; none of them is made.
        """
        credit = self.algorithm.credit(batch)
        torch.manual_seed(stable_hash("train", self.seed, step))  # dropout, the same after a resume
        rate = optimisers.learning_rate(self.algorithm.config, step, self.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        parts = minibatches(
            credit,
            self.algorithm.minibatches,
            skip_zero=self.algorithm.skip_zero,
            pack=lambda rows: pack(rows, self.algorithm.config.token_budget, self.layout),
            device=self.parameters[0].device,
        )
        tally = _Tally()
        self.model.train()
        references = [[self._reference(micro) for micro in part.micro] for part in parts]
        for iteration in range(self.algorithm.iterations):
            for part, of_part in zip(parts, references, strict=True):
                on_policy = iteration == 0 and part is parts[0]
                self._update(part, of_part, tally, on_policy=on_policy)
        self.model.eval()
        metrics = {"learning_rate": rate, **tally.metrics(), **credit.metrics}
        metrics["rows_skipped"] = sum(part.skipped for part in parts)
        return metrics, _findings(credit, metrics)

    @torch.no_grad()
    def _reference(self, micro: MicroBatch) -> Tensor | None:
        return self.reference(micro.rows, self.algorithm.temperature) if self.reference else None

    def _update(
        self, part: Minibatch, references: Sequence[Tensor | None], tally: _Tally, *, on_policy: bool
    ) -> None:
        """One optimiser update; none where nothing has a gradient: AdamW would move on by momentum alone."""
        if not part.micro:
            return
        denominator = self.algorithm.denominator(part.counts)
        self.optimiser.zero_grad()
        loss = 0.0
        for micro, reference in zip(part.micro, references, strict=True):
            forward = token_logprobs(
                self.model,
                micro.rows,
                temperature=self.algorithm.temperature,
                layout=self.layout,
                entropy="entropy" in self.algorithm.needs,
            )
            output = self.algorithm.loss(
                LossInputs(
                    logprobs=forward.logprobs,
                    row=micro.row,
                    rows=len(micro.rows),
                    denominator=denominator,
                    tokens=part.counts.tokens,
                    old_logprobs=micro.old_logprobs,
                    reference_logprobs=reference,
                    entropy=forward.entropy,
                    advantages=micro.advantages,
                )
            )
            (output.total / denominator).backward()  # type: ignore[no-untyped-call]
            loss += output.total.item() / denominator
            tally.add(output.metrics, tokens_computed=forward.computed, tokens_naive=forward.naive)
            if on_policy and micro.old_logprobs is not None:
                tally.compare(forward.logprobs.detach(), micro.old_logprobs)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.algorithm.config.max_gradient_norm).item()
        self._apply(norm)
        tally.add(
            {"loss": Mean(loss, 1), "gradient_norm": Mean(norm, 1)}, bad_updates=not math.isfinite(norm)
        )

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
        found.append(
            Finding(
                "sampler_gap",
                f"sampler and trainer disagree by {metrics['sampler_gap']:.3g} nats a token: stale weights "
                "in the engine, another temperature, or dropout left on",
            )
        )
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
