"""Evaluation: the same tasks for every arm, intervals beside every rate, paired tests."""

from renshu.evaluation.benchmark import Result, evaluate, read_result, samples_log
from renshu.evaluation.comparison import Prices, compare, verdicts
from renshu.evaluation.few_shot import few_shot_arm, solved_dialogues, with_examples
from renshu.evaluation.outcome import Outcome, Tokens, read_outcomes, tokens_a_task
from renshu.evaluation.samples import SampledResult, Tries, repeated
from renshu.evaluation.statistics import (
    Interval,
    PairedTest,
    bootstrap_mean,
    holm,
    mcnemar,
    paired_difference,
    paired_rates,
    pass_at_k,
    pass_hat_k,
    wilson,
)

__all__ = [
    "Interval",
    "Outcome",
    "PairedTest",
    "Prices",
    "Result",
    "SampledResult",
    "Tokens",
    "Tries",
    "bootstrap_mean",
    "compare",
    "evaluate",
    "few_shot_arm",
    "holm",
    "mcnemar",
    "paired_difference",
    "paired_rates",
    "pass_at_k",
    "pass_hat_k",
    "read_outcomes",
    "read_result",
    "repeated",
    "samples_log",
    "solved_dialogues",
    "tokens_a_task",
    "verdicts",
    "wilson",
    "with_examples",
]
