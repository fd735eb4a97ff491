"""KTO: losses, weights and z_0 worked by hand, what is left out, and that it learns and resumes exactly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from preference_kit import assert_resumes, margin_of, rollout, tiny
from renshu.algorithms import Credit, Extras, KtoConfig, LossInputs, kto
from renshu.algorithms.preferences import labelled_of
from renshu.errors import ConfigError
from renshu.models.reference import reference_of
from renshu.train import Trainer, train
from renshu.types import Group, Labelled, Pair, Row, Scored, Segment, Task, Unscored


def by_hand(
    point: float = 0.2, weights: tuple[float, float] = (1.0, 1.0), **options: Any
) -> tuple[float, list[float], dict[str, float]]:
    """A wanted row of two tokens with r = 0.5, an unwanted one of one token with r = -0.5."""
    logprobs = torch.tensor([-1.0, -0.5, -2.0], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        logprobs,
        torch.tensor([0, 0, 1]),
        2,
        denominator=2,
        tokens=3,
        reference_logprobs=torch.tensor([-1.0, -1.0, -1.5], dtype=torch.float64),
        advantages=torch.tensor([weights[0], weights[0], weights[1]], dtype=torch.float64),
        labels=torch.tensor([True, False]),
        reference_point=point,
    )
    output = kto.loss(inputs, KtoConfig(beta=0.5, **options))
    output.total.backward()
    assert logprobs.grad is not None
    metrics = {name: mean.value for name, mean in output.metrics.items()}
    return output.total.item(), logprobs.grad.tolist(), metrics


@pytest.mark.parametrize(
    ("given", "loss", "gradient"),
    [
        # (1 - σ(0.15)) + (1 - σ(0.35)); slopes 0.5·σ·(1 - σ)
        ({}, 0.462570 + 0.413382, [-0.124299, -0.124299, 0.121249]),
        ({"weights": (1.5, 0.5)}, 0.693856 + 0.206691, [-0.186449, -0.186449, 0.060624]),
        # z_0 = 0: (1 - σ(0.25)) + σ(-0.25)
        ({"point": 0.0}, 2 * 0.437823, [-0.123067, -0.123067, 0.123067]),
        ({"point": 0.0, "loss": "apo_zero_unpaired"}, 2 * 0.437823, [-0.123067, -0.123067, 0.123067]),
    ],
)
def test_losses_worked_by_hand(given: dict[str, Any], loss: float, gradient: list[float]) -> None:
    found, found_gradient, metrics = by_hand(**given)
    assert found == pytest.approx(loss, abs=2e-6)
    assert found_gradient == pytest.approx(gradient, abs=2e-6)
    assert (metrics["rewards_chosen"], metrics["rewards_rejected"]) == (0.25, -0.25)
    assert (metrics["logps_chosen"], metrics["logps_rejected"], metrics["accuracy"]) == (-1.5, -2.0, 1.0)


def test_a_row_on_the_wrong_side_of_z_0_is_wrong() -> None:
    assert by_hand(point=0.6)[2]["accuracy"] == 0.5  # r = 0.5 was wanted, and is below it


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [
        (3, 3, (1.0, 1.0)),  # 1
        (5, 4, (1.0, 1.0)),  # 1.25 is in [1, 4/3]
        (2, 8, (4.0, 1.0)),  # 0.25: thumbs up weigh more, up to 1
        (8, 2, (1.0, 3.0)),  # 4: thumbs down weigh more, down to 4/3
        (8, 0, (1.0, 1.0)),  # a single label: nothing to balance
        (0, 3, (1.0, 1.0)),
    ],
)
def test_balance_worked_by_hand(good: int, bad: int, expected: tuple[float, float]) -> None:
    assert kto.weights(good, bad, KtoConfig(balance="auto")) == pytest.approx(expected)
    assert kto.weights(good, bad, KtoConfig()) == (1.0, 1.0)


def test_balance_starts_from_the_weights_that_are_set() -> None:
    config = KtoConfig(balance="auto", desirable_weight=2.0, undesirable_weight=0.5)
    assert kto.weights(1, 4, config) == (2.0, 0.5)  # 2·1 / (0.5·4) = 1
    assert kto.weights(1, 8, config) == (4.0, 0.5)
    assert kto.weights(4, 2, config) == pytest.approx((2.0, 3.0))


def labelled(prompt: tuple[int, ...], ids: tuple[int, ...], good: bool) -> Labelled:
    return Labelled(Row((*prompt, *ids), (False,) * len(prompt) + (True,) * len(ids)), good)


def test_every_prompt_meets_the_answer_before_it() -> None:
    answers = [labelled((1,), (10, 11), True), labelled((2, 2), (20,), False), labelled((3,), (30,), True)]
    credit = kto.credit(answers, KtoConfig())
    assert [row.ids for row in credit.probes] == [(1, 30), (2, 2, 10, 11), (3, 20)]
    assert [row.trained for row in credit.probes] == [
        (False, True),
        (False, False, True, True),
        (False, True),
    ]
    assert credit.labels == (True, False, True)
    assert credit.advantages == (1.0, 1.0, 1.0)
    assert credit.metrics == {
        "rows_chosen": 2,
        "rows_rejected": 1,
        "left_out_untrained": 0,
        "rows_cut": 0,
    }
    assert kto.credit(answers, KtoConfig(loss="apo_zero_unpaired")).probes == ()


def test_tool_output_in_a_mismatched_answer_is_not_trained_either() -> None:
    tool = Row((1, 10, 50, 11), (False, True, False, True))
    credit = kto.credit([Labelled(tool, True), labelled((2, 2), (20,), False)], KtoConfig())
    assert credit.probes[1] == Row((2, 2, 10, 50, 11), (False, False, True, False, True), group="1")


def test_rollouts_of_one_task_do_not_meet_their_own_prompt() -> None:
    """Two tasks of three rollouts side by side: shifted by 3, no answer meets its own prompt."""
    answers = [labelled((1 + n // 3,), (10 * n + 10,), n % 2 == 0) for n in range(6)]
    credit = kto.credit(answers, KtoConfig())
    assert [row.ids for row in credit.probes] == [(1, 40), (1, 50), (1, 60), (2, 10), (2, 20), (2, 30)]
    assert [row.group for row in credit.rows] == ["0", "0", "0", "1", "1", "1"]
    one_task = kto.credit(answers[:3], KtoConfig())  # there is nothing better than the next answer
    assert [row.ids for row in one_task.probes] == [(1, 30), (1, 10), (1, 20)]


def test_z_0_worked_by_hand() -> None:
    credit = kto.credit([labelled((1,), (10, 11), True), labelled((2,), (20,), False)], KtoConfig())

    def told(policy: list[list[float]], reference: list[list[float]]) -> Credit:
        probes = Extras(tuple(map(torch.tensor, policy)), tuple(map(torch.tensor, reference)))
        return kto.estimate(credit, Extras(), probes)

    above = told([[-1.0], [-2.0, -1.0]], [[-1.5], [-2.25, -1.5]])
    assert above.reference_point == above.metrics["kl"] == (0.5 + 0.75) / 2
    assert told([[-2.0], [-2.0, -1.0]], [[-1.0], [-2.25, -1.5]]).reference_point == 0.0  # mean -0.125


def test_a_single_answer_has_z_0_of_0_and_says_so() -> None:
    model = tiny()
    reference = tiny()
    with torch.no_grad():
        reference.lm_head.weight.add_(0.3 * torch.randn_like(reference.lm_head.weight))
    trainer = Trainer(model, kto.algorithm(KtoConfig(data="-")), steps=1, reference=reference_of(reference))
    metrics, findings = trainer.step(0, [labelled((1, 2), (3,), True)])
    assert metrics["kl"] == 0.0
    assert metrics["rewards_chosen"] != 0.0
    assert math.isnan(metrics["logps_rejected"])  # there is none: unknown, not zero
    assert metrics["loss"] == pytest.approx(1 - 1 / (1 + math.exp(-metrics["rewards_chosen"])))
    assert [finding.text for finding in findings] == [kto.ALONE]


def group(*scores: Any, forks: Any = ()) -> Group:
    rollouts = tuple(rollout((10 + i,), score) for i, score in enumerate(scores))
    return Group(Task("toy/0"), (*rollouts, *forks))


def test_thumbs_of_groups() -> None:
    forked = rollout((20,), Scored(9.0, success=True), forks=((Segment((1, 2)),),))
    groups = [
        group(Scored(0.9, success=False), Scored(0.2, success=True), Unscored("judge_failed: no answer")),
        group(Scored(0.5), forks=(forked,)),
    ]
    by_success = labelled_of(groups)
    assert [(answer.row.ids[-1], answer.good) for answer in by_success.items] == [(10, False), (11, True)]
    assert by_success.left_out == {"unscored": 1, "forked": 1, "undecided": 1}
    by_reward = labelled_of(groups, threshold=0.5)
    assert [(answer.row.ids[-1], answer.good) for answer in by_reward.items] == [
        (10, True),
        (11, False),
        (10, True),
    ]
    assert by_reward.left_out == {"unscored": 1, "forked": 1, "undecided": 0}
    credit = kto.practice(KtoConfig(threshold=0.5)).credit(groups)
    assert credit.labels == (True, False, True)
    assert credit.metrics["left_out_forked"] == 1
    assert credit.warnings == ()
    assert kto.practice(KtoConfig(threshold=1.0)).credit(groups).warnings == (kto.UNLEARNS,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "a", "trajectories": "b"}, "leave the other out"),
        ({"trajectories": "a", "group": 4}, "group does nothing with data or trajectories"),
        ({"rows_per_step": 4}, "rows_per_step does nothing without data or trajectories"),
        ({"data": "a", "threshold": 0.5}, "threshold does nothing with data"),
        ({"desirable_weight": 0.0}, "greater than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KtoConfig.from_dict(settings)


ANSWERS = [
    labelled((1, 2, 3), (7, 5), True),
    labelled((4, 2), (8,), False),
    labelled((5, 5, 5), (7, 6, 6), True),
    labelled((1, 6, 3), (9, 5), False),
    labelled((4, 2), (7, 7), True),
]


@pytest.mark.parametrize("options", [{}, {"balance": "auto"}, {"loss": "apo_zero_unpaired"}])
def test_it_raises_the_margin(options: dict[str, Any]) -> None:
    model = tiny()
    config = KtoConfig(data="-", learning_rate=2e-2, beta=0.3, **options)
    trainer = Trainer(model, kto.algorithm(config), steps=15, reference=reference_of(model))
    good = [answer.row for answer in ANSWERS if answer.good]
    bad = [answer.row for answer in ANSWERS if not answer.good]
    pairs = [Pair(good[0], bad[0]), Pair(good[1], bad[1])]
    before = margin_of(model, pairs)
    seen: list[dict[str, float]] = []
    train(trainer, lambda step: ANSWERS, [lambda snapshot: seen.append(dict(snapshot.metrics))])
    assert margin_of(model, pairs) > before + 2.0
    assert seen[-1]["accuracy"] == 1.0
    assert seen[-1]["rewards_chosen"] > 0.3 > -0.3 > seen[-1]["rewards_rejected"]


def test_it_resumes_exactly(tmp_path: Path) -> None:
    config = KtoConfig(data="-", learning_rate=5e-3, token_budget=8, balance="auto")
    assert_resumes(kto.algorithm(config), lambda step: ANSWERS, tmp_path)
