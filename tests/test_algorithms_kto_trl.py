"""KTO and its relative, through our loop on token trees, equal TRL 1.16's on the same batch, gradient too."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from preference_kit import STILL, answer, one_step, two_models
from renshu.algorithms import KtoConfig, kto
from renshu.algorithms.preferences import usable_labelled
from renshu.types import Labelled
from trl_oracle import answered, kto_trainer, relative_difference

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Oracle:
    """model, reference: with the trainer's weights, but not in its hands: TRL patches their forward."""

    model: Any
    reference: Any
    trl: Any


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp("trl")
    model, reference, tokenizer = two_models(folder / "model")
    trl = kto_trainer(folder, copy.deepcopy(model), copy.deepcopy(reference), tokenizer)
    return Oracle(model, reference, trl)


def draw(labels: Sequence[bool], *, seed: int = 4, tool: bool = False) -> list[Labelled]:
    dice = random.Random(seed)
    found = []
    for label in labels:
        prompt = [dice.randrange(250) for _ in range(dice.randrange(3, 9))]
        found.append(Labelled(answer(dice, prompt, tool=tool and not label), label))
    return found


def theirs(
    oracle: Oracle, answers: Sequence[Labelled], **options: Any
) -> tuple[float, dict[str, Tensor], dict[str, float]]:
    trl = oracle.trl
    trl.loss_type = options.get("loss", "kto")
    trl.calculate_KL = trl.loss_type == "kto"
    trl.beta = options.get("beta", 0.1)
    trl.desirable_weight = options.get("desirable_weight", 1.0)
    trl.undesirable_weight = options.get("undesirable_weight", 1.0)
    examples = [{**answered(a.row), "label": a.good} for a in answers]
    if trl.calculate_KL:  # as its dataset preparation does: every prompt with the answer before it
        for index, example in enumerate(examples):
            example["KL_completion_ids"] = examples[index - 1]["completion_ids"]
    trl.model.train()
    trl.model.zero_grad()
    trl._metrics["train"].clear()
    loss = trl.compute_loss(trl.model, trl.data_collator(examples))
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in trl.model.named_parameters() if p.grad is not None}
    return loss.item(), gradients, {name: values[0] for name, values in trl._metrics["train"].items()}


def ours(
    oracle: Oracle, answers: Sequence[Labelled], **options: Any
) -> tuple[dict[str, float], dict[str, Tensor]]:
    # Micro-batches change nothing: z_0 is of the whole batch.
    config = KtoConfig(**{"data": "-", "token_budget": 30} | STILL | options)
    return one_step(oracle.model, oracle.reference, kto.algorithm(config), answers)


MIXED = (True, False, False, True, True)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"beta": 0.5},
    {"desirable_weight": 1.5, "undesirable_weight": 0.7},
    {"loss": "apo_zero_unpaired"},
    {"loss": "apo_zero_unpaired", "beta": 0.4, "undesirable_weight": 2.0},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(f"{value}" for value in v.values()))
@pytest.mark.parametrize("labels", [MIXED, (True,) * 3, (False,) * 3], ids=["mixed", "up", "down"])
def test_loss_gradient_and_rewards_are_trls(
    oracle: Oracle, variant: dict[str, Any], labels: Sequence[bool]
) -> None:
    answers = draw(labels, tool=True)
    metrics, gradients = ours(oracle, answers, train_on="completion", **variant)
    loss, expected, told = theirs(oracle, answers, **variant)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert abs(loss) > 1e-3
    assert relative_difference(gradients, expected) < 1e-5
    for side in ("chosen", "rejected"):
        if f"rewards/{side}" in told:
            assert metrics[f"rewards_{side}"] == pytest.approx(told[f"rewards/{side}"], abs=1e-4)
            assert metrics[f"logps_{side}"] == pytest.approx(told[f"logps/{side}"], abs=1e-4)
    assert metrics.get("kl", 0.0) == pytest.approx(told["kl"], abs=1e-4)


def test_both_signs_of_the_estimate_occur(oracle: Oracle) -> None:
    """Of the batches compared with TRL's, z_0 is above 0 in some and clamped in others."""
    estimates = []
    for seed in range(12):
        answers = draw(MIXED, seed=seed)
        metrics, gradients = ours(oracle, answers)
        loss, expected, told = theirs(oracle, answers)
        assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
        assert relative_difference(gradients, expected) < 1e-5
        assert metrics["kl"] == pytest.approx(told["kl"], abs=1e-4)
        estimates.append(metrics["kl"])
    assert min(estimates) == 0.0
    assert max(estimates) > 0.1


def test_mismatched_rows_are_cut_as_trl_cuts(oracle: Oracle) -> None:
    answers = draw(MIXED)
    longest = max(len(a.row.ids) for a in answers)
    config = KtoConfig(data="-", max_length=longest - 3)
    metrics, gradients = ours(oracle, answers, max_length=config.max_length)
    oracle.trl.data_collator.max_length = config.max_length
    try:
        loss, expected, _ = theirs(oracle, usable_labelled(answers, config).items)
    finally:
        oracle.trl.data_collator.max_length = None
    assert metrics["rows_cut"] >= 1
    assert any(
        len(answered(a.row)["prompt_ids"]) + len(answered(b.row)["completion_ids"]) > config.max_length
        for a, b in zip(answers[1:], answers, strict=False)
    )
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert relative_difference(gradients, expected) < 1e-5


def test_the_comparison_sees_tool_output_and_a_wrong_weight(oracle: Oracle) -> None:
    answers = draw(MIXED, tool=True)
    _, expected, _ = theirs(oracle, answers)
    for wrong in ({"train_on": "sampled"}, {"train_on": "completion", "undesirable_weight": 1.2}):
        _, gradients = ours(oracle, answers, **wrong)
        assert relative_difference(gradients, expected) > 1e-2
