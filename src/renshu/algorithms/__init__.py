"""Algorithms as data: config, credit and loss of each in one file."""

from renshu.algorithms.dpo import DpoConfig
from renshu.algorithms.grpo import GrpoConfig
from renshu.algorithms.kto import KtoConfig
from renshu.algorithms.ppo import PpoConfig
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
    PracticeConfig,
)
from renshu.algorithms.sft import SftConfig

__all__ = [
    "Algorithm",
    "Counts",
    "Credit",
    "DpoConfig",
    "Estimate",
    "Extras",
    "GrpoConfig",
    "KtoConfig",
    "LossInputs",
    "LossOutput",
    "Mean",
    "OptimiserConfig",
    "PpoConfig",
    "PracticeConfig",
    "SftConfig",
]
