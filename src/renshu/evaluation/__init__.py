"""Evaluation: the same tasks for every arm, intervals beside every rate, paired tests."""

from renshu.evaluation.benchmark import Outcome, Result, evaluate
from renshu.evaluation.few_shot import solved_dialogues, with_examples
from renshu.evaluation.statistics import (
    Interval,
    PairedTest,
    bootstrap_mean,
    mcnemar,
    paired_difference,
    pass_hat_k,
    wilson,
)

__all__ = [
    "Interval",
    "Outcome",
    "PairedTest",
    "Result",
    "bootstrap_mean",
    "evaluate",
    "mcnemar",
    "paired_difference",
    "pass_hat_k",
    "solved_dialogues",
    "wilson",
    "with_examples",
]
