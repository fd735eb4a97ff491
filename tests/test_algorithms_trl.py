"""Every loss, through our whole loop on token trees, equals TRL 1.16's on the same batch, gradient too."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from renshu.algorithms import Credit, GrpoConfig, SftConfig, grpo, sft
from renshu.algorithms.advantages import advantages
from renshu.train import Trainer
from renshu.tree import token_logprobs
from renshu.types import Row
from trl_oracle import (
    grpo_inputs,
    grpo_trainer,
    pad,
    relative_difference,
    sft_trainer,
    split,
    spread_over_completion,
    tiny_model,
)

pytestmark = pytest.mark.filterwarnings("ignore")
HUGE = 1e9  # a gradient norm that nothing exceeds, so that gradients are compared unclipped
ADVANTAGES = [1.3, -0.8, 0.6, 0.0, -1.1, 0.4]


@dataclass(frozen=True)
class Oracle:
    """model: with the weights of all trainers, but not in their hands: TRL patches the forward of its models.

    grpo: a trainer for each sampling temperature, which TRL builds into that forward.
    """

    model: Any
    grpo: dict[float, Any]
    sft: Any


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp("trl")
    model, tokenizer = tiny_model(folder / "model")
    grpo = {t: grpo_trainer(folder, copy.deepcopy(model), tokenizer, t) for t in (1.0, 0.7)}
    return Oracle(model, grpo, sft_trainer(folder, copy.deepcopy(model), tokenizer))


def draw_rows() -> list[Row]:
    """Three groups of two; prompts of 3 to 6 tokens, a tool answer of 2 tokens inside some completions."""
    chance = random.Random(5)
    rows = []
    for group, prompt_length in enumerate((3, 6, 4)):
        prompt = [chance.randrange(250) for _ in range(prompt_length)]
        for _ in range(2):
            turn = [chance.randrange(250) for _ in range(chance.randrange(2, 7))]
            ids, trained = prompt + turn, [False] * prompt_length + [True] * len(turn)
            if chance.random() < 0.6:
                ids += [chance.randrange(250) for _ in range(3)]
                trained += [False, False, True]
            rows.append(Row(tuple(ids), tuple(trained), group=str(group)))
    return rows


def with_logprobs(
    model: Any, rows: Sequence[Row], temperature: float
) -> tuple[list[Row], dict[Any, list[float]]]:
    """The rows with old log-probs near the model's (ratios of 0.5 to 2), and a reference's."""
    chance = random.Random(7)
    old, references = [], {}
    for row in rows:
        own = token_logprobs(model, [row], temperature=temperature, layout="padded").logprobs.tolist()
        old.append(replace(row, logprobs=tuple(lp + chance.gauss(0, 0.3) for lp in own)))
        references[row.ids] = [lp + chance.gauss(0, 0.4) for lp in own]
    return old, references


def ours(
    model: Any, config: GrpoConfig, rows: list[Row], references: Any, temperature: float
) -> tuple[float, Any, Any]:
    """Loss, gradients and metrics of one step of the loop; the rate is too small to move a weight."""
    model = copy.deepcopy(model)
    algorithm = grpo.algorithm(config, temperature=temperature, max_tokens=16)
    algorithm = replace(algorithm, credit=lambda batch: batch)

    def reference(some: Sequence[Row], _: float) -> Tensor:
        return torch.tensor([lp for row in some for lp in references[row.ids]])

    trainer = Trainer(model, algorithm, steps=1, reference=reference)
    metrics, _ = trainer.step(0, Credit(tuple(rows), tuple(ADVANTAGES)))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return metrics["loss"], gradients, metrics


def theirs(
    oracle: Oracle, config: GrpoConfig, rows: list[Row], references: Any, temperature: float
) -> tuple[float, Any]:
    trl = oracle.grpo[temperature]
    trl.loss_type = config.loss
    trl.importance_sampling_level = config.ratio
    trl.beta = config.beta
    trl.epsilon_low = config.clip_low
    # TRL's cispo takes the cap itself, everything else what is added to 1.
    trl.epsilon_high = config.ratio_bound + (config.loss == "cispo")
    trl.args.delta = config.delta
    trl.args.use_bias_correction_kl = config.correct_kl
    trl.entropy_coef = config.entropy_bonus
    trl._entropy_bonus_enabled = config.entropy_bonus > 0
    trl.model.zero_grad()
    loss = trl.compute_loss(trl.model, grpo_inputs(rows, ADVANTAGES, references))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in trl.model.named_parameters() if p.grad is not None}


LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo")
VARIANTS = [
    *({"loss": loss, "ratio": ratio} for loss in LOSSES for ratio in ("token", "sequence")),
    *({"loss": loss, "beta": 0.04} for loss in LOSSES),
    {"loss": "grpo", "ratio": "sequence", "beta": 0.1, "correct_kl": True},
    {"loss": "dapo", "beta": 0.1, "correct_kl": True},
    {"loss": "dapo", "clip_low": 0.1, "clip_high": 0.28, "delta": 1.5},
    {"loss": "dr_grpo", "entropy_bonus": 0.05},
    {"loss": "dapo", "entropy_bonus": 0.05, "beta": 0.02},
    {"loss": "cispo", "clip_high": 0.3},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(f"{value}" for value in v.values()))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_grpo_loss_and_gradient_are_trls(oracle: Oracle, variant: dict[str, Any], temperature: float) -> None:
    # A budget of 12 tokens forces several micro-batches: accumulation must change nothing.
    config = GrpoConfig(**variant, learning_rate=1e-20, max_gradient_norm=HUGE, token_budget=12)
    rows, references = with_logprobs(oracle.model, draw_rows(), temperature)
    loss, gradients, metrics = ours(oracle.model, config, rows, references, temperature)
    expected, expected_gradients = theirs(oracle, config, rows, references, temperature)
    assert loss == pytest.approx(expected, abs=1e-5)
    assert abs(expected) > 1e-3  # a loss of 0 would agree with anything
    assert relative_difference(gradients, expected_gradients) < 1e-5
    assert metrics["rows_skipped"] == (0 if config.beta or config.entropy_bonus else 1)


def test_the_comparison_sees_a_wrong_loss(oracle: Oracle) -> None:
    rows, references = with_logprobs(oracle.model, draw_rows(), 1.0)
    settings = {"learning_rate": 1e-20, "max_gradient_norm": HUGE}
    _, gradients, _ = ours(oracle.model, GrpoConfig(loss="grpo", **settings), rows, references, 1.0)
    _, expected = theirs(oracle, GrpoConfig(loss="dapo", **settings), rows, references, 1.0)
    assert relative_difference(gradients, expected) > 1e-2


def test_dapo_divides_a_minibatch_by_the_mean_tokens_of_the_batch(oracle: Oracle) -> None:
    """TRL in training: `num_items_in_batch` of the generation batch, rescaled to one update."""
    rows, references = with_logprobs(oracle.model, draw_rows(), 1.0)
    config = GrpoConfig(
        tasks_per_step=3, minibatches=3, learning_rate=1e-20, max_gradient_norm=HUGE, clip_high=0.28
    )
    _, _, metrics = ours(oracle.model, config, rows, references, 1.0)
    total = sum(sum(row.trained) for row in rows)
    losses = []
    for start in (0, 2, 4):
        theirs(oracle, config, rows, references, 1.0)  # sets the oracle's options
        inputs = grpo_inputs(rows[start : start + 2], ADVANTAGES[start : start + 2], references)
        inputs["num_items_in_batch"] = torch.tensor(total / 3)
        losses.append(oracle.grpo[1.0].compute_loss(oracle.grpo[1.0].model, inputs).item())
    assert metrics["loss"] == pytest.approx(sum(losses) / 3, abs=1e-6)


REWARDS = [[1.0, 0.0], [None, 0.3], [0.5, 0.5], [2.0, -1.0], [None, None], [0.1, 0.9]]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_trls_also_with_unknown_rewards(oracle: Oracle, scale: str, monkeypatch: Any) -> None:
    flat = [reward for group in REWARDS for reward in group]
    monkeypatch.setattr(oracle.grpo[1.0], "scale_rewards", scale)
    completions = [[1, 2]] * len(flat)
    generated = ([[5]] * len(flat), completions, None, ["ab"] * len(flat), None, {}, None, None)
    monkeypatch.setattr(oracle.grpo[1.0], "_generate", lambda prompts: generated)
    known = torch.tensor([[float("nan") if reward is None else reward] for reward in flat])
    monkeypatch.setattr(oracle.grpo[1.0], "_calculate_rewards", lambda *_: known)
    monkeypatch.setattr(oracle.grpo[1.0], "num_generations_eval", 2)
    monkeypatch.setattr(oracle.grpo[1.0], "beta", 0.0)
    expected = oracle.grpo[1.0]._generate_and_score_completions([{"prompt": "a"}] * len(flat))["advantages"]
    found = advantages(REWARDS, baseline="group", scale=scale)
    # TRL gives 0 where there is nothing to compare with; we say None, and train on nothing there.
    ours = [0.0 if value is None else value for group in found for value in group]
    assert ours == pytest.approx(expected.tolist(), abs=1e-5)
    assert max(ours) > 0.5


def test_sft_loss_and_gradient_are_trls(oracle: Oracle) -> None:
    rows = draw_rows()
    model, trainer = copy.deepcopy(oracle.model), oracle.sft
    labels = [[i if trained else -100 for i, trained in zip(r.ids, r.trained, strict=True)] for r in rows]
    inputs = {
        "input_ids": pad([row.ids for row in rows]),
        "attention_mask": pad([[1] * len(row.ids) for row in rows]),
        "labels": pad(labels, value=-100),
    }
    expected = trainer.compute_loss(trainer.model, inputs)
    expected.backward()
    config = SftConfig(learning_rate=1e-20, max_gradient_norm=HUGE, token_budget=12)
    metrics, _ = Trainer(model, sft.algorithm(config), steps=1).step(0, rows)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert relative_difference(gradients, {n: p.grad for n, p in trainer.model.named_parameters()}) < 1e-5


def theirs_corrected(
    oracle: Oracle, config: GrpoConfig, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> tuple[float, Any, Tensor]:
    """TRL as if vLLM had sampled the rows: loss, gradients and weights, all by its own code."""
    trl, parts = oracle.grpo[1.0], [split(row) for row in rows]
    sampled = [spread_over_completion(row, row.logprobs or ()) for row in rows]
    ids = ([prompt for prompt, _, _ in parts], [completion for _, completion, _ in parts])
    generated = (*ids, [mask for *_, mask in parts], ["ab"] * len(rows), sampled, {}, None, None)
    level, cut = config.correction_level, config.correction
    theirs(oracle, config, rows, {row.ids: row.logprobs for row in rows}, 1.0)  # sets the oracle's options
    for name, value in {
        "_generate": lambda _: generated,
        "_calculate_rewards": lambda *_: torch.zeros(len(rows), 1),
        "num_generations_eval": 2,
        "use_vllm": True,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": f"{level}_{cut}",
        "vllm_importance_sampling_clip_max": config.correction_cap,
    }.items():
        monkeypatch.setattr(trl, name, value)
    inputs = trl._generate_and_score_completions([{"prompt": "a"}] * len(rows))
    trl.model.zero_grad()
    loss = trl.compute_loss(trl.model, inputs | {"advantages": torch.tensor(ADVANTAGES)})
    loss.backward()
    gradients = {name: p.grad for name, p in trl.model.named_parameters() if p.grad is not None}
    return loss.item(), gradients, inputs["importance_sampling_ratio"]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", ["truncate", "mask"])
@pytest.mark.parametrize("loss", ["dapo", "grpo", "cispo"])
def test_the_correction_of_another_sampler_is_trls(
    oracle: Oracle, loss: str, correction: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = with_logprobs(oracle.model, draw_rows(), 1.0)
    config = GrpoConfig(
        loss=loss, correction=correction, correction_level=level, correction_cap=1.2,
        learning_rate=1e-20, max_gradient_norm=HUGE, token_budget=12,
    )  # fmt: skip
    expected, expected_gradients, weights = theirs_corrected(oracle, config, rows, monkeypatch)
    found, gradients, metrics = ours(oracle.model, config, rows, {}, 1.0)
    assert found == pytest.approx(expected, abs=1e-5)
    assert relative_difference(gradients, expected_gradients) < 1e-5
    assert metrics["correction_beyond"] > 0  # the cap matters
    assert float(weights.max()) == pytest.approx(1.2) or correction == "mask"
    plain, _, _ = ours(oracle.model, config.model_copy(update={"correction": "none"}), rows, {}, 1.0)
    assert abs(plain - expected) > 1e-3


@pytest.mark.parametrize(
    ("correction", "told"), [("none", "stale weights"), ("truncate", "corrected by weights")]
)
def test_a_corrected_gap_is_told_without_alarm(oracle: Oracle, correction: str, told: str) -> None:
    rows, _ = with_logprobs(oracle.model, draw_rows(), 1.0)
    algorithm = grpo.algorithm(GrpoConfig(correction=correction), temperature=1.0, max_tokens=16)
    trainer = Trainer(copy.deepcopy(oracle.model), replace(algorithm, credit=lambda batch: batch), steps=1)
    _, findings = trainer.step(0, Credit(tuple(rows), tuple(ADVANTAGES)))
    (finding,) = findings
    assert finding.name == "sampler_gap"
    assert told in finding.text
