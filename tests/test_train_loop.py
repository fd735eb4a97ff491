"""The loop: it learns, resumes exactly, never steps on a broken gradient, and says what it sees."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from renshu.algorithms import GrpoConfig, SftConfig, grpo, sft
from renshu.errors import TrainingError
from renshu.models import AdapterSettings
from renshu.models.adapters import add_adapter
from renshu.models.load import disable_dropout
from renshu.models.reference import reference_of
from renshu.rollout import rollout_metrics
from renshu.seeding import stable_hash
from renshu.train import Batches, Snapshot, Trainer, checkpoint, train
from renshu.tree import token_logprobs
from renshu.types import Group, Row, Scored, Segment, Stop, Task, Trajectory, Unscored

PROMPT = (1, 2, 3)
TARGET = 7


def tiny(**options: Any) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        **options,
    )
    return LlamaForCausalLM(config).eval()


def weights(model: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Bandit:
    """A source of GRPO batches: one token is sampled behind each of two prompts; TARGET pays 1."""

    def __init__(self, model: Any, group: int = 16) -> None:
        self.model, self.group = model, group

    @torch.no_grad()
    def __call__(self, step: int) -> list[Group]:
        dice = torch.Generator().manual_seed(stable_hash("bandit", step))
        groups = []
        for first in (4, 5):
            prompt = (first, *PROMPT)
            logits = self.model(input_ids=torch.tensor([prompt])).logits[0, -1]
            logprobs = torch.log_softmax(logits, -1)
            drawn = torch.multinomial(logprobs.exp(), self.group, replacement=True, generator=dice).tolist()
            task = Task(f"bandit/{first}")
            groups.append(
                Group(
                    task,
                    tuple(
                        Trajectory(
                            task,
                            (Segment(prompt), Segment((i,), True, (logprobs[i].item(),))),
                            (),
                            Stop.ANSWERED,
                            Scored(float(i == TARGET)),
                        )
                        for i in drawn
                    ),
                )
            )
        return groups


def target_probability(model: Any) -> float:
    row = Row((4, *PROMPT, TARGET), (False,) * 4 + (True,))
    return token_logprobs(model, [row]).logprobs.exp().item()


def bandit_trainer(model: Any, steps: int, **options: Any) -> Trainer[Sequence[Group]]:
    config = GrpoConfig(**({"learning_rate": 1e-2} | options))
    return Trainer(model, grpo.algorithm(config, temperature=1.0, max_tokens=1), steps=steps)


@pytest.mark.parametrize("options", [{}, {"loss": "cispo", "baseline": "rloo", "scale": "none"}])
def test_grpo_learns_to_emit_the_token_that_pays(options: dict[str, Any]) -> None:
    model = tiny()
    before = target_probability(model)
    rewards = []

    def note(snapshot: Snapshot) -> None:
        rewards.append(rollout_metrics(snapshot.batch)["reward"])

    train(bandit_trainer(model, 25, **options), Bandit(model), [note])
    assert before < 0.1
    assert target_probability(model) > 0.9
    assert rewards[-1] > 0.9


def test_sft_memorises_four_rows_that_share_a_prefix() -> None:
    model = tiny()
    rows = [Row((*PROMPT, first, 15 - first, 6), (False,) * 4 + (True,) * 2) for first in (4, 5, 8, 9)]
    config = SftConfig(epochs=40, rows_per_step=4, learning_rate=2e-2)
    batches = Batches(rows, per_step=4, epochs=40, seed=0)
    seen: list[Snapshot] = []
    trainer = Trainer(model, sft.algorithm(config), steps=batches.steps)
    assert train(trainer, batches, [seen.append]) is None
    assert [s.step for s in seen] == list(range(1, 41))
    for row in rows:
        with torch.no_grad():
            greedy = model(input_ids=torch.tensor([row.ids])).logits[0].argmax(-1).tolist()
        assert greedy[3:5] == list(row.ids[4:6])
    assert seen[0].metrics["loss"] == pytest.approx(math.log(16), abs=0.1)
    assert seen[-1].metrics["loss"] < 0.05
    # the trie: 3 shared tokens, then 3 more of each row
    assert (seen[0].metrics["tokens_computed"], seen[0].metrics["tokens_naive"]) == (15, 24)


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"schedule": "linear", "warmup": 0.3, "weight_decay": 0.1}
    straight, interrupted = tiny(), tiny()
    train(bandit_trainer(straight, 6, **options), Bandit(straight))

    first = bandit_trainer(interrupted, 6, **options)

    def save_and_stop(snapshot: Snapshot) -> str | None:
        if snapshot.step < 3:
            return None
        checkpoint.save(tmp_path, snapshot.step, first.trained, first.optimiser, {})
        return "interrupted"

    assert train(first, Bandit(interrupted), [save_and_stop]) == "interrupted"
    resumed = tiny()
    with torch.no_grad():
        resumed.lm_head.weight.add_(0.1)  # whatever it was: the checkpoint decides
    second = bandit_trainer(resumed, 6, **options)
    path = checkpoint.latest(tmp_path).path
    assert path is not None
    state = checkpoint.load(path, second.trained, second.optimiser)
    train(second, Bandit(resumed), start=state["step"])
    assert torch.equal(weights(straight), weights(resumed))


def test_every_observer_sees_every_step_and_the_first_reason_ends_it() -> None:
    model = tiny()
    seen: list[int] = []
    observers = [
        lambda s: "good enough" if s.step == 2 else None,
        lambda s: "later reason" if s.step == 2 else None,
        lambda s: seen.append(s.step),
    ]
    assert train(bandit_trainer(model, 5), Bandit(model), observers) == "good enough"
    assert seen == [1, 2]


def test_updates_are_iterations_times_minibatches_and_later_ones_are_off_policy() -> None:
    model = tiny()
    trainer = bandit_trainer(model, 1, iterations=3, minibatches=2, tasks_per_step=2)
    _, _ = trainer.step(0, teaching(model))
    assert {int(state["step"]) for state in trainer.optimiser.state.values()} == {6}
    once = tiny()
    metrics, _ = bandit_trainer(once, 1).step(0, teaching(once))
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-6)
    metrics, _ = bandit_trainer(tiny(), 1, iterations=3).step(0, teaching(tiny()))
    assert abs(metrics["ratio"] - 1.0) > 1e-3
    assert metrics["sampler_gap_max"] < 1e-5  # the canary looks before the first update only


def test_the_rate_of_the_schedule_is_the_one_applied() -> None:
    model = tiny()
    trainer = bandit_trainer(model, 4, schedule="linear", learning_rate=0.008)
    metrics, _ = trainer.step(3, teaching(model))
    assert metrics["learning_rate"] == pytest.approx(0.002)
    assert [group["lr"] for group in trainer.optimiser.param_groups] == [pytest.approx(0.002)] * 2


def teaching(model: Any, temperature: float = 1.0) -> list[Group]:
    """Two groups, each with one rollout that pays and one that does not."""
    groups = []
    for first in (4, 5):
        prompt = (first, *PROMPT)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
            logprobs = torch.log_softmax(logits / temperature, -1)
        task = Task(f"bandit/{first}")
        rollouts = [
            Trajectory(
                task,
                (Segment(prompt), Segment((i,), True, (logprobs[i].item(),))),
                (),
                Stop.ANSWERED,
                Scored(float(i == TARGET)),
            )
            for i in (TARGET, 9)
        ]
        groups.append(Group(task, tuple(rollouts)))
    return groups


def rescored(groups: Sequence[Group], *scores: Any, stop: Stop = Stop.ANSWERED) -> list[Group]:
    return [
        replace(
            group,
            trajectories=tuple(
                replace(trajectory, score=score, stop=stop)
                for trajectory, score in zip(group.trajectories, scores, strict=True)
            ),
        )
        for group in groups
    ]


def test_micro_batches_change_nothing() -> None:
    made = []
    for budget in (1, 6, 1000):
        model = tiny()
        trainer = bandit_trainer(model, 1, token_budget=budget, loss="grpo", max_gradient_norm=1e9)
        metrics, _ = trainer.step(0, Bandit(model, group=64)(0))
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        made.append((gradient, metrics["loss"], metrics["tokens_computed"]))
    for gradient, loss, _ in made[:2]:
        assert (gradient - made[-1][0]).norm() < 1e-5 * made[-1][0].norm()
        assert loss == pytest.approx(made[-1][1], abs=1e-6)
    assert made[0][2] > made[-1][2]


def test_without_any_advantage_no_weight_moves_though_momentum_would() -> None:
    model = tiny()
    trainer = bandit_trainer(model, 3, weight_decay=0.1)
    trainer.step(0, teaching(model))
    before = weights(model)
    metrics, findings = trainer.step(1, rescored(teaching(model), Scored(1.0), Scored(1.0)))
    assert torch.equal(weights(model), before)
    assert (metrics["loss"], metrics["rows_skipped"], metrics["reward_spread"]) == (0.0, 4, 0.0)
    assert findings == []


def test_a_row_spared_the_forward_still_counts_in_the_denominator() -> None:
    groups = teaching(tiny())
    lopsided = [groups[0], *rescored(groups[1:], Scored(1.0), Scored(1.0))]
    for loss, share in {"dapo": 0.5, "grpo": 0.5, "bnpo": 0.5}.items():
        norms = []
        for batch in (groups[:1], lopsided):
            metrics, _ = bandit_trainer(tiny(), 1, loss=loss).step(0, batch)
            norms.append(metrics["gradient_norm"])
        assert norms[1] == pytest.approx(share * norms[0], rel=1e-5)


def test_e12_a_batch_that_is_wholly_masked_has_loss_zero_and_says_why() -> None:
    model = tiny()
    before = weights(model)
    cut = rescored(teaching(model), Scored(1.0), Scored(0.0), stop=Stop.LENGTH)
    metrics, findings = bandit_trainer(model, 1, mask_truncated=True).step(0, cut)
    assert metrics["loss"] == 0.0
    assert not any(math.isnan(metrics[name]) for name in ("loss", "gradient_norm") if name in metrics)
    assert torch.equal(weights(model), before)
    assert "raise sample.max_tokens" in findings[0].text


def test_a_batch_that_is_wholly_unscored_is_no_crash() -> None:
    model = tiny()
    lost = rescored(teaching(model), Unscored("sandbox"), Unscored("sandbox"))
    metrics, _ = bandit_trainer(model, 1).step(0, lost)
    assert (metrics["groups_skipped"], metrics["loss"]) == (2, 0.0)


def test_the_canary_is_quiet_for_the_same_weights_and_sings_for_another_temperature() -> None:
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    metrics, findings = bandit_trainer(copy.deepcopy(model), 1).step(0, teaching(model))
    assert metrics["sampler_gap_max"] < 1e-5
    assert findings == []
    metrics, findings = bandit_trainer(copy.deepcopy(model), 1).step(0, teaching(model, temperature=0.5))
    assert metrics["sampler_gap"] > 0.05
    assert [finding.name for finding in findings] == ["sampler_gap"]
    assert "another temperature" in findings[0].text


def test_e15_a_gradient_that_is_not_finite_moves_nothing_and_ends_at_the_third_time() -> None:
    model = tiny()
    trainer = bandit_trainer(model, 9)
    batch = teaching(model)
    trainer.step(0, batch)
    good = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.lm_head.weight[3, 3] = math.inf
    before = weights(model)
    for step in (1, 2):
        metrics, findings = trainer.step(step, batch)
        assert metrics["bad_updates"] == 1
        assert "gradient" in [finding.name for finding in findings]
        assert torch.equal(weights(model), before)
    model.load_state_dict(good)
    assert trainer.step(3, batch)[0]["bad_updates"] == 0
    with torch.no_grad():
        model.lm_head.weight[3, 3] = math.inf
    trainer.step(4, batch)
    trainer.step(5, batch)
    with pytest.raises(TrainingError, match="not finite in 3 updates in a row"):
        trainer.step(6, batch)


def test_the_kl_pulls_back_to_the_reference() -> None:
    """With rewards all equal, only the KL has a gradient, and it is zero where both models agree."""
    drifted, reference_model = tiny(), tiny()
    with torch.no_grad():
        drifted.lm_head.weight.add_(torch.randn_like(drifted.lm_head.weight) * 0.3)

    def reference(rows: Sequence[Row], temperature: float) -> Tensor:
        return token_logprobs(reference_model, rows, temperature=temperature).logprobs

    config = GrpoConfig(beta=1.0, learning_rate=1e-2)
    algorithm = grpo.algorithm(config, temperature=1.0, max_tokens=1)
    agreeing = tiny()
    calm, _ = Trainer(agreeing, algorithm, steps=1, reference=reference).step(
        0, rescored(teaching(agreeing), Scored(1.0), Scored(1.0))
    )
    assert calm["kl"] == pytest.approx(0.0, abs=1e-7)
    trainer = Trainer(drifted, algorithm, steps=15, reference=reference)
    divergences = [
        trainer.step(step, rescored(teaching(drifted), Scored(1.0), Scored(1.0)))[0]["kl"]
        for step in range(15)
    ]
    assert divergences[0] > 1e-3
    assert divergences[-1] < 0.2 * divergences[0]


def test_an_adapter_is_its_own_reference_and_all_that_a_checkpoint_holds(tmp_path: Path) -> None:
    def adapted() -> Any:
        torch.manual_seed(1)
        return add_adapter(tiny(), AdapterSettings(rank=2))

    def trainer_of(model: Any) -> Trainer[Sequence[Group]]:
        algorithm = grpo.algorithm(GrpoConfig(beta=0.1, learning_rate=1e-2), temperature=1.0, max_tokens=1)
        return Trainer(model, algorithm, steps=4, reference=reference_of(model))

    model = adapted()
    trainer = trainer_of(model)
    kls = [trainer.step(step, teaching(model))[0]["kl"] for step in range(3)]
    assert kls[0] == pytest.approx(0.0, abs=1e-7)
    assert kls[2] > kls[1] > 1e-6
    path = checkpoint.save(tmp_path, 3, trainer.trained, trainer.optimiser, {})
    assert all("lora_" in name for name in load_file(path / "trainable.safetensors"))
    # The base of a fresh model is the same, so the next step of both is too, its KL included.
    other = adapted()
    resumed = trainer_of(other)
    checkpoint.load(path, resumed.trained, resumed.optimiser)
    assert resumed.step(3, teaching(other))[0] == trainer.step(3, teaching(model))[0]


def test_a_kl_without_a_reference_is_an_error_before_training() -> None:
    algorithm = grpo.algorithm(GrpoConfig(beta=0.1), temperature=1.0, max_tokens=1)
    with pytest.raises(TrainingError, match="needs a reference model"):
        Trainer(tiny(), algorithm, steps=1)


def test_dropout_is_off_in_reinforcement_learning_only() -> None:
    model = tiny(attention_dropout=0.5)
    Trainer(model, sft.algorithm(SftConfig()), steps=1)
    assert model.model.layers[0].self_attn.attention_dropout == 0.5
    bandit_trainer(model, 1)
    assert model.model.layers[0].self_attn.attention_dropout == 0.0
    layers = torch.nn.Sequential(torch.nn.Dropout(0.3))
    disable_dropout(layers)
    assert layers[0].p == 0.0  # type: ignore[union-attr]


def test_the_model_is_left_in_evaluation_mode() -> None:
    model = tiny()
    bandit_trainer(model, 1).step(0, teaching(model))
    assert not model.training
