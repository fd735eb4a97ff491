"""Long proofs (`make prove`): the shipped recipes on the embedded model, seeds 0–2, 400 held-out tasks each.

Runs are kept in runs/RECIPE-SEED and are not repeated; delete them to prove anew. Figures: docs/results.md.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "bench"))
pytestmark = pytest.mark.slow
SEEDS = (0, 1, 2)


def arms(recipe):
    from seeds import pooled, summary_of

    return pooled([summary_of(recipe, seed, []) for seed in SEEDS])


def test_flights():
    result = arms("flights")
    assert result["final"]["n"] == 1200
    assert 0.20 <= result["warm-up"]["success"] <= 0.65
    assert result["final"]["success"] >= 0.90
    assert min(result["final"]["each"]) >= 0.87


def test_the_same_recipe_on_another_desk():
    result = arms("repairs")
    assert result["final"]["success"] - result["warm-up"]["success"] >= 0.20


def test_a_bad_reward_is_visible():
    from seeds import summary_of

    (evaluation,) = summary_of("flights-hack", 0, [])["evaluation"].values()
    before, after = (
        next(arm for arm in evaluation["arms"] if arm["arm"] == name) for name in ("warm-up", "practice")
    )
    assert after["reward"] > before["reward"]
    assert after["success"] < before["success"]
