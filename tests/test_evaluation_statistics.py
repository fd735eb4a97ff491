"""Statistics against scipy and numbers worked by hand."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from renshu.evaluation.statistics import (
    bootstrap_mean,
    holm,
    mcnemar,
    paired_difference,
    paired_rates,
    pass_at_k,
    pass_hat_k,
    wilson,
)


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


def test_wilson_of_shares_is_never_narrower_than_they_are():
    shares = [0.0, 0.5, 0.5, 1.0] * 5
    assert wilson(sum(shares), 20) == wilson(10, 20)


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


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    tries = [1, 0, 0, 1, 0]
    for k in range(1, 6):
        subsets = list(itertools.combinations(tries, k))
        assert pass_at_k(2, 5, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_fewer_tries_than_k_are_refused_rather_than_divided_by_k():
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="16 needs 16 of 8 tries"):
            estimate(8, 8, 16)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(ps):
    sets = [s for size in range(1, len(ps) + 1) for s in itertools.combinations(range(len(ps)), size)]
    for index, adjusted in enumerate(holm(ps)):
        worst = max(min(1.0, len(s) * min(ps[i] for i in s)) for s in sets if index in s)
        assert adjusted == pytest.approx(worst)


def test_holm_by_hand():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def outcomes(both, lost, gained, neither):
    pairs = [(True, True)] * both + [(True, False)] * lost + [(False, True)] * gained
    pairs += [(False, False)] * neither
    return [a for a, _ in pairs], [b for _, b in pairs]


def test_paired_rates_by_hand():
    # Margins 6 and 8 of 10: Wilson 0.31267..0.83182 and 0.49016..0.94332; phi: 5*1 - 1*3 - 10/2 < 0, so 0.
    interval = paired_rates(*outcomes(5, 1, 3, 1))
    assert interval.estimate == pytest.approx(0.2)
    assert interval.low == pytest.approx(0.2 - math.hypot(0.8 - 0.49016, 0.83182 - 0.6), abs=1e-4)
    assert interval.high == pytest.approx(0.2 + math.hypot(0.94332 - 0.8, 0.6 - 0.31267), abs=1e-4)
    # Pairs that go together narrow it: 40 both, 40 neither, 0 lost, 20 gained of 100.
    phi = (40 * 40 - 50) / math.sqrt(40 * 60 * 60 * 40)
    one, two = wilson(40, 100), wilson(60, 100)
    down, across = 0.6 - two.low, one.high - 0.4
    interval = paired_rates(*outcomes(40, 0, 20, 40))
    assert interval.low == pytest.approx(0.2 - math.sqrt(down**2 - 2 * phi * down * across + across**2))
    assert interval.low > 0.1


def test_paired_rates_is_honest_about_few_tasks():
    interval = paired_rates([False] * 4, [True] * 4)
    assert (interval.estimate, interval.high) == (1.0, 1.0)
    # Two Wilson ends of z²/(4 + z²) = 0.4899 each, square-and-added; a bootstrap would say 1 to 1.
    assert interval.low == pytest.approx(1 - 0.48990 * math.sqrt(2), abs=1e-4)
    unknown = paired_rates([None, True], [True, None])
    assert math.isnan(unknown.estimate)
    assert (unknown.low, unknown.high) == (-1.0, 1.0)
    assert paired_rates([True, None, False], [True, True, True]).estimate == 0.5
    with pytest.raises(ValueError, match="differ in length"):
        paired_rates([True], [])


@pytest.mark.parametrize("cells", [(0.3, 0.1, 0.2, 0.4), (0.7, 0.05, 0.15, 0.1), (0.45, 0.25, 0.25, 0.05)])
def test_paired_rates_cover_the_truth_about_95_times_in_100(cells):
    """Exactly, over every table of 24 tasks."""
    n, truth, covered, total = 24, cells[2] - cells[1], 0.0, 0.0
    multinomial = stats.multinomial(n, cells)
    for both, lost, gained in itertools.product(range(n + 1), repeat=3):
        neither = n - both - lost - gained
        chance = multinomial.pmf([both, lost, gained, neither]) if neither >= 0 else 0.0
        if chance > 1e-4:
            interval = paired_rates(*outcomes(both, lost, gained, neither))
            covered += chance * (interval.low <= truth <= interval.high)
            total += chance
    assert total > 0.9
    assert 0.93 < covered / total < 0.99


@settings(max_examples=40, deadline=None)
@given(*[st.integers(0, 30)] * 4)
def test_paired_rates_turns_with_its_arms(both, lost, gained, neither):
    first, second = outcomes(both, lost, gained, neither)
    one, two = paired_rates(first, second), paired_rates(second, first)
    assert one.low == pytest.approx(-two.high)
    assert one.high == pytest.approx(-two.low)
    if first:
        assert one.low <= one.estimate <= one.high


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
