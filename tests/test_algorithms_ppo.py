"""PPO's credit and loss, with numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from renshu.algorithms import Extras, LossInputs, PpoConfig, ppo
from renshu.algorithms.advantages import gae, whitened
from renshu.errors import ConfigError, DataError
from renshu.types import Group, Scored, Segment, Stop, Task, Trajectory, Unscored

TASK = Task("t/0")


def sampled(*ids: int) -> Segment:
    return Segment(ids, True, tuple(-0.1 * i for i in ids))


def played(*segments: Segment, score: Any, **options: Any) -> Trajectory:
    options = {"stop": Stop.ANSWERED} | options
    return Trajectory(TASK, segments, (), score=score, **options)


def one(*trajectories: Trajectory) -> list[Group]:
    return [Group(TASK, trajectories)]


def test_gae_by_hand() -> None:
    # δ = 0.9·0.4 - 0.5, 0.9·0.6 - 0.4, 0.9·0.8 - 0.6, 1 - 0.8 = -0.14, 0.14, 0.12, 0.2; γλ = 0.45
    # A_3 = 0.2; A_2 = 0.12 + 0.45·0.2; A_1 = 0.14 + 0.45·0.21; A_0 = -0.14 + 0.45·0.2345
    found = gae([0, 0, 0, 1], [0.5, 0.4, 0.6, 0.8], gamma=0.9, gae_lambda=0.5)
    assert found == pytest.approx([-0.034475, 0.2345, 0.21, 0.2])


STEPS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=12)


@given(STEPS, st.floats(0, 1))
def test_gae_with_lambda_1_is_the_return_less_the_value(
    steps: list[tuple[float, float]], gamma: float
) -> None:
    rewards, values = zip(*steps, strict=True)
    returns = [sum(gamma**k * reward for k, reward in enumerate(rewards[t:])) for t in range(len(rewards))]
    expected = [g - value for g, value in zip(returns, values, strict=True)]
    assert gae(rewards, values, gamma=gamma, gae_lambda=1.0) == pytest.approx(expected, abs=1e-9)


@given(STEPS, st.floats(0, 1))
def test_gae_with_lambda_0_is_the_error_of_one_step(steps: list[tuple[float, float]], gamma: float) -> None:
    rewards, values = zip(*steps, strict=True)
    after = [*values[1:], 0.0]
    expected = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    assert gae(rewards, values, gamma=gamma, gae_lambda=0.0) == pytest.approx(expected, abs=1e-9)


def test_whitening_by_hand() -> None:
    parts = whitened([torch.tensor([1.0, 3.0]), torch.tensor([4.0, 0.0])])
    # mean 2, squares 1 + 1 + 4 + 4, sample deviation sqrt(10 / 3)
    divisor = math.sqrt(10 / 3) + 1e-4
    assert [part.tolist() for part in parts] == [
        pytest.approx([-1 / divisor, 1 / divisor]),
        pytest.approx([2 / divisor, -2 / divisor]),
    ]
    for rounding in ([0.1, 0.1, 0.1 + 1e-9], [1e-8, -1e-8, 3e-8], [100.0, 100.0, 100.00005]):
        assert torch.cat(whitened([torch.tensor(rounding)])).tolist() == [0.0, 0.0, 0.0]


def inputs(**options: Any) -> LossInputs:
    """Three tokens: ratios 1.5, 0.5 and 1."""
    old = torch.tensor([-1.0, -1.0, -1.0])
    return LossInputs(
        logprobs=old + torch.log(torch.tensor([1.5, 0.5, 1.0])),
        row=torch.tensor([0, 0, 1]),
        rows=2,
        denominator=3.0,
        tokens=3,
        old_logprobs=old,
        advantages=torch.tensor([1.0, -1.0, 2.0]),
        values=torch.tensor([0.5, 0.5, 0.0]),
        old_values=torch.tensor([0.0, 0.4, 0.0]),
        returns=torch.tensor([1.0, 0.0, 0.3]),
        **options,
    )


def test_the_loss_by_hand() -> None:
    output = ppo.loss(inputs(), PpoConfig(value={"coefficient": 0.1}))
    # objective: min(1.5, 1.2), min(-0.5, -0.8), 2. value: V clipped to 0.2, to 0.5, to 0:
    # max(0.25, 0.64), max(0.25, 0.25), 0.09, halved
    policy, value = -(1.2 - 0.8 + 2.0), 0.32 + 0.125 + 0.045
    assert output.total.item() == pytest.approx(policy + 0.1 * value)
    found = {name: mean.value for name, mean in output.metrics.items()}
    assert found == {
        "policy_loss": pytest.approx(policy / 3),
        "value_loss": pytest.approx(value / 3),
        "value_clipped": pytest.approx(1 / 3),
        "ratio": pytest.approx(1.0),
        "clipped_high": pytest.approx(1 / 3),
        "clipped_low": pytest.approx(1 / 3),
    }


def test_values_may_move_freely() -> None:
    output = ppo.loss(inputs(), PpoConfig(value={"coefficient": 1.0, "clip": 0.0}))
    assert output.total.item() == pytest.approx(-2.4 + (0.25 + 0.25 + 0.09) / 2)
    assert output.metrics["value_clipped"].value == 0.0


def test_kl_and_entropy_in_the_loss_by_hand() -> None:
    given_inputs = inputs(
        reference_logprobs=torch.log(torch.tensor([1.5, 1.0, 1.0])) - 1.0,
        entropy=torch.tensor([1.0, 2.0, 3.0]),
    )
    config = PpoConfig(kl="loss", beta=0.5, entropy_bonus=0.1, clip_high=0.3, value={"coefficient": 0.1})
    # k3 is 0 but for the second token, whose reference is twice as likely: 2 - log 2 - 1
    kl = 1 - math.log(2)
    output = ppo.loss(given_inputs, config)
    assert output.total.item() == pytest.approx(-(1.3 - 0.8 + 2) + 0.1 * 0.49 + 0.5 * kl - 0.1 * 6)
    assert output.metrics["kl"].value == pytest.approx(kl / 3)
    assert output.metrics["entropy"].value == pytest.approx(2.0)


def test_the_last_sampled_token_earns_the_reward() -> None:
    """e24: neither what a tool says after it nor padding does."""
    tool = Segment((8, 9))
    found = ppo.credit(
        one(
            played(Segment((1, 2)), sampled(3, 4), tool, sampled(5), score=Scored(0.7)),
            played(Segment((1, 2)), sampled(3), tool, score=Scored(-1.0), stop=Stop.TURNS),
            played(Segment((1, 2)), sampled(3), score=Unscored("judge_failed: down")),
            played(Segment((1, 2)), sampled(3), score=Scored(math.nan)),
            played(Segment((1, 2)), sampled(6), score=Scored(0.2), stop=Stop.LENGTH),
        ),
        PpoConfig(),
    )
    assert found.rewards == ((0.0, 0.0, 0.7), (-1.0,), (0.2,))
    assert found.paths == ((0,), (1,), (2,))
    assert [row.group for row in found.rows] == ["0", "0", "0"]
    assert found.metrics["masked"] == 0


def test_rollouts_that_the_budget_cut_can_be_left_out() -> None:
    cut = played(Segment((1,)), sampled(3), score=Scored(1.0), stop=Stop.LENGTH)
    whole = played(Segment((1,)), sampled(4), score=Scored(0.5))
    found = ppo.credit(one(cut, whole), PpoConfig(mask_truncated=True))
    assert (found.rewards, found.metrics["masked"], found.warnings) == (((0.5,),), 1, ())
    nothing = ppo.credit(one(cut), PpoConfig(mask_truncated=True))
    assert nothing.rows == ()
    assert "raise sample.max_tokens" in nothing.warnings[0]
    assert ppo.estimate(nothing, Extras(values=()), PpoConfig()).advantages == ()


def test_judged_turns_earn_their_shares() -> None:
    """Together an episode's tokens earn its reward: a part adds the mean of the turns that it knows."""
    score = Scored(
        0.5 + (0.2 - 0.4) / 2 + 0.3,
        steps={"tidy": (0.2, -0.4, None), "brief": (None, None, 0.3)},
    )
    tool = Segment((9,))
    rollout = played(Segment((1,)), sampled(3, 4), tool, sampled(5), tool, sampled(6, 7), score=score)
    (earned,) = ppo.credit(one(rollout), PpoConfig()).rewards
    assert earned == pytest.approx((0.0, 0.1, -0.2, 0.0, 0.8))
    assert sum(earned) == pytest.approx(score.value)


def test_paths_of_one_rollout_are_one_episode() -> None:
    """Values flow from a path that was left behind into the next one, and only the last one is paid."""
    rollout = played(
        Segment((1, 2)),
        sampled(5),
        score=Scored(1.0),
        forks=((Segment((1,)), sampled(3, 4)), (Segment((1, 9)),)),
    )
    config = PpoConfig(gamma=0.9, gae_lambda=0.5, whiten=False)
    found = ppo.credit(one(rollout, rollout), config)
    assert found.rewards == ((0.0, 0.0), (1.0,), (0.0, 0.0), (1.0,))
    assert found.paths == ((0, 1), (2, 3))
    values = (torch.tensor([0.5, 0.4]), torch.tensor([0.6])) * 2
    done = ppo.estimate(found, Extras(values=values), config)
    # δ = 0.9·0.4 - 0.5, 0.9·0.6 - 0.4, 1 - 0.6 = -0.14, 0.14, 0.4; A_1 = 0.14 + 0.45·0.4 = 0.32
    expected = [pytest.approx((-0.14 + 0.45 * 0.32, 0.32), abs=1e-6), pytest.approx((0.4,))]
    assert list(done.advantages or ()) == expected * 2
    assert list(done.returns or ()) == [pytest.approx((0.504, 0.72)), pytest.approx((1.0,))] * 2


def test_kl_in_the_reward_by_hand() -> None:
    """The sampler was 0.3 and 0.5 nats surer than the reference: every token pays for it."""
    rollout = played(Segment((1,)), sampled(3, 4), score=Scored(1.0))  # log-probs -0.3 and -0.4
    config = PpoConfig(beta=0.1, gae_lambda=1.0, whiten=False)
    extras = Extras(values=(torch.zeros(2),), reference=(torch.tensor([-0.6, -0.9]),))
    done = ppo.estimate(ppo.credit(one(rollout), config), extras, config)
    assert done.advantages == (pytest.approx((1.0 - 0.03 - 0.05, 1.0 - 0.05)),)
    assert done.metrics["kl"] == pytest.approx(0.4)


def test_metrics_of_values_by_hand() -> None:
    rollouts = [played(Segment((1,)), sampled(3), score=Scored(reward)) for reward in (1.0, 0.0, 0.5)]
    config = PpoConfig()
    values = tuple(torch.tensor([value]) for value in (0.5, 0.25, 0.0))
    done = ppo.estimate(ppo.credit(one(*rollouts), config), Extras(values=values), config)
    # R = 1, 0, 0.5: variance 1/6. R - V = 0.5, -0.25, 0.5: mean 0.25, variance 0.125
    assert done.metrics["explained_variance"] == pytest.approx(1 - 0.125 * 6)
    assert (done.metrics["returns"], done.metrics["values"]) == (pytest.approx(0.5), pytest.approx(0.25))
    assert done.returns == ((1.0,), (0.0,), (0.5,))
    # A = 0.5, -0.25, 0.5: sample deviation sqrt(0.1875)
    divisor = math.sqrt(0.1875) + 1e-4
    assert sum(done.advantages or (), ()) == pytest.approx((0.25 / divisor, -0.5 / divisor, 0.25 / divisor))
    equal = ppo.estimate(ppo.credit(one(rollouts[0]), config), Extras(values=values[:1]), config)
    assert math.isnan(equal.metrics["explained_variance"])


def test_sampled_tokens_need_log_probs() -> None:
    with pytest.raises(DataError, match="missing_logprobs"):
        ppo.credit(one(played(Segment((1,)), Segment((2,), True), score=Scored(1.0))), PpoConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl": "loss"}, "kl: loss does nothing without beta"),
        ({"minibatches": 3}, "does not split into minibatches: 3; possible: 1, 2, 4, 8"),
        ({"value": {"critic": "separate", "trunk": True}}, "shares no layers"),
        ({"value": {"critics": "head"}}, "critics.*(?s:.*)coefficient"),
        ({"gae_lambda": 1.5}, "gae_lambda"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PpoConfig.from_dict(settings)


def test_greedy_rollouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="PPO learns from what was tried"):
        ppo.algorithm(PpoConfig(), temperature=0.0)


def test_a_critic_learns_ten_times_as_fast_unless_told() -> None:
    assert PpoConfig(learning_rate=2e-5).critic_learning_rate == pytest.approx(2e-4)
    assert PpoConfig(value={"learning_rate": 3e-4}).critic_learning_rate == 3e-4
