"""Values are those of each row by itself in any layout; a critic beside an adapter costs an adapter more."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from renshu.models import AdapterSettings
from renshu.models.adapters import add_adapter
from renshu.models.critic import Critic, ValueHead, ValueModel
from renshu.train.optimiser import trainable
from renshu.tree import token_logprobs
from renshu.types import Row

ROWS = [
    Row((1, 2, 3, 4, 5), (False, False, True, True, True)),
    Row((1, 2, 3, 9, 5, 6, 7), (False, False, True, False, False, True, True)),
    Row((1, 2, 8), (False, False, True)),
]


def tiny(*, tied: bool = True) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def with_any_weights(critic: Critic) -> Critic:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in critic.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return critic


def row_by_row(trunk: Any, critic: Critic) -> Tensor:
    """The last states of the layers, one row at a time, times the critic's weights."""
    found = []
    for row in ROWS:
        states = trunk(input_ids=torch.tensor([row.ids])).last_hidden_state[0]
        before = [position - 1 for position, trained in enumerate(row.trained) if trained]
        found.append(states[before] @ critic.linear.weight[0] + critic.linear.bias[0])
    return torch.cat(found)


@pytest.mark.parametrize("layout", ["tree", "padded"])
@torch.no_grad()
def test_values_of_a_head_are_those_of_each_row(layout: Any) -> None:
    model = tiny()
    expected_of = copy.deepcopy(model.model)
    critic = with_any_weights(ValueHead(model))
    forward = token_logprobs(model, ROWS, layout=layout, hidden=True)
    expected = row_by_row(expected_of, critic)
    assert expected.std() > 0.01
    assert torch.allclose(critic(ROWS, forward), expected, atol=1e-5)


@pytest.mark.parametrize("layout", ["tree", "padded"])
@pytest.mark.parametrize("adapter", [False, True])
@torch.no_grad()
def test_values_of_a_separate_critic_are_those_of_each_row(layout: Any, adapter: bool) -> None:
    model = add_adapter(tiny(), AdapterSettings(rank=2)) if adapter else tiny(tied=False)
    before = token_logprobs(model, ROWS).logprobs
    critic = with_any_weights(ValueModel(model, layout=layout))
    layers = copy.deepcopy(critic.trunk.model)
    layers.set_attn_implementation("eager")
    expected = row_by_row(layers, critic)
    assert expected.std() > 0.01
    assert torch.allclose(critic(ROWS, None), expected, atol=1e-5)
    assert torch.equal(token_logprobs(model, ROWS).logprobs, before)  # another model's weights moved


@pytest.mark.parametrize("kind", [ValueHead, ValueModel])
def test_a_fresh_critic_expects_nothing(kind: type[Critic]) -> None:
    model = tiny()
    assert kind(model)(ROWS, token_logprobs(model, ROWS, hidden=True)).tolist() == [0.0] * 7


@pytest.mark.parametrize("trains_trunk", [True, False])
def test_the_gradient_of_a_head_stops_where_it_should(trains_trunk: bool) -> None:
    model = tiny()
    critic = with_any_weights(ValueHead(model, trains_trunk=trains_trunk))
    critic(ROWS, token_logprobs(model, ROWS, hidden=True)).sum().backward()
    assert critic.linear.bias.grad is not None
    assert critic.linear.bias.grad.item() == 7
    reached = [name for name, weight in model.named_parameters() if weight.grad is not None]
    assert ("model.layers.0.mlp.up_proj.weight" in reached) is trains_trunk


def test_a_separate_critic_trains_its_own_layers_and_has_no_head() -> None:
    model = tiny(tied=False)
    critic = ValueModel(model)
    assert not {id(weight) for weight in critic.parameters()} & {id(weight) for weight in model.parameters()}
    names = [name for name in trainable(model, critic) if name.startswith("critic.")]
    assert {"critic.linear.weight", "critic.trunk.model.layers.1.mlp.up_proj.weight"} <= set(names)
    assert not any("lm_head" in name for name in names)
    critic(ROWS, None).sum().backward()
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_below_an_adapter_only_the_adapter_is_copied(kind: Any) -> None:
    model = add_adapter(tiny(), AdapterSettings(kind=kind, rank=2))
    critic = ValueModel(model)
    own = {id(weight) for weight in critic.trunk.parameters() if weight.requires_grad}
    policy = {id(weight) for weight in model.parameters() if weight.requires_grad}
    assert len(own) == len(policy)
    assert not own & policy
    frozen = {id(weight) for weight in critic.trunk.parameters() if not weight.requires_grad}
    assert frozen == {id(weight) for weight in model.parameters() if not weight.requires_grad}
    trained = [name for name in trainable(model, critic) if name.startswith("critic.")]
    assert len(trained) == len(own) + 2
    with_any_weights(critic)(ROWS, None).sum().backward()
    assert all(weight.grad is None for weight in model.parameters())
    assert any(weight.grad.any() for weight in critic.trunk.parameters() if weight.grad is not None)


class Wrapped(torch.nn.Module):
    """As DistributedDataParallel wraps a model."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return self.module(**inputs)


@torch.no_grad()
def test_a_wrapped_model_shows_its_states_too() -> None:
    model = tiny()
    expected = token_logprobs(model, ROWS, hidden=True).hidden
    found = token_logprobs(Wrapped(model), ROWS, hidden=True).hidden
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)
