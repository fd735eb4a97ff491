"""PPO in the loop: it learns, its critic learns what to expect, and it resumes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from renshu.algorithms import PpoConfig, ppo
from renshu.errors import TrainingError
from renshu.models import AdapterSettings
from renshu.models.adapters import add_adapter
from renshu.models.critic import Critic
from renshu.rollout import rollout_metrics
from renshu.seeding import stable_hash
from renshu.train import Snapshot, Trainer, checkpoint, train
from renshu.types import Group, Scored, Segment, Stop, Task, Trajectory

TARGET, TOOL = 7, (9, 10)
HOPELESS = 5  # a task that pays -1 whatever is done: only a critic can tell it apart


def tiny() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval()


class Toy:
    """A source of rollouts: two sampled tokens with a tool's answer between them; TARGET pays a half each."""

    def __init__(self, model: Any, group: int = 16) -> None:
        self.model, self.group = model, group

    @torch.no_grad()
    def __call__(self, step: int) -> list[Group]:
        dice = torch.Generator().manual_seed(stable_hash("toy", step))
        return [self._played(Task(f"toy/{first}"), (first, 1, 2), dice) for first in (4, HOPELESS)]

    def _played(self, task: Task, prompt: tuple[int, ...], dice: torch.Generator) -> Group:
        ids = torch.tensor([prompt] * self.group)
        segments: list[list[Segment]] = [[Segment(prompt)] for _ in range(self.group)]
        for _ in range(2):
            logprobs = self.model(input_ids=ids).logits[:, -1].log_softmax(-1)
            drawn = torch.multinomial(logprobs.exp(), 1, generator=dice)
            for row, token in enumerate(drawn[:, 0].tolist()):
                turn = Segment((token,), True, (logprobs[row, token].item(),))
                segments[row] += [turn, Segment(TOOL)]
            ids = torch.cat([ids, drawn, torch.tensor([TOOL] * self.group)], dim=1)
        return Group(task, tuple(self._scored(task, tuple(path[:-1])) for path in segments))

    def _scored(self, task: Task, path: tuple[Segment, ...]) -> Trajectory:
        hits = sum(segment.ids == (TARGET,) for segment in path)
        reward = -1.0 if path[0].ids[0] == HOPELESS else hits / 2
        return Trajectory(task, path, (), Stop.ANSWERED, Scored(reward))


def trainer_of(model: Any, steps: int, **settings: Any) -> Trainer[Any]:
    config = PpoConfig.from_dict({"learning_rate": 1e-2, **settings})
    algorithm = ppo.algorithm(config, temperature=1.0)
    return Trainer(model, algorithm, steps=steps, critic=ppo.critic_of(model, config.value))


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_ppo_learns_to_emit_what_pays_and_its_critic_what_to_expect(critic: str) -> None:
    model = tiny()
    rewards: list[float] = []
    explained: list[float] = []

    def note(snapshot: Snapshot) -> None:
        rewards.append(rollout_metrics(snapshot.batch)["reward"])
        explained.append(snapshot.metrics["explained_variance"])

    train(trainer_of(model, 30, value={"critic": critic, "learning_rate": 2e-2}), Toy(model), [note])
    assert rewards[0] < -0.4  # of at most (1 - 1) / 2
    assert sum(rewards[-5:]) / 5 > -0.05
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    assert explained[-1] > 0.8


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("critic", ["head", "separate"])
def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path, critic: str, adapter: bool) -> None:
    settings = {"value": {"critic": critic}, "schedule": "linear", "minibatches": 2, "tasks_per_step": 2}

    def begun() -> tuple[Any, Trainer[Any]]:
        torch.manual_seed(1)
        model = add_adapter(tiny(), AdapterSettings(rank=2)) if adapter else tiny()
        return model, trainer_of(model, 5, **settings)

    def save_and_stop(snapshot: Snapshot) -> str | None:
        if snapshot.step < 3:
            return None
        checkpoint.save(tmp_path, snapshot.step, first.trained, first.optimiser, {})
        return "interrupted"

    straight, whole = begun()
    train(whole, Toy(straight))
    interrupted, first = begun()
    assert train(first, Toy(interrupted), [save_and_stop]) == "interrupted"
    saved = load_file(tmp_path / "checkpoint-3" / checkpoint.WEIGHTS)
    assert {"critic.linear.weight", "critic.linear.bias"} <= saved.keys()
    model, resumed = begun()
    checkpoint.load(tmp_path / "checkpoint-3", resumed.trained, resumed.optimiser)
    train(resumed, Toy(model), start=3)
    assert resumed.trained.keys() == whole.trained.keys()
    for name, weight in whole.trained.items():
        assert torch.equal(weight, resumed.trained[name]), name
    assert whole.trained["critic.linear.weight"].abs().max() > 0


def test_the_critic_has_its_own_rate_and_its_own_gradient_norm() -> None:
    """A gradient of the critic that is far too long does not shorten the policy's."""
    model = tiny()
    value = {"coefficient": 1e3, "trunk": False}
    settings = {"max_gradient_norm": 0.1, "iterations": 1, "value": value, "schedule": "linear"}
    trainer = trainer_of(model, 2, **settings)
    metrics, _ = trainer.step(1, Toy(model)(0))
    assert metrics["critic_gradient_norm"] > 100 * metrics["gradient_norm"] > 10
    rates = sorted({group["lr"] for group in trainer.optimiser.param_groups})
    assert rates == pytest.approx([5e-3, 5e-2])
    gradients = {True: [], False: []}
    for name, weight in trainer.trained.items():
        gradients[name.startswith("critic.")].append(weight.grad.norm())
    for part in gradients.values():
        assert torch.stack(part).norm().item() == pytest.approx(0.1, rel=1e-3)


def test_ppo_without_a_critic_is_an_error_before_training() -> None:
    with pytest.raises(TrainingError, match="ppo needs a critic, and none was given"):
        Trainer(tiny(), ppo.algorithm(PpoConfig(), temperature=1.0), steps=1)


def test_a_critic_that_is_not_needed_is_not_trained() -> None:
    from renshu.algorithms import GrpoConfig, grpo

    model = tiny()
    critic: Critic = ppo.critic_of(model, PpoConfig().value)
    algorithm = grpo.algorithm(GrpoConfig(), temperature=1.0, max_tokens=2)
    trainer = Trainer(model, algorithm, steps=1, critic=critic)
    assert not any(name.startswith("critic.") for name in trainer.trained)
