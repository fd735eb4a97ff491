"""Credit by turns and dynamic sampling: numbers worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from renshu.algorithms import GrpoConfig, LossInputs, grpo
from renshu.algorithms.advantages import turn_advantages
from renshu.algorithms.losses import sampler_correction
from renshu.errors import ConfigError, DataError
from renshu.rewards import Part, Rubric
from renshu.rollout import collect_rounds
from renshu.types import Group, Message, Scored, Segment, Stop, Task, Trajectory, Unscored

TASK = Task("t/0")
STEPS = GrpoConfig(credit="steps")


def turn(length: int) -> tuple[Segment, Segment]:
    """What the environment says, one token, and a sampled turn."""
    return Segment((7,)), Segment(tuple(range(length)), sampled=True, logprobs=(-1.0,) * length)


def rollout(
    value: float, steps: tuple[float | None, ...] = (), lengths: tuple[int, ...] = (2, 3)
) -> Trajectory:
    """The outcome is `value`; the mean of the known steps is added to it."""
    known = [step for step in steps if step is not None]
    score = Scored(value + (sum(known) / len(known) if known else 0), steps={"tidy": steps} if steps else {})
    return Trajectory(TASK, tuple(s for n in lengths for s in turn(n)), (), Stop.ANSWERED, score)


def test_turn_advantages_by_hand() -> None:
    # known: 1 0 0 1, mean 0.5, deviations ±0.5, variance 4 · 0.25 / 3
    unit = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    found = turn_advantages([[[1.0, 0.0], [0.0, None, 1.0]]], baseline="group", scale="group")
    assert found == [[pytest.approx([0, -unit]), pytest.approx([0, unit, unit])]]
    undivided = turn_advantages([[[1.0, 0.0], [0.0, None, 1.0]]], baseline="none", scale="none")
    assert undivided == [[[1.0, 0.0], [1.0, 1.0, 1.0]]]


def test_tokens_get_the_outcomes_advantage_and_that_of_their_turn_and_all_later_ones() -> None:
    better = rollout(1.0, (1.0, 0.0))
    forked = rollout(0.0, (0.0, None, 1.0), lengths=(1, 2, 1))
    forked = replace(
        forked, segments=forked.segments[4:], forks=(forked.segments[:4],)
    )  # turn 3 on a new path
    credit = grpo.credit([Group(TASK, (better, forked))], STEPS)
    outcome, unit = 0.5 / (math.sqrt(0.5) + 1e-4), 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert [row.ids for row in credit.rows] == [(7, 0, 1, 7, 0, 1, 2), (7, 0, 7, 0, 1), (7, 0)]
    assert credit.advantages is not None
    assert credit.advantages[0] == pytest.approx([outcome] * 2 + [outcome - unit] * 3)
    assert credit.advantages[1] == pytest.approx([-outcome] + [unit - outcome] * 2)
    assert credit.advantages[2] == pytest.approx([unit - outcome])


def test_outcome_credit_counts_the_mean_of_the_turns_in_the_reward() -> None:
    rewards = [1.0 + 0.5, 0.0 + 0.5]
    groups = [Group(TASK, (rollout(1.0, (1.0, 0.0)), rollout(0.0, (0.0, None, 1.0), (1, 1, 1))))]
    worth = (rewards[0] - 1.0) / (math.sqrt(0.5) + 1e-4)
    assert grpo.credit(groups, GrpoConfig()).advantages == pytest.approx((worth, -worth))


def test_turns_that_nothing_is_known_of_are_exactly_outcome_credit() -> None:
    groups = [Group(TASK, tuple(rollout(value, (None, None)) for value in (0.3, 0.9, 0.4)))]
    plain, by_turns = grpo.credit(groups, GrpoConfig()), grpo.credit(groups, STEPS)
    assert by_turns.rows == plain.rows
    assert by_turns.advantages == tuple((value,) * 5 for value in plain.advantages or ())
    assert len(set(by_turns.advantages or ())) == 3
    assert by_turns.warnings == ()


def test_credit_by_turns_says_so_where_nothing_judges_turns() -> None:
    credit = grpo.credit([Group(TASK, (rollout(1.0), rollout(0.0)))], STEPS)
    assert (
        credit.advantages == grpo.credit([Group(TASK, (rollout(1.0), rollout(0.0)))], GrpoConfig()).advantages
    )
    assert credit.warnings[0].startswith("credit: steps, but no reward judges turns")


def test_rewards_of_turns_teach_where_outcomes_are_equal() -> None:
    group = Group(TASK, (rollout(1.0, (1.0, 0.0)), rollout(1.0, (0.0, 0.0))))
    assert grpo.teaches(group, STEPS)
    assert not grpo.teaches(Group(TASK, (rollout(1.0), rollout(1.0))), STEPS)


def test_more_rewards_than_sampled_turns_are_refused() -> None:
    with pytest.raises(DataError, match="2 sampled turns, but 3 of them are rewarded"):
        grpo.credit([Group(TASK, (rollout(1.0, (1.0, 0.0, 1.0)), rollout(0.0)))], STEPS)


def episode(turns: int) -> Trajectory:
    messages = tuple(Message("assistant", "a") for _ in range(turns + 1))  # one of them an example
    return Trajectory(TASK, (), messages, Stop.ANSWERED, Unscored("not scored yet"), counts={"turns": turns})


def test_a_rubric_keeps_rewards_of_turns_and_adds_their_mean() -> None:
    parts = [
        Part("right", 1.0, "outcome", lambda _: 1.0),
        Part("tidy", 0.5, "process", lambda _: [1.0, None, 0.5]),
        Part("brief", 2.0, "process", lambda _: torch.tensor([0.0, 0.25, 0.5])),
        Part("calm", 1.0, "process", lambda _: 0.125),
    ]
    score = Rubric(parts).score(episode(3))
    assert isinstance(score, Scored)
    assert score.parts == {"right": 1.0, "tidy": 0.75, "brief": 0.25, "calm": 0.125}
    assert score.value == 1.0 + 0.375 + 0.5 + 0.125
    assert score.steps == {"tidy": (0.5, None, 0.25), "brief": (0.0, 0.5, 1.0)}
    assert score.turns == (0.5, 0.5, 1.25)
    assert score.outcome == 1.125  # right and calm


@pytest.mark.parametrize(
    ("kind", "returned", "why"),
    [
        ("process", [1.0, 0.0], "expected 3 got 2 rewards"),
        ("process", [1.0, 0.0, float("nan")], "turn 2: non-finite"),
        ("outcome", [1.0, 0.0, 1.0], "not a number but list"),
    ],
)
def test_lists_that_do_not_fit_leave_the_rollout_unscored(kind, returned, why) -> None:
    parts = [Part("right", 1.0, "outcome", lambda _: 1.0), Part("tidy", 1.0, kind, lambda _: returned)]
    score = Rubric(parts).score(episode(3))
    assert isinstance(score, Unscored)
    assert why in score.reason


def test_no_turn_known_is_a_part_that_does_not_apply() -> None:
    parts = [
        Part("right", 1.0, "outcome", lambda _: 0.5),
        Part("tidy", 1.0, "process", lambda _: [None, None]),
    ]
    score = Rubric(parts).score(episode(2))
    assert score == Scored(0.5, {"right": 0.5, "tidy": None}, None, {"tidy": (None, None)})
    assert isinstance(score, Scored)
    assert score.outcome == 0.5
    assert score.turns == (None, None)


def groups_of(*rewards: tuple[float, float]) -> list[Group]:
    return [Group(Task(f"t/{i}"), tuple(rollout(value) for value in pair)) for i, pair in enumerate(rewards)]


def test_dynamic_sampling_trains_on_the_first_groups_that_teach_and_counts_the_rest() -> None:
    config = GrpoConfig(tasks_per_step=2, dynamic_sampling=3)
    groups = groups_of((1, 1), (0, 1), (0, 0), (1, 0), (1, 0), (1, 1))
    credit = grpo.credit(groups, config)
    assert [row.group for row in credit.rows] == ["0", "0", "1", "1"]
    one = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert credit.advantages == pytest.approx((-one, one, one, -one))
    assert credit.metrics["groups_skipped"] == 3
    assert credit.metrics["groups_surplus"] == 1
    assert credit.metrics["sampling_rounds"] == 3
    assert credit.metrics["tokens_left_out"] == 4 * 2 * 5  # groups × rollouts × tokens
    assert credit.warnings == ()
    assert len(grpo.credit(groups, GrpoConfig(tasks_per_step=2)).rows) == 12


def test_dynamic_sampling_without_any_spread_says_so() -> None:
    credit = grpo.credit(groups_of((1, 1), (0, 0)), GrpoConfig(tasks_per_step=2, dynamic_sampling=1))
    assert credit.rows == ()
    assert credit.warnings[0].startswith("none of 2 groups has rewards that differ")


@pytest.mark.parametrize(("further", "rounds"), [(0, 1), (1, 2), (2, 3), (5, 3)])
def test_rounds_go_on_until_enough_groups_teach(further: int, rounds: int) -> None:
    config = GrpoConfig(tasks_per_step=2, dynamic_sampling=further)
    of_round = [groups_of((1, 1), (0, 1)), groups_of((0, 0), (1, 1)), groups_of((1, 0), (1, 1))]
    asked: list[int] = []

    def sample(number: int) -> list[Group]:
        asked.append(number)
        return of_round[number]

    groups = collect_rounds(sample, lambda groups: grpo.enough(groups, config), further)
    assert asked == list(range(rounds))
    assert groups == [group for number in asked for group in of_round[number]]


def test_corrections_by_hand() -> None:
    policy, sampler = (
        torch.log(torch.tensor([0.4, 0.3, 0.9, 0.2])),
        torch.log(torch.tensor([0.1, 0.6, 0.6, 0.2])),
    )
    row = torch.tensor([0, 0, 1, 1])  # ratios 4, 0.5; 1.5, 1: products 2 and 1.5

    def weights(mask: bool, sequence: bool, cap: float) -> tuple[list[float], list[bool]]:
        found, beyond = sampler_correction(policy, sampler, row, 2, cap=cap, mask=mask, sequence=sequence)
        return found.tolist(), beyond.tolist()

    beyond = [True, False, False, False]
    assert weights(False, False, 1.75) == (pytest.approx([1.75, 0.5, 1.5, 1.0]), beyond)
    assert weights(True, False, 1.75) == (pytest.approx([0.0, 0.5, 1.5, 1.0]), beyond)
    assert weights(False, True, 1.75)[0] == pytest.approx([1.75, 1.75, 1.5, 1.5])
    assert weights(True, True, 1.75)[0] == pytest.approx([0.0, 0.0, 1.5, 1.5])


def test_the_clipped_ratio_is_to_the_trainers_own_start() -> None:
    """Sampled at 0.5; the trainer said 0.25 and now says 0.3: ratio 1.2, weight 0.5."""
    logprobs = torch.log(torch.tensor([0.3])).requires_grad_()
    inputs = LossInputs(
        logprobs, torch.tensor([0]), 1, denominator=1.0, tokens=1, advantages=torch.tensor([2.0]),
        old_logprobs=torch.log(torch.tensor([0.5])), policy_logprobs=torch.log(torch.tensor([0.25])),
    )  # fmt: skip
    output = grpo.loss(inputs, GrpoConfig(correction="truncate", clip_high=0.5))
    assert output.total.item() == pytest.approx(-0.5 * 1.2 * 2.0)
    output.total.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-0.5 * 1.2 * 2.0)  # of exp(log p - old) · A, weight detached


def test_settings_that_do_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="correction_cap do nothing with correction: none"):
        GrpoConfig(correction_cap=2.0)
