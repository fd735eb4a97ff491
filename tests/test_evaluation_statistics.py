"""Statistics against scipy and numbers worked by hand."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from renshu.evaluation.statistics import bootstrap_mean, mcnemar, paired_difference, pass_hat_k, wilson


def test_wilson_by_hand():
    # 8 of 10, z = 1.95996: centre (0.8 + 0.19207) / 1.38415 = 0.71674, half 0.22658.
    interval = wilson(8, 10)
    assert interval.estimate == 0.8
    assert interval.low == pytest.approx(0.49016, abs=1e-5)
    assert interval.high == pytest.approx(0.94331, abs=1e-4)


def test_wilson_at_the_ends():
    assert wilson(0, 20).low == 0.0
    assert wilson(20, 20).high == 1.0
    assert wilson(0, 20).high == pytest.approx(3.8415 / 23.8415, abs=1e-4)  # z²/(n + z²)
    empty = wilson(0, 0)
    assert math.isnan(empty.estimate)
    assert (empty.low, empty.high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="5 successes of 4"):
        wilson(5, 4)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 500), st.data())
def test_wilson_equals_scipy(n, data):
    k = data.draw(st.integers(0, n))
    ours, theirs = wilson(k, n), stats.binomtest(k, n).proportion_ci(method="wilson")
    assert ours.low == pytest.approx(theirs.low, abs=1e-12)
    assert ours.high == pytest.approx(theirs.high, abs=1e-12)


def test_mcnemar_by_hand():
    first = [True, False, False, False, False, False, False, None]
    second = [False, True, True, True, True, True, False, True]
    test = mcnemar(first, second)
    assert (test.gained, test.lost) == (5, 1)
    assert test.p == pytest.approx(2 * (1 + 6) / 64)  # 14/64
    assert mcnemar([True], [True]).p == 1.0  # nothing discordant
    assert mcnemar([True, False], [False, True]).p == 1.0  # 2 * 3/4, cut at 1
    with pytest.raises(ValueError, match="differ in length"):
        mcnemar([True], [])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_equals_scipy(gained, lost):
    outcomes = [(False, True)] * gained + [(True, False)] * lost
    test = mcnemar([a for a, _ in outcomes], [b for _, b in outcomes])
    expected = stats.binomtest(gained, gained + lost).pvalue if outcomes else 1.0
    assert test.p == pytest.approx(expected, rel=1e-9)


def test_pass_hat_k_is_the_share_of_all_successful_subsets():
    tries = [1, 1, 1, 0, 1]
    for k in range(1, 6):
        subsets = list(itertools.combinations(tries, k))
        assert pass_hat_k(4, 5, k) == pytest.approx(sum(all(s) for s in subsets) / len(subsets))
    with pytest.raises(ValueError, match="pass\\^6"):
        pass_hat_k(4, 5, 6)


def test_bootstrap_mean():
    values = [0.0] * 50 + [1.0] * 50
    interval = bootstrap_mean(values)
    assert interval.estimate == 0.5
    # The standard error is 0.05, so the 95 % interval is about 0.5 ± 0.098.
    assert interval.low == pytest.approx(0.402, abs=0.02)
    assert interval.high == pytest.approx(0.598, abs=0.02)
    assert bootstrap_mean(values) == interval
    assert math.isnan(bootstrap_mean([]).estimate)


def test_paired_difference_leaves_out_the_unknown():
    interval = paired_difference([0.0, 1.0, None, 0.5], [1.0, 1.0, 1.0, None])
    assert interval.estimate == 0.5  # (1 + 0) / 2
    assert (interval.low, interval.high) == (0.0, 1.0)
