"""Critics: what reward is still to come, said before each token is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from renshu.tree import TokenLogprobs
from renshu.types import Row


class Critic(nn.Module):
    """Values (N,) of the trained tokens of rows; its parameters are trained along with the policy's.

    shares_trunk: it reads the policy's states, so that `forward` has to have `hidden`.
    """

    shares_trunk: bool

    def forward(self, rows: Sequence[Row], forward: TokenLogprobs) -> Tensor:
        """rows: N trained tokens in all. forward: what the policy said about them."""
        raise RuntimeError("a critic must be a ValueHead or a copy of a model")

    def __call__(self, rows: Sequence[Row], forward: TokenLogprobs) -> Tensor:
        return cast(Tensor, super().__call__(rows, forward))


class ValueHead(Critic):
    """One linear layer on the policy's last states. It begins at zero: a critic that knows nothing."""

    shares_trunk = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        embeddings = model.get_input_embeddings().weight
        width = model.config.get_text_config().hidden_size
        self.linear = nn.Linear(width, 1, dtype=torch.float32, device=embeddings.device)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, rows: Sequence[Row], forward: TokenLogprobs) -> Tensor:
        assert forward.hidden is not None
        return cast(Tensor, self.linear(forward.hidden.to(self.linear.weight.dtype))).squeeze(-1)
