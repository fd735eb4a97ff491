"""A step of PPO equals the same step written plainly: in float64, row by row, with double loops."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from renshu.algorithms import PpoConfig, ppo
from renshu.train import Trainer
from renshu.tree import token_logprobs
from renshu.types import Group, Scored, Segment, Stop, Task, Trajectory, Unscored

TEMPERATURE = 0.8


def tiny(seed: int) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(8.0)  # tokens that differ
    return model


def batch(seed: int = 5) -> list[Group]:
    """Three tasks: one turn; several turns with tools, judged; a path left behind; an unscored rollout."""
    dice = torch.Generator().manual_seed(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 16, (count,), generator=dice).tolist())

    def turn(count: int) -> Segment:
        return Segment(ids(count), True, tuple((-3.0 * torch.rand(count, generator=dice)).tolist()))

    def played(task: Task, *segments: Segment, score: Any, **options: Any) -> Trajectory:
        return Trajectory(task, segments, (), Stop.ANSWERED, score, **options)

    groups = []
    for number in range(3):
        task = Task(f"t/{number}")
        prompt, tool = Segment(ids(4)), Segment(ids(3))
        judged = Scored(0.7 - 0.1, steps={"tidy": (0.1, -0.3)})
        groups.append(
            Group(
                task,
                (
                    played(task, prompt, turn(4), score=Scored(float(number))),
                    played(task, prompt, turn(2), tool, turn(3), tool, score=judged),
                    played(
                        task, prompt, turn(3), score=Scored(-0.5), forks=((prompt, turn(2), tool, turn(1)),)
                    ),
                    played(task, prompt, turn(2), score=Unscored("judge_failed: down")),
                ),
            )
        )
    return groups


@dataclass
class Plain:
    """What the plain version is made of, in float64."""

    policy: Any
    reference: Any
    layers: Any  # of the critic
    head: Tensor
    bias: Tensor
    old_head: Tensor


def plain_step(plain: Plain, groups: list[Group], config: PpoConfig) -> dict[str, float]:
    """The loss and its parts; gradients are left in the models."""
    tokens: list[dict[str, Tensor]] = []
    for group in groups:
        for trajectory in group.trajectories:
            if isinstance(trajectory.score, Scored):
                tokens += plain_episode(plain, trajectory, config)
    advantages = torch.stack([token["advantage"] for token in tokens])
    if config.whiten:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-4)
    parts: dict[str, list[Tensor]] = {name: [] for name in ("policy", "value", "kl", "entropy")}
    for token, advantage in zip(tokens, advantages, strict=True):
        ratio = (token["logprob"] - token["old"]).exp()
        high = 1 + (config.clip_high or config.clip_low)
        bounded = (
            ratio if 1 - config.clip_low < ratio < high else ratio.detach().clamp(1 - config.clip_low, high)
        )
        surrogates = (ratio * advantage, bounded * advantage)
        parts["policy"].append(-min(surrogates, key=Tensor.item))
        value, before, goal = token["value"], token["old_value"], token["return"]
        squares = [(value - goal) ** 2]
        if config.value.clip:
            moved = value - before
            if abs(moved) > config.value.clip:
                moved = torch.sign(moved.detach()) * config.value.clip
            squares.append((before + moved - goal) ** 2)
        parts["value"].append(0.5 * max(squares, key=Tensor.item))
        difference = token["reference"] - token["logprob"]
        in_loss = config.kl == "loss" and config.beta > 0
        parts["kl"].append(difference.exp() - 1 - difference if in_loss else -difference)
        parts["entropy"].append(token["entropy"])
    means = {name: torch.stack(part).mean() for name, part in parts.items()}
    loss = means["policy"] + config.value.coefficient * means["value"]
    if config.kl == "loss":
        loss = loss + config.beta * means["kl"]
    loss = loss - config.entropy_bonus * means["entropy"]
    loss.backward()  # type: ignore[no-untyped-call]
    k1 = torch.stack([token["old"] - token["reference"] for token in tokens]).mean()
    kl = means["kl"] if config.kl == "loss" else k1
    return {
        "loss": loss.item(),
        "policy_loss": means["policy"].item(),
        "value_loss": means["value"].item(),
        "kl": kl.item(),
        "entropy": means["entropy"].item(),
        "returns": torch.stack([token["return"] for token in tokens]).mean().item(),
    }


def plain_episode(plain: Plain, trajectory: Trajectory, config: PpoConfig) -> list[dict[str, Tensor]]:
    """Every sampled token of an episode: what models say of it, what it earned, and what it is worth."""
    tokens: list[dict[str, Tensor]] = []
    last_of_turns = []
    for path in trajectory.paths:
        ids = torch.tensor([[i for segment in path for i in segment.ids]])
        own = (plain.policy(ids).logits[0] / TEMPERATURE).log_softmax(-1)
        other = (plain.reference(ids).logits[0] / TEMPERATURE).log_softmax(-1)
        states = plain.layers(input_ids=ids).last_hidden_state[0]
        if config.value.critic == "head" and not config.value.trunk:
            states = states.detach()
        position = 0
        for segment in path:
            for offset, token in enumerate(segment.ids if segment.sampled else ()):
                at = position + offset - 1
                tokens.append(
                    {
                        "logprob": own[at, token],
                        "entropy": -(own[at].exp() * own[at]).sum(),
                        "reference": other[at, token].detach(),
                        "old": torch.tensor((segment.logprobs or ())[offset], dtype=torch.float64),
                        "value": states[at] @ plain.head + plain.bias,
                        "old_value": (states[at] @ plain.old_head).detach(),
                    }
                )
            position += len(segment.ids)
            if segment.sampled:
                last_of_turns.append(len(tokens) - 1)
    rewards = [torch.zeros((), dtype=torch.float64) for _ in tokens]
    assert isinstance(trajectory.score, Scored)
    rewards[-1] = rewards[-1] + trajectory.score.value
    if trajectory.score.steps:  # (0.1, -0.3): half of each at the end of its turn, their mean not at the end
        first, second = last_of_turns
        rewards[first] = rewards[first] + 0.05
        rewards[second] = rewards[second] - 0.15 + 0.1
    if config.kl == "reward":
        rewards = [
            reward - config.beta * (token["old"] - token["reference"])
            for reward, token in zip(rewards, tokens, strict=True)
        ]
    values = [*(token["old_value"] for token in tokens), torch.zeros((), dtype=torch.float64)]
    for t, token in enumerate(tokens):
        advantage = torch.zeros((), dtype=torch.float64)
        for k in range(t, len(tokens)):
            error = rewards[k] + config.gamma * values[k + 1] - values[k]
            advantage = advantage + (config.gamma * config.gae_lambda) ** (k - t) * error
        token |= {"advantage": advantage, "return": advantage + values[t]}
    return tokens


CONFIGS: dict[str, dict[str, Any]] = {
    "kl in the reward": {"beta": 0.3, "gamma": 0.97, "gae_lambda": 0.9, "token_budget": 40},
    "kl in the loss": {"beta": 0.3, "kl": "loss", "entropy_bonus": 0.05, "whiten": False, "clip_high": 0.4},
    "values move freely": {"beta": 0.1, "gae_lambda": 0.5, "value": {"clip": 0.0, "coefficient": 0.1}},
    "gradient to the trunk": {"beta": 0.1, "kl": "loss", "gae_lambda": 0.95, "value": {"trunk": True}},
    "separate critic": {"beta": 0.3, "entropy_bonus": 0.1, "value": {"critic": "separate"}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_equals_the_plain_version(name: str) -> None:
    config = PpoConfig(**({"iterations": 1, "max_gradient_norm": 1e9} | CONFIGS[name]))
    model, reference = tiny(0), tiny(1)
    torch.manual_seed(2)
    critic = ppo.critic_of(model, config.value)
    head, drift = torch.randn(16) * 0.3, torch.randn(16) * 0.3
    with torch.no_grad():
        critic.linear.weight.copy_(head[None])
        if config.value.critic == "separate":
            for weight in critic.trunk.parameters():
                weight.add_(torch.randn_like(weight) * 0.05)
    trainer = Trainer(
        model,
        ppo.algorithm(config, temperature=TEMPERATURE),
        steps=1,
        reference=lambda rows, temperature: token_logprobs(reference, rows, temperature=temperature).logprobs,
        critic=critic,
    )
    policy = copy.deepcopy(model).double()
    policy.set_attn_implementation("eager")
    layers = policy.model
    if config.value.critic == "separate":
        layers = copy.deepcopy(critic.trunk.model).double()
        layers.set_attn_implementation("eager")
    plain = Plain(
        policy=policy,
        reference=copy.deepcopy(reference).double(),
        layers=layers,
        head=(head + drift).double().requires_grad_(),
        bias=torch.zeros((), dtype=torch.float64, requires_grad=True),
        old_head=head.double(),
    )
    update = trainer._update

    def update_after_drift(*arguments: Any, **options: Any) -> None:
        """The critic moves between the extras and the update, as it does over several updates."""
        with torch.no_grad():
            critic.linear.weight.add_(drift)
        update(*arguments, **options)

    trainer._update = update_after_drift  # type: ignore[method-assign]
    trainer.optimiser.step = lambda: None  # type: ignore[method-assign, assignment]
    metrics, _ = trainer.step(0, batch())
    expected = plain_step(plain, batch(), config)
    for key, value in expected.items():
        if key != "entropy" or config.entropy_bonus:
            assert metrics[key] == pytest.approx(value, abs=1e-5), key
    assert 0 < metrics["clipped_low"] + metrics["clipped_high"] < 1
    assert (metrics["value_clipped"] > 0) is (config.value.clip > 0)
    found = {name: weight.grad for name, weight in trainer.trained.items()}
    wanted = {name: weight.grad for name, weight in policy.named_parameters()}
    wanted |= {"critic.linear.weight": plain.head.grad[None], "critic.linear.bias": plain.bias.grad[None]}
    if config.value.critic == "separate":
        wanted |= {f"critic.trunk.model.{name}": weight.grad for name, weight in layers.named_parameters()}
    assert found.keys() == wanted.keys()
    for key, gradient in wanted.items():
        assert found[key] is not None
        assert torch.allclose(found[key].double(), gradient, atol=1e-5), key
        assert gradient.abs().max() > 1e-4, key
