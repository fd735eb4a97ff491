"""Critics: what reward is still to come, said before each token is sampled."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from renshu.tree import TokenLogprobs, token_states
from renshu.tree.packing import Layout
from renshu.types import Row


class Critic(nn.Module):
    """Values (N,) of the trained tokens of rows; its parameters are trained along with the policy's.

    shares_trunk: it reads the policy's states, so that `forward` must be given and have `hidden`.
    """

    shares_trunk: bool

    def __init__(self, model: Any) -> None:
        super().__init__()
        weight = model.get_input_embeddings().weight
        width = model.config.get_text_config().hidden_size
        self.linear = nn.Linear(width, 1, dtype=torch.float32, device=weight.device)
        nn.init.zeros_(self.linear.weight)  # at first it knows nothing, rather than something wrong
        nn.init.zeros_(self.linear.bias)

    def states(self, rows: Sequence[Row], forward: TokenLogprobs | None) -> Tensor:
        """What the values are read from, (N, D)."""
        raise RuntimeError("a critic must be a ValueHead or a ValueModel")

    def forward(self, rows: Sequence[Row], forward: TokenLogprobs | None) -> Tensor:
        """rows: N trained tokens in all. forward: what the policy says about them, or None."""
        states = self.states(rows, forward).to(self.linear.weight.dtype)
        return cast(Tensor, self.linear(states)).squeeze(-1)

    def __call__(self, rows: Sequence[Row], forward: TokenLogprobs | None = None) -> Tensor:
        return cast(Tensor, super().__call__(rows, forward))


class ValueHead(Critic):
    """One linear layer on the policy's last states.

    trains_trunk: whether the gradient of the values also reaches the policy's layers.
    """

    shares_trunk = True

    def __init__(self, model: Any, *, trains_trunk: bool = True) -> None:
        super().__init__(model)
        self.trains_trunk = trains_trunk

    def states(self, rows: Sequence[Row], forward: TokenLogprobs | None) -> Tensor:
        assert forward is not None
        assert forward.hidden is not None
        return forward.hidden if self.trains_trunk else forward.hidden.detach()


class ValueModel(Critic):
    """A model of its own: a copy of the policy's layers as they are now, below one linear layer.

    What is frozen in the policy is shared with it, not copied: below an adapter, the critic costs an adapter
    more. No logits are computed.
    """

    shares_trunk = False

    def __init__(self, model: Any, *, layout: Layout | Literal["auto"] = "auto") -> None:
        super().__init__(model)
        self.layout = layout
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        shared: dict[int, Any] = {
            id(weight): weight for weight in model.parameters() if not weight.requires_grad
        }
        self.trunk = copy.deepcopy(model, {id(model.get_output_embeddings()): nn.Identity(), **shared})

    def states(self, rows: Sequence[Row], forward: TokenLogprobs | None) -> Tensor:
        return token_states(self.trunk, rows, layout=self.layout)
