"""DPO: every loss worked by hand, what is left out, and that it learns and resumes exactly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from preference_kit import assert_resumes, margin_of, rollout, tiny
from renshu.algorithms import DpoConfig, LossInputs, dpo
from renshu.algorithms.preferences import fitted, pairs_of, usable_pairs
from renshu.errors import ConfigError
from renshu.models.reference import reference_of
from renshu.train import Trainer, train
from renshu.types import Group, Pair, Row, Scored, Segment, Task, Unscored

# chosen: two tokens, log p = -1.5, log p_ref = -2; rejected: one token, -2 and -1.5
LOGPROBS, REFERENCE, ROW = [-1.0, -0.5, -2.0], [-1.0, -1.0, -1.5], [0, 0, 1]


def by_hand(**options: Any) -> tuple[float, list[float], dict[str, float]]:
    """Loss, gradient of every token, metrics."""
    logprobs = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    config = DpoConfig(**({"beta": 0.5} | options))
    reference = None if config.reference_free else torch.tensor(REFERENCE, dtype=torch.float64)
    inputs = LossInputs(
        logprobs,
        torch.tensor(ROW),
        2,
        denominator=1,
        tokens=3,
        reference_logprobs=reference,
        labels=torch.tensor([True, False]),
    )
    output = dpo.loss(inputs, config)
    output.total.backward()
    assert logprobs.grad is not None
    metrics = {name: mean.value for name, mean in output.metrics.items()}
    return output.total.item(), logprobs.grad.tolist(), metrics


@pytest.mark.parametrize(
    ("options", "loss", "gradient"),
    [
        # h = 0.5 + 0.5 = 1: log(1 + e^-0.5); d/dh = -0.5·σ(-0.5)
        ({}, 0.474077, [-0.188770, -0.188770, 0.188770]),
        # h = 0.25 + 0.5 = 0.75: log(1 + e^-1.5); d/dh = -2·σ(-1.5), half of it for each chosen token
        ({"loss": "sigmoid_norm", "beta": 2.0}, 0.201413, [-0.182426, -0.182426, 0.364851]),
        # (0.75 - 1)²; d/dh = -0.5
        ({"loss": "ipo"}, 0.0625, [-0.25, -0.25, 0.5]),
        # 1 - 0.5
        ({"loss": "hinge"}, 0.5, [-0.5, -0.5, 0.5]),
        # a preference beyond the margin: 1 - 2 < 0
        ({"loss": "hinge", "beta": 2.0}, 0.0, [0.0, 0.0, 0.0]),
        # 0.8·0.474077 + 0.2·0.974077; d/dh = 0.5·(-0.8·0.377541 + 0.2·0.622459)
        ({"label_smoothing": 0.2}, 0.574077, [-0.088770, -0.088770, 0.088770]),
        # (0.9·0.474077 - 0.1·0.974077) / 0.8; d/dh = -0.5·(0.9·0.377541 + 0.1·0.622459) / 0.8
        ({"loss": "robust", "label_smoothing": 0.1}, 0.411577, [-0.251270, -0.251270, 0.251270]),
        # h = -1.5 + 2 = 0.5: log(1 + e^-0.25); d/dh = -0.5·σ(-0.25)
        ({"reference_free": True}, 0.575939, [-0.218912, -0.218912, 0.218912]),
        # 0.474077 + 0.4·1.5/2
        ({"nll": 0.4}, 0.774077, [-0.388770, -0.388770, 0.188770]),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_losses_worked_by_hand(options: dict[str, Any], loss: float, gradient: list[float]) -> None:
    found, found_gradient, metrics = by_hand(**options)
    assert found == pytest.approx(loss, abs=1e-6)
    assert found_gradient == pytest.approx(gradient, abs=1e-6)
    assert (metrics["logps_chosen"], metrics["logps_rejected"]) == (-1.5, -2.0)
    assert metrics["accuracy"] == 1.0


def test_rewards_are_beta_times_log_ratios() -> None:
    _, _, metrics = by_hand()
    assert (metrics["rewards_chosen"], metrics["rewards_rejected"], metrics["margin"]) == (0.25, -0.25, 0.5)


def pair(chosen: tuple[int, ...], rejected: tuple[int, ...], prompt: tuple[int, ...] = (1, 2, 3)) -> Pair:
    def row(ids: tuple[int, ...]) -> Row:
        return Row((*prompt, *ids), (False,) * len(prompt) + (True,) * len(ids))

    return Pair(row(chosen), row(rejected))


def test_rows_alternate_and_what_teaches_nothing_is_counted() -> None:
    """After cutting, a pair may have lost what its sides differ in: its loss would stay at log 2."""
    pairs = [
        pair((4, 5), (6,)),
        pair((7, 8), (7, 8)),
        pair((9, 9, 9, 1), (9, 9, 9, 2)),
        pair((4,), (5,), prompt=(1,) * 6),
        pair((8, 8), (5, 5, 5, 5)),
    ]
    credit = dpo.credit(pairs, DpoConfig(data="-", max_length=6))
    assert [row.ids[3:] for row in credit.rows] == [(4, 5), (6,), (8, 8), (5, 5, 5)]
    assert [row.group for row in credit.rows] == ["0", "0", "1", "1"]
    assert credit.labels == (True, False, True, False)
    assert credit.metrics == {
        "pairs": 2,
        "left_out_equal": 2 + 1,  # the fourth pair is its prompt twice
        "left_out_untrained": 0,
        "rows_cut": 1,
    }
    equal = LossInputs(
        torch.full((2,), -1.0, requires_grad=True),
        torch.tensor([0, 1]),
        2,
        1.0,
        2,
        reference_logprobs=torch.full((2,), -2.0),
        labels=torch.tensor([True, False]),
    )
    assert dpo.loss(equal, DpoConfig()).total.item() == pytest.approx(0.6931, abs=1e-4)


def test_a_pair_that_cutting_makes_equal_is_dropped_and_counted() -> None:
    """A prompt of 600 tokens cut at 512: both sides are the same (352 of 5000 rows of UltraFeedback)."""
    long = pair((4,), (5,), prompt=tuple(range(600)))
    usable = usable_pairs([long], DpoConfig(data="-", max_length=512))
    assert (usable.items, usable.left_out) == ((), {"equal": 1, "untrained": 0})
    assert len(usable_pairs([long], DpoConfig(data="-", max_length=601)).items) == 1


def test_a_side_without_a_trained_token_is_left_out() -> None:
    whole = pair((4, 5, 6), (7,))
    late = Row(whole.chosen.ids, (False,) * 5 + (True,))
    usable = usable_pairs([Pair(late, whole.rejected)], DpoConfig(data="-", max_length=5))
    assert (usable.items, usable.left_out) == ((), {"equal": 0, "untrained": 1})


def test_what_is_trained_on() -> None:
    """sampled: never a tool's answer; completion: all from the first sampled token on. Twice is as once."""
    row = Row((1, 2, 3, 4, 5, 6, 7), (False, False, True, False, False, True, False), (-1.0, -2.0), "g")
    sampled = fitted(row, DpoConfig(data="-"))
    assert sampled == Row(row.ids, row.trained, None, "g")
    config = DpoConfig(data="-", train_on="completion", max_length=6)
    completion = fitted(row, config)
    assert completion == Row(row.ids[:6], (False, False, True, True, True, True), None, "g")
    assert fitted(completion, config) == completion


def group(*scores: Any, forks: Any = ()) -> Group:
    """Rollouts that sampled 10, 11, …"""
    rollouts = tuple(rollout((10 + i,), score) for i, score in enumerate(scores))
    return Group(Task("toy/0"), (*rollouts, *forks))


def sides(pairs: tuple[Pair, ...]) -> list[tuple[int, int]]:
    return [(pair.chosen.ids[-1], pair.rejected.ids[-1]) for pair in pairs]


def test_pairs_of_groups() -> None:
    forked = rollout((20,), Scored(9.0), forks=((Segment((1, 2)),),))
    groups = [
        group(Scored(0.2), Scored(0.9), Unscored("judge_failed: no answer"), Scored(-1.0), Scored(0.9)),
        group(Scored(0.5), Scored(0.5)),
        group(Unscored("infrastructure: gone"), Scored(0.1), forks=(forked,)),
        group(Scored(math.nan), Scored(0.3), Scored(0.2)),
    ]
    best = pairs_of(groups)
    assert sides(best.items) == [(11, 13), (11, 12)]
    assert best.left_out == {"unscored": 3, "forked": 1, "tied": 2}
    assert sides(pairs_of(groups, margin=0.15).items) == [(11, 13)]
    assert pairs_of(groups, margin=0.15).left_out["tied"] == 3
    every = pairs_of(groups, choose="all")
    # of the first group, best first: 11 and 14 tie
    assert sides(every.items) == [(11, 10), (11, 13), (14, 10), (14, 13), (10, 13), (11, 12)]
    assert every.left_out == best.left_out
    assert best.items[0].chosen.trained == (False, False, False, True)


def test_a_step_of_rollouts_is_a_step_of_their_pairs() -> None:
    credit = dpo.practice(DpoConfig()).credit([group(Scored(0.0), Scored(1.0)), group(Scored(1.0))])
    assert [row.ids[-1] for row in credit.rows] == [11, 10]
    assert credit.metrics == {
        "pairs": 1,
        "left_out_unscored": 0,
        "left_out_forked": 0,
        "left_out_tied": 1,
        "left_out_equal": 0,
        "left_out_untrained": 0,
        "rows_cut": 0,
    }


def test_a_step_without_a_pair_moves_nothing() -> None:
    model = tiny()
    trainer = Trainer(
        model, dpo.practice(DpoConfig(learning_rate=0.1)), steps=1, reference=reference_of(model)
    )
    before = [parameter.clone() for parameter in model.parameters()]
    metrics, findings = trainer.step(0, [group(Scored(1.0), Scored(1.0))])
    assert (metrics["pairs"], metrics["loss"], findings) == (0, 0.0, [])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "a", "trajectories": "b"}, "leave the other out"),
        ({"data": "a", "steps": 9}, "steps does nothing with data or trajectories"),
        ({"pairs_per_step": 4}, "pairs_per_step does nothing without data or trajectories"),
        ({"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing does nothing with loss: ipo"),
        ({"data": "a", "margin": 0.5}, "pairs and margin do nothing with data"),
        ({"group": 1}, "group >= 2"),
        ({"label_smoothing": 0.5}, "less than 0.5"),
        ({"los": "ipo"}, "loss"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DpoConfig.from_dict(settings)


PAIRS = [pair((7, 5), (9, 5)), pair((7, 6, 6), (8,), prompt=(4, 2)), pair((6, 7), (7, 6), prompt=(5, 5, 5))]


@pytest.mark.parametrize(
    "options",
    [{"loss": "sigmoid"}, {"loss": "sigmoid_norm", "beta": 2.0}, {"loss": "ipo"}, {"reference_free": True}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_it_raises_the_margin(options: dict[str, Any]) -> None:
    model = tiny()
    config = DpoConfig(data="-", learning_rate=2e-2, **options)
    trainer = Trainer(model, dpo.algorithm(config), steps=12, reference=reference_of(model))
    seen: list[dict[str, float]] = []
    before = margin_of(model, PAIRS)
    train(trainer, lambda step: PAIRS, [lambda snapshot: seen.append(dict(snapshot.metrics))])
    assert margin_of(model, PAIRS) > before + 2.0
    assert seen[-1]["accuracy"] == 1.0
    assert seen[-1]["loss"] < 0.7 * seen[0]["loss"]


def test_pairs_of_one_prompt_share_it_and_micro_batches_change_nothing() -> None:
    """Prompt 1 2 3 is in three pairs: 3 + 2·2 + 2·1 + 2·1 distinct tokens, 9 + … with every copy."""
    pairs = [pair((4, 5), (6, 7)), pair((8,), (9,)), pair((10,), (11,))]
    found = []
    for budget in (1, 100):
        model = tiny()
        config = DpoConfig(data="-", token_budget=budget, learning_rate=1e-3)
        metrics, _ = Trainer(model, dpo.algorithm(config), steps=1, reference=reference_of(model)).step(
            0, pairs
        )
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        # a budget of 1: each pair is a pass of its own, never cut
        assert metrics["tokens_computed"] == (3 + 8 if budget == 100 else (3 + 4) + (3 + 2) + (3 + 2))
        assert metrics["tokens_naive"] == 2 * 5 + 4 * 4
    assert torch.allclose(*found, atol=1e-6)


def test_it_resumes_exactly(tmp_path: Path) -> None:
    config = DpoConfig(data="-", learning_rate=5e-3, token_budget=8)
    assert_resumes(dpo.algorithm(config), lambda step: PAIRS, tmp_path)
