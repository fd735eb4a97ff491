"""TRL's trainers as an oracle: tiny, on the CPU, fed with fixed batches instead of generating any."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from renshu.types import Row
from tiny_models import save_tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import (
        DPOConfig,
        DPOTrainer,
        GRPOConfig,
        GRPOTrainer,
        KTOConfig,
        KTOTrainer,
        SFTConfig,
        SFTTrainer,
    )

COMMON: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


def tiny_model(folder: Path) -> tuple[Any, Any]:
    """A random Llama and its tokenizer; weights larger than initial ones, which make all tokens alike."""
    save_tiny_model(folder, template=None, width=32, layers=2)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    return model, AutoTokenizer.from_pretrained(folder)


def grpo_trainer(folder: Path, model: Any, tokenizer: Any, temperature: float) -> Any:
    arguments = GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=16,
        temperature=temperature,
        **COMMON,
    )
    data = Dataset.from_list([{"prompt": "a"}] * 4)

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    trainer = GRPOTrainer(model, reward, arguments, data, processing_class=tokenizer)
    trainer.model.eval()
    return trainer


def sft_trainer(folder: Path, model: Any, tokenizer: Any) -> Any:
    arguments = SFTConfig(output_dir=str(folder / "out"), per_device_train_batch_size=4, **COMMON)
    data = Dataset.from_list([{"text": "a b"}] * 4)
    return SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer)


def dpo_trainer(
    folder: Path, model: Any, reference: Any, tokenizer: Any, data: Sequence[dict[str, Any]] = ()
) -> Any:
    """data: preferences in TRL's format, for its tokenisation; absent: any."""
    arguments = DPOConfig(output_dir=str(folder / "out"), per_device_train_batch_size=4, **COMMON)
    rows = Dataset.from_list(list(data) or [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    return DPOTrainer(model, reference, arguments, train_dataset=rows, processing_class=tokenizer)


def kto_trainer(folder: Path, model: Any, reference: Any, tokenizer: Any) -> Any:
    arguments = KTOConfig(output_dir=str(folder / "out"), per_device_train_batch_size=4, **COMMON)
    data = Dataset.from_list([{"prompt": "a", "completion": "b", "label": i % 2 == 0} for i in range(4)])
    return KTOTrainer(model, reference, arguments, train_dataset=data, processing_class=tokenizer)


def answered(row: Row) -> dict[str, list[int]]:
    """A row as TRL's preference trainers hold it: everything behind the prompt is the answer."""
    prompt, answer, _ = split(row)
    return {"prompt_ids": prompt, "completion_ids": answer}


def relative_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Length of the difference of two gradients, as a share of the second."""
    assert one.keys() == other.keys()
    difference = sum((one[name] - other[name]).double().square().sum() for name in one)
    return float((difference / sum(g.double().square().sum() for g in other.values())).sqrt())


def split(row: Row) -> tuple[list[int], list[int], list[int]]:
    """Prompt ids, completion ids, and the completion's mask of trained tokens (TRL's `tool_mask`)."""
    start = row.trained.index(True)
    return list(row.ids[:start]), list(row.ids[start:]), [int(t) for t in row.trained[start:]]


def pad(rows: Sequence[Sequence[float]], side: str = "right", value: float = 0) -> Tensor:
    longest = max(map(len, rows))
    filled = [
        [*row, *[value] * (longest - len(row))]
        if side == "right"
        else [*[value] * (longest - len(row)), *row]
        for row in rows
    ]
    return torch.tensor(filled)


def spread_over_completion(row: Row, values: Sequence[float]) -> list[float]:
    """One value a trained token -> one a completion token; 0 where the model did not sample."""
    remaining = iter(values)
    return [next(remaining) if trained else 0.0 for trained in split(row)[2]]


def grpo_inputs(
    rows: Sequence[Row], advantages: Sequence[float], references: dict[tuple[int, ...], Sequence[float]]
) -> dict[str, Tensor]:
    """The batch as TRL collates it: prompts padded on the left, completions on the right."""
    parts = [split(row) for row in rows]
    return {
        "prompt_ids": pad([prompt for prompt, _, _ in parts], "left"),
        "prompt_mask": pad([[1] * len(prompt) for prompt, _, _ in parts], "left"),
        "completion_ids": pad([completion for _, completion, _ in parts]),
        "completion_mask": pad([[1] * len(completion) for _, completion, _ in parts]),
        "tool_mask": pad([mask for _, _, mask in parts], value=1),
        "advantages": torch.tensor(advantages),
        "old_per_token_logps": pad([spread_over_completion(row, row.logprobs or ()) for row in rows]),
        "ref_per_token_logps": pad([spread_over_completion(row, references[row.ids]) for row in rows]),
        "num_items_in_batch": torch.tensor(sum(sum(row.trained) for row in rows)),
    }
