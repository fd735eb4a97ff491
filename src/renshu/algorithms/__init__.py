"""Algorithms as data: config, credit and loss of each in one file."""

from renshu.algorithms.grpo import GrpoConfig
from renshu.algorithms.protocol import (
    Algorithm,
    Counts,
    Credit,
    Estimate,
    Extras,
    LossInputs,
    LossOutput,
    Mean,
    OptimiserConfig,
)
from renshu.algorithms.sft import SftConfig

__all__ = [
    "Algorithm",
    "Counts",
    "Credit",
    "Estimate",
    "Extras",
    "GrpoConfig",
    "LossInputs",
    "LossOutput",
    "Mean",
    "OptimiserConfig",
    "SftConfig",
]
