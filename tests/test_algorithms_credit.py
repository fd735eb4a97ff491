"""Advantages and credit: numbers worked by hand, and what must be left out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.algorithms import GrpoConfig, grpo
from renshu.algorithms.advantages import advantages, spread
from renshu.errors import ConfigError, DataError
from renshu.rollout import rollout_metrics
from renshu.types import Group, Score, Scored, Segment, Stop, Task, Trajectory, Unscored


def rollout(
    score: Score, length: int = 2, stop: Stop = Stop.ANSWERED, *, logprobs: bool = True
) -> Trajectory:
    sampled = Segment(tuple(range(length)), sampled=True, logprobs=(-1.0,) * length if logprobs else None)
    segments = (Segment((7, 8)), sampled) if length else (Segment((7, 8)),)
    return Trajectory(Task("t/0"), segments, (), stop, score)


def group(*rewards: float | None, **options: object) -> Group:
    scores: list[Score] = [Unscored("sandbox") if r is None else Scored(r) for r in rewards]
    return Group(Task("t/0"), tuple(rollout(score, **options) for score in scores))  # type: ignore[arg-type]


def test_advantages_by_hand() -> None:
    # first group: mean 2, deviations -1 0 1, std 1; second: mean 5, deviations -1 1, std √2; all: mean 3.2
    rewards = [[1.0, 2.0, 3.0], [4.0, 6.0]]
    by_group = advantages(rewards, baseline="group", scale="group")
    assert by_group[0] == pytest.approx([-1 / 1.0001, 0, 1 / 1.0001])
    assert by_group[1] == pytest.approx([-1 / (math.sqrt(2) + 1e-4), 1 / (math.sqrt(2) + 1e-4)])
    batch = math.sqrt(3.7) + 1e-4  # (4.84 + 1.44 + 0.04 + 0.64 + 7.84) / 4
    assert advantages(rewards, baseline="group", scale="batch")[1] == pytest.approx([-1 / batch, 1 / batch])
    assert advantages(rewards, baseline="group", scale="none") == [[-1, 0, 1], [-1, 1]]
    # leave one out: 1 - 2.5, 2 - 2, 3 - 1.5; 4 - 6, 6 - 4
    assert advantages(rewards, baseline="rloo", scale="none") == [[-1.5, 0, 1.5], [-2, 2]]
    assert advantages(rewards, baseline="none", scale="none") == rewards


def test_e01_equal_rewards_teach_nothing_and_are_reported() -> None:
    groups = [group(1, 1, 1, 1), group(0, 0, 0, 0)]
    assert grpo.credit(groups, GrpoConfig()).advantages == (0.0,) * 8
    assert rollout_metrics(groups)["groups/equal_rewards"] == 2
    assert rollout_metrics(groups)["groups/trained"] == 0


def test_e03_spread_is_judged_within_groups_not_over_the_batch() -> None:
    groups = [group(5, 5), group(-5, -5)]
    assert grpo.credit(groups, GrpoConfig()).metrics["reward_spread"] == 0.0
    assert rollout_metrics(groups)["groups/spread"] == 0.0
    assert spread([5, 5, -5, -5]) == pytest.approx(5.7735, abs=1e-4)  # what would have looked healthy


def test_e06_an_unknown_reward_leaves_all_others_finite() -> None:
    # two functions summed, unknown parts left out: 1, 0 + 1, 1 + 0, 0 + 0; then one rollout wholly unknown
    made = advantages([[1.0, 1.0, 1.0, 0.0]], baseline="group", scale="group")[0]
    assert made == pytest.approx([0.25 / 0.5001, 0.25 / 0.5001, 0.25 / 0.5001, -0.75 / 0.5001])
    assert advantages([[1.0, None, 0.0]], baseline="group", scale="none") == [[0.5, None, -0.5]]


def test_e28_rounding_in_rewards_is_no_information() -> None:
    assert advantages([[0.9, 0.9, 0.9, 0.9000001]], baseline="group", scale="group") == [[0.0] * 4]
    assert advantages([[9e5, 9e5 + 0.01]], baseline="group", scale="none") == [[0.0, 0.0]]
    # the same spread in small rewards is real
    assert advantages([[0.0, 1e-7]], baseline="group", scale="none")[0] == pytest.approx([-5e-8, 5e-8])


def test_without_a_baseline_equal_rewards_are_not_blown_up() -> None:
    assert advantages([[1.0, 1.0]], baseline="none", scale="group") == [[1.0, 1.0]]
    assert advantages([[1.0, 1.0]], baseline="none", scale="batch") == [[1.0, 1.0]]
    assert advantages([[0.7], [None]], baseline="none", scale="none") == [[0.7], [None]]


rewards = st.lists(
    st.lists(st.none() | st.floats(-100, 100, allow_nan=False), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(rewards, st.sampled_from(["group", "rloo"]), st.sampled_from(["group", "batch", "none"]))
def test_advantages_of_a_group_are_finite_and_sum_to_zero(groups: list, baseline: str, scale: str) -> None:
    for known, made in zip(groups, advantages(groups, baseline=baseline, scale=scale), strict=True):
        values = [value for value in made if value is not None]
        assert all(math.isfinite(value) for value in values)
        assert abs(sum(values)) <= 1e-6 * (1 + max(map(abs, values), default=0.0))
        enough = sum(reward is not None for reward in known) >= 2
        assert [value is not None for value in made] == [enough and reward is not None for reward in known]


def test_unscored_rollouts_and_lonely_groups_are_left_out_and_counted() -> None:
    groups = [group(1, None, 0), group(1, None, None), group(None, None)]
    made = grpo.credit(groups, GrpoConfig(scale="none"))
    assert made.advantages == (0.5, -0.5)
    assert [row.group for row in made.rows] == ["0", "0"]
    assert made.metrics["groups_skipped"] == 2
    metrics = rollout_metrics(groups)
    assert (metrics["unscored"], metrics["groups"]) == (5, 3)
    assert metrics["reward"] == pytest.approx(2 / 3)


def test_a_reward_that_is_no_number_is_unknown() -> None:
    made = grpo.credit([group(1, math.nan, 0, math.inf)], GrpoConfig(scale="none"))
    assert made.advantages == (0.5, -0.5)
    assert len(made.rows) == 2


def test_all_paths_of_a_forked_rollout_get_its_advantage() -> None:
    trajectory = rollout(Scored(1.0))
    fork = (Segment((7, 9)), Segment((3,), sampled=True, logprobs=(-0.5,)))
    forked = Trajectory(Task("t/0"), trajectory.segments, (), Stop.ANSWERED, Scored(1.0), forks=(fork,))
    made = grpo.credit([Group(Task("t/0"), (forked, rollout(Scored(0.0))))], GrpoConfig(scale="none"))
    assert [row.ids for row in made.rows] == [(7, 9, 3), (7, 8, 0, 1), (7, 8, 0, 1)]
    assert made.advantages == (0.5, 0.5, -0.5)


def test_e11_masked_rollouts_leave_numerator_and_denominator_but_not_the_baseline() -> None:
    rollouts = (rollout(Scored(1.0), 10), rollout(Scored(0.0), 90, Stop.LENGTH))
    config = GrpoConfig(mask_truncated=True, scale="none")
    made = grpo.credit([Group(Task("t/0"), rollouts)], config)
    assert [sum(row.trained) for row in made.rows] == [10]
    assert made.advantages == (0.5,)
    assert made.metrics["masked"] == 1
    assert len(grpo.credit([Group(Task("t/0"), rollouts)], GrpoConfig()).rows) == 2


def test_e12_nothing_left_after_masking_is_said_in_words() -> None:
    cut = Group(Task("t/0"), tuple(rollout(Scored(r), 5, Stop.LENGTH) for r in (1.0, 0.0)))
    made = grpo.credit([cut], GrpoConfig(mask_truncated=True))
    assert made.rows == ()
    assert made.warnings[0].startswith("100% of the rollouts were cut by the token budget")
    assert "raise sample.max_tokens" in made.warnings[0]


def test_e16_lengths_of_better_and_worse_rollouts_are_logged() -> None:
    rollouts = (rollout(Scored(1.0), 10), rollout(Scored(0.0), 100), rollout(Scored(0.0), 50))
    made = grpo.credit([Group(Task("t/0"), rollouts)], GrpoConfig())
    assert (made.metrics["tokens_better"], made.metrics["tokens_worse"]) == (10, 75)


def test_missing_logprobs_are_the_reason_given() -> None:
    with pytest.raises(DataError, match="missing_logprobs: a rollout of task 't/0'"):
        grpo.credit([group(1, 0, logprobs=False)], GrpoConfig())


def test_a_rollout_that_sampled_nothing_is_no_row() -> None:
    made = grpo.credit([group(1, 0, length=0)], GrpoConfig())
    assert made.rows == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": 1}, "GRPO needs group >= 2"),
        ({"group": 1, "baseline": "rloo"}, "GRPO needs group >= 2"),
        ({"tasks_per_step": 6, "minibatches": 4}, "possible: 1, 2, 3, 6"),
        ({"loss": "cispo", "delta": 2.0}, "cispo has no clip_low or delta"),
        ({"delta": 1.1}, "delta: 1.1 is within 1 + clip_high (1.2)"),
        ({"delta": 1.25, "clip_high": 0.28}, "within 1 + clip_high (1.28)"),
        ({"correct_kl": True}, "does nothing without beta"),
        ({"loss": "ppo"}, "loss: Input should be 'grpo', 'dr_grpo', 'dapo', 'bnpo' or 'cispo'"),
        ({"lr": 1e-3}, "unknown key 'lr'"),
    ],
)
def test_e09_impossible_settings_are_config_errors(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GrpoConfig(**settings)
    assert message in str(caught.value)


def test_possible_settings_that_look_odd() -> None:
    assert GrpoConfig(group=1, baseline="none").group == 1
    assert GrpoConfig(loss="cispo").ratio_bound == 4.0
    assert GrpoConfig(clip_low=0.1).ratio_bound == 0.1
    # a resolved recipe names every default
    assert GrpoConfig(**GrpoConfig(loss="cispo").model_dump()) == GrpoConfig(loss="cispo")


def test_greedy_sampling_is_refused() -> None:
    with pytest.raises(ConfigError, match="sample above 0"):
        grpo.algorithm(GrpoConfig(), temperature=0.0, max_tokens=8)
