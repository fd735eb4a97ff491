"""AdamW over the trainable parameters, and learning rates as a pure function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from renshu.algorithms import OptimiserConfig
from renshu.errors import TrainingError


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that receive gradients, by name; tied ones once. Raises TrainingError if there are none."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise TrainingError(
            "the model has no trainable parameters: all are frozen; add an adapter or unfreeze"
        )
    return parameters


def build(model: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only: on biases and norms it would pull gains to zero."""
    parameters = list(trainable(model).values())
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.learning_rate)


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """The rate of step `step` (0-based) of `steps`.

    It climbs linearly to `learning_rate` at the last of the `warmup · steps` warm-up steps, then stays
    (`constant`), or falls towards 0, which the step after the last would reach (`linear`, `cosine`).
    """
    warmup = math.ceil(config.warmup * steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[config.schedule]
    return config.learning_rate * factor
