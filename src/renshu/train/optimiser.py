"""AdamW over the trainable parameters, and learning rates as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from renshu.algorithms import OptimiserConfig
from renshu.errors import TrainingError

Trained = Mapping[str, nn.Parameter]  # what is being trained, by name


def trainable(model: nn.Module, critic: nn.Module | None = None) -> dict[str, nn.Parameter]:
    """Parameters that receive gradients, by name; tied ones once; those of a critic as `critic.…`.

    Raises TrainingError if the model has none.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise TrainingError(
            "the model has no trainable parameters: all are frozen; add an adapter or unfreeze"
        )
    if critic is not None:
        own = {f"critic.{name}": weight for name, weight in critic.named_parameters() if weight.requires_grad}
        parameters |= own
    return parameters


def build(trained: Trained, config: OptimiserConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only: on biases and norms it would pull gains to zero."""
    matrices = [parameter for parameter in trained.values() if parameter.ndim >= 2]
    others = [parameter for parameter in trained.values() if parameter.ndim < 2]
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
