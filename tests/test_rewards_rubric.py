"""Rubrics: what is summed, what is left out, and when a score is unknown."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.errors import ContractError
from renshu.rewards import Part, Rubric, cause_of, reward_list
from renshu.types import Scored, Stop, Task, Trajectory, Unscored

EPISODE = Trajectory(Task("t/train/0"), (), (), Stop.ANSWERED, Unscored("not scored yet"))


def part(name, weight, kind, value):
    def measure(_):
        if isinstance(value, Exception):
            raise value
        return value

    return Part(name, weight, kind, measure)


def test_weights_are_summed_and_parts_kept():
    rubric = Rubric([part("right", 2.0, "outcome", 0.5), part("tidy", 0.25, "format", True)], lambda _: False)
    assert rubric.score(EPISODE) == Scored(1.25, {"right": 0.5, "tidy": 1.0}, success=False)


def test_none_is_left_out_of_the_sum():
    rubric = Rubric([part("right", 1.0, "outcome", 0.5), part("tidy", 0.25, "format", None)])
    assert rubric.score(EPISODE) == Scored(0.5, {"right": 0.5, "tidy": None}, success=None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", [1.0], KeyError("fare")])
def test_a_failing_part_makes_the_rollout_unscored_and_is_named(bad):
    rubric = Rubric([part("right", 1.0, "outcome", 1.0), part("tidy", 0.1, "format", bad)])
    score = rubric.score(EPISODE)
    assert isinstance(score, Unscored)
    assert cause_of(score) == "reward_failed"
    assert "'tidy'" in score.reason


def test_failing_judge_and_failing_success_have_their_own_causes():
    judge = Rubric([part("right", 1.0, "outcome", 1.0), part("kind", 1.0, "judge", TimeoutError())])
    assert cause_of(judge.score(EPISODE)) == "judge_failed"

    def success(_):
        raise ZeroDivisionError("no rows")

    assert Rubric([part("right", 1.0, "outcome", 1.0)], success).score(EPISODE) == Unscored(
        "success_failed: ZeroDivisionError: no rows"
    )


def test_no_scored_outcome_is_unknown_although_the_format_is_known():
    rubric = Rubric([part("right", 1.0, "outcome", None), part("tidy", 0.1, "format", 1.0)])
    assert rubric.score(EPISODE) == Unscored("no_outcome: part 'right' gave no reward")
    assert cause_of(Rubric([part("tidy", 0.1, "format", 1.0)]).score(EPISODE)) == "no_outcome"


def test_judges_decide_only_where_no_outcome_is_measured():
    assert Rubric([part("kind", 2.0, "judge", 0.25)]).score(EPISODE) == Scored(0.5, {"kind": 0.25}, None)
    with_outcome = Rubric([part("right", 1.0, "outcome", None), part("kind", 2.0, "judge", 0.25)])
    assert cause_of(with_outcome.score(EPISODE)) == "no_outcome"


def test_bad_declarations_are_refused():
    with pytest.raises(ContractError, match="unknown kind 'style'"):
        part("tidy", 1.0, "style", 1.0)
    with pytest.raises(ContractError, match="non-finite"):
        part("tidy", float("nan"), "format", 1.0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "expected 4 got 1"),
        ([1.0, 0.0, 1.0], "expected 4 got 3"),
        (1.0, "not a list"),
        ("1000", "not a list"),
        (["1", 0, 0, 0], "not a number"),
        ([float("inf"), 0, 0, 0], "non-finite"),
        (["inf", 0, 0, 0], "not a number"),
        ([0, 0, float("nan"), 0], "completion 2: non-finite"),
    ],
)
def test_reward_lists_of_the_wrong_form_are_refused(returned, message):
    with pytest.raises(ValueError, match=message):
        reward_list("f", returned, 4)


def test_reward_lists_are_accepted_as_they_are():
    assert reward_list("f", [True, False, True, False], 4) == [1.0, 0.0, 1.0, 0.0]
    assert reward_list("f", (0.5, None), 2) == [0.5, None]
    assert reward_list("f", numpy.array([0.25, 1.0]), 2) == [0.25, 1.0]
    assert reward_list("f", torch.tensor([0.25, 1.0]), 2) == [0.25, 1.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, -2.0]), st.none() | st.floats(-1, 1)), min_size=1, max_size=6
    )
)
def test_the_sum_is_that_of_the_parts_that_apply(rows):
    score = Rubric([part(f"p{i}", w, "outcome", v) for i, (w, v) in enumerate(rows)]).score(EPISODE)
    known = [w * v for w, v in rows if v is not None]
    if known:
        assert isinstance(score, Scored)
        assert score.value == pytest.approx(sum(known))
    else:
        assert isinstance(score, Unscored)


class Quit(BaseException):
    """Not an Exception, like what `sys.exit` raises."""


def raising(error):
    def measure(_):
        raise error

    return measure


@pytest.mark.parametrize("error", [SystemExit(0), Quit()])
def test_a_scorer_that_leaves_does_not_end_the_run(error):
    rubric = Rubric([Part("right", 1.0, "outcome", raising(error))])
    assert rubric.score(EPISODE) == Unscored(
        f"reward_failed: part 'right': {type(error).__name__}" + (": 0" if str(error) else "")
    )
    rubric = Rubric([part("right", 1.0, "outcome", 1.0)], raising(error))
    assert cause_of(rubric.score(EPISODE)) == "success_failed"


def test_an_interrupt_ends_the_run():
    with pytest.raises(KeyboardInterrupt):
        Rubric([Part("right", 1.0, "outcome", raising(KeyboardInterrupt()))]).score(EPISODE)


@pytest.mark.parametrize(
    ("returned", "known"),
    [
        (True, True),
        (False, False),
        (None, None),
        (1, True),
        (0.0, False),
        (numpy.bool_(False), False),
        (numpy.array([1.0]), True),
        (torch.tensor(True), True),
    ],
)
def test_success_is_yes_or_no_or_not_defined(returned, known):
    score = Rubric([part("right", 1.0, "outcome", 1.0)], lambda _: returned).score(EPISODE)
    assert score == Scored(1.0, {"right": 1.0}, success=known)


@pytest.mark.parametrize("returned", ["no", "False", "", float("nan"), 0.3, 2, [0], {}, numpy.array([0, 1])])
def test_success_that_is_neither_is_unknown(returned):
    score = Rubric([part("right", 1.0, "outcome", 1.0)], lambda _: returned).score(EPISODE)
    assert isinstance(score, Unscored)
    assert cause_of(score) == "success_failed"


def test_a_sum_beyond_all_numbers_is_unknown():
    rubric = Rubric([part("right", 1e308, "outcome", 10.0)])
    assert rubric.score(EPISODE) == Unscored("reward_failed: the weighted sum of the parts is inf")
