"""AdamW over the trainable parameters, and learning rates as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from renshu.algorithms import OptimiserConfig
from renshu.errors import TrainingError

Trained = Mapping[str, nn.Parameter]  # what is being trained, by name
CRITIC = "critic."  # how the names of a critic's parameters begin


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
        own = {
            f"{CRITIC}{name}": weight for name, weight in critic.named_parameters() if weight.requires_grad
        }
        parameters |= own
    return parameters


def of_policy(trained: Trained) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in trained.items() if not name.startswith(CRITIC)}


def of_critic(trained: Trained) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in trained.items() if name.startswith(CRITIC)}


def build(trained: Trained, config: OptimiserConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only: on biases and norms it would pull gains to zero.

    A critic has groups of its own, whose rate is always the same multiple (`scale`) of the policy's.
    """
    groups = []
    for part, rate in (
        (of_policy(trained), config.learning_rate),
        (of_critic(trained), config.critic_learning_rate),
    ):
        matrices = [parameter for parameter in part.values() if parameter.ndim >= 2]
        others = [parameter for parameter in part.values() if parameter.ndim < 2]
        scale = rate / config.learning_rate
        groups += [
            {"params": matrices, "weight_decay": config.weight_decay, "scale": scale},
            {"params": others, "weight_decay": 0.0, "scale": scale},
        ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.learning_rate)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its learning rate; rate: the policy's."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]


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
