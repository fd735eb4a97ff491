"""Reward models from pairs: the answer that people preferred should get the higher number."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from renshu.algorithms.protocol import OptimiserConfig


class RewardConfig(OptimiserConfig):
    """Settings of a reward model that is trained from pairs."""

    epochs: int = Field(1, gt=0)
    pairs_per_step: int = Field(16, gt=0)
    max_length: int = Field(2048, gt=1, description="tokens; a pair with a longer answer is set aside")
    held_out: float = Field(0.1, ge=0, lt=1, description="share of prompts whose pairs only measure")
    centre: float = Field(0.0, ge=0, description="weight of (r_chosen + r_rejected)²: scores around 0")
    learning_rate: float = Field(1e-4, gt=0)


def loss(chosen: Tensor, rejected: Tensor, margins: Tensor, *, centre: float = 0.0) -> Tensor:
    """-Σ log σ(r_chosen - r_rejected - margin) + centre · (r_chosen + r_rejected)² over P pairs: (P,) → ().

    Bradley and Terry 1952; the margin as in Llama 2 (arXiv:2307.09288, eq. 2), centring as in Eisenstein et
    al. 2023 (arXiv:2312.09244, section 2).
    """
    preference = -torch.nn.functional.logsigmoid(chosen - rejected - margins)
    return (preference + centre * (chosen + rejected).square()).sum()
