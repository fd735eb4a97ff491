"""Every DPO loss, through our loop on token trees, equals TRL 1.16's on the same batch, gradient too."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from preference_kit import STILL, draw_pairs, one_step, two_models
from renshu.algorithms import DpoConfig, dpo
from renshu.chat import ChatFormat
from renshu.types import Message, Pair, Row, ToolCall
from tiny_models import qwen_template
from trl_oracle import answered, dpo_trainer, relative_difference

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Oracle:
    """model, reference: with the trainer's weights, but not in its hands: TRL patches their forward."""

    model: Any
    reference: Any
    tokenizer: Any
    trl: Any


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp("trl")
    model, reference, tokenizer = two_models(folder / "model")
    trl = dpo_trainer(folder, copy.deepcopy(model), copy.deepcopy(reference), tokenizer)
    return Oracle(model, reference, tokenizer, trl)


def collated(trl: Any, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    return trl.data_collator(
        [
            {
                "prompt_ids": answered(pair.chosen)["prompt_ids"],
                "chosen_ids": answered(pair.chosen)["completion_ids"],
                "rejected_ids": answered(pair.rejected)["completion_ids"],
            }
            for pair in pairs
        ]
    )


def theirs(
    oracle: Oracle, loss_type: str, inputs: dict[str, Tensor], **options: Any
) -> tuple[float, dict[str, Tensor], dict[str, float]]:
    trl = oracle.trl
    weights = {loss_type: 1.0} | options.pop("besides", {})
    trl.loss_types, trl.loss_weights = list(weights), list(weights.values())
    trl.beta = options.get("beta", 0.1)
    trl.label_smoothing = options.get("label_smoothing", 0.0)
    trl.precompute_ref_logps = options.get("reference_free", False)
    if trl.precompute_ref_logps:  # log-probs of a reference that says 0 to everything
        zeros = torch.zeros(len(inputs["input_ids"]) // 2)
        inputs = {**inputs, "ref_chosen_logps": zeros, "ref_rejected_logps": zeros}
    trl.model.train()
    trl.model.zero_grad()
    trl._metrics["train"].clear()
    loss = trl.compute_loss(trl.model, inputs)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in trl.model.named_parameters() if p.grad is not None}
    return loss.item(), gradients, {name: values[0] for name, values in trl._metrics["train"].items()}


def ours(oracle: Oracle, pairs: Sequence[Pair], **options: Any) -> tuple[dict[str, float], dict[str, Tensor]]:
    # A budget of 30 tokens forces several micro-batches: accumulation must change nothing.
    config = DpoConfig(data="-", token_budget=30, **STILL, **options)
    return one_step(oracle.model, oracle.reference, dpo.algorithm(config), pairs)


VARIANTS: list[dict[str, Any]] = [
    {"loss": "sigmoid"},
    {"loss": "sigmoid", "beta": 0.5},
    {"loss": "sigmoid", "reference_free": True},
    {"loss": "sigmoid_norm", "beta": 5.0},
    {"loss": "sigmoid_norm", "beta": 2.0, "reference_free": True},
    {"loss": "ipo"},
    {"loss": "ipo", "beta": 0.7},
    {"loss": "hinge", "beta": 0.3},
    {"loss": "robust", "label_smoothing": 0.1},
    {"loss": "robust", "label_smoothing": 0.3, "beta": 0.5},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(f"{value}" for value in v.values()))
@pytest.mark.parametrize("tool", [False, True], ids=["turn", "tool"])
def test_loss_gradient_and_rewards_are_trls(oracle: Oracle, variant: dict[str, Any], tool: bool) -> None:
    pairs = draw_pairs(5, tool=tool)
    metrics, gradients = ours(oracle, pairs, train_on="completion", **variant)
    options = {key: value for key, value in variant.items() if key != "loss"}
    loss, expected, told = theirs(oracle, variant["loss"], collated(oracle.trl, pairs), **options)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert abs(loss) > 1e-3  # a loss of 0 would agree with anything
    assert relative_difference(gradients, expected) < 1e-5
    named = {
        "rewards_chosen": "rewards/chosen",
        "rewards_rejected": "rewards/rejected",
        "margin": "rewards/margins",
        "accuracy": "rewards/accuracies",
        "logps_chosen": "logps/chosen",
        "logps_rejected": "logps/rejected",
    }
    for name, their_name in named.items():
        assert metrics[name] == pytest.approx(told[their_name], abs=1e-4), name


def test_smoothed_labels_are_trls(oracle: Oracle) -> None:
    """TRL smooths in `aot`, whose sorting leaves a batch of a single pair as it is: there it is cDPO."""
    pairs = draw_pairs(4)
    metrics, gradients = ours(oracle, pairs, label_smoothing=0.2, beta=0.3)
    each = [
        theirs(oracle, "aot", collated(oracle.trl, [pair]), label_smoothing=0.2, beta=0.3) for pair in pairs
    ]
    assert metrics["loss"] == pytest.approx(sum(loss for loss, _, _ in each) / 4, abs=1e-5)
    mean = {name: sum(found[name] for _, found, _ in each) / 4 for name in gradients}
    assert relative_difference(gradients, mean) < 1e-5


def test_imitation_of_the_chosen_answer_is_trls(oracle: Oracle) -> None:
    """TRL averages over the tokens of a batch, we over rows of token means: equal for a single pair."""
    for pair in draw_pairs(3):
        metrics, gradients = ours(oracle, [pair], nll=0.4)
        loss, expected, _ = theirs(oracle, "sigmoid", collated(oracle.trl, [pair]), besides={"sft": 0.4})
        assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
        assert relative_difference(gradients, expected) < 1e-5


def test_the_comparison_sees_what_is_trained_on_and_which_loss(oracle: Oracle) -> None:
    pairs = draw_pairs(5, tool=True)
    _, expected, _ = theirs(oracle, "sigmoid", collated(oracle.trl, pairs))
    for wrong in (
        {"train_on": "sampled"},
        {"train_on": "completion", "loss": "robust", "label_smoothing": 0.1},
    ):
        _, gradients = ours(oracle, pairs, **wrong)
        assert relative_difference(gradients, expected) > 1e-2


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a city up.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
PROMPT = [Message("system", "Be brief."), Message("user", "How warm is Paris?")]
CHOSEN = [
    Message("assistant", tool_calls=(ToolCall("look_up", {"city": "Paris"}),)),
    Message("tool", "12"),
    Message("assistant", "12 degrees."),
]
REJECTED = [Message("assistant", "Warm, I guess.")]


def wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
    called = [{"type": "function", "function": {"name": "look_up", "arguments": {"city": "Paris"}}}]
    return [
        {"role": m.role, "content": m.content} | ({"tool_calls": called} if m.tool_calls else {})
        for m in messages
    ]


def test_a_dialogue_with_tools_is_trls_everything_after_the_prompt(oracle: Oracle, tmp_path: Path) -> None:
    oracle.tokenizer.chat_template = qwen_template()
    data = [{"prompt": wire(PROMPT), "chosen": wire(CHOSEN), "rejected": wire(REJECTED), "tools": TOOLS}]
    trl = dpo_trainer(
        tmp_path, copy.deepcopy(oracle.model), copy.deepcopy(oracle.reference), oracle.tokenizer, data
    )
    (example,) = trl.train_dataset
    chat = ChatFormat(oracle.tokenizer)
    sides = {}
    for side, messages in (("chosen", CHOSEN), ("rejected", REJECTED)):
        row = chat.supervised([*PROMPT, *messages], TOOLS)
        whole = (*example["prompt_ids"], *example[f"{side}_ids"])
        # Behind the last stop token the template writes a newline, which no model samples.
        assert (*row.ids, *oracle.tokenizer.encode("\n")) == whole
        assert row.trained.index(True) == len(example["prompt_ids"])
        sides[side] = Row(whole, (*row.trained, False))
    pair = Pair(sides["chosen"], sides["rejected"])
    metrics, gradients = ours(oracle, [pair], train_on="completion")
    loss, expected, _ = theirs(oracle, "sigmoid", trl.data_collator([example]))
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert relative_difference(gradients, expected) < 1e-5
    only_sampled, _ = ours(oracle, [pair])
    assert abs(only_sampled["loss"] - loss) > 1e-3
