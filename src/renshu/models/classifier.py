"""Sequence classifiers with one label: a causal model's layers under a head that gives a text one number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from renshu.errors import ModelError
from renshu.models.adapters import has_adapter
from renshu.models.load import LoadedModel, disable_dropout, locate
from renshu.seeding import stable_hash

HEAD = "score.weight"  # what transformers calls the head of a sequence classifier


def load_classifier(name: str, device: str = "auto") -> tuple[Any, Any]:
    """The sequence classifier of a folder or hub name, in float32, and its tokenizer.

    device: `auto` is the first CUDA GPU if there is one, else the CPU.
    Only safetensors are read, and no code of the checkpoint is run. Raises ModelError if it has several
    labels, or if a weight is missing: a causal model has no trained head, and a random one is no judge.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = locate(name)
    try:
        model, found = AutoModelForSequenceClassification.from_pretrained(
            source, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception as error:  # damaged files, missing packages, code of its own
        short = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(f"{name} cannot be loaded as a reward model: {short}") from error
    if missing := sorted(map(str, found["missing_keys"])):
        raise ModelError(
            f"{name} is no reward model: {missing[0]} is not in it and would be random; train one from pairs "
            "with `renshu reward train`"
        )
    if model.config.num_labels != 1:
        raise ModelError(f"{name} has {model.config.num_labels} labels: a reward model gives one number")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return _ready(model, tokenizer).to(device).eval(), tokenizer


def is_classifier(name: str) -> bool:
    """Whether a folder says of itself that it holds a sequence classifier."""
    try:
        config = json.loads((Path(locate(name)) / "config.json").read_text("utf-8"))
        return str(config["architectures"][0]).endswith("ForSequenceClassification")
    except (OSError, ValueError, LookupError, TypeError):
        return False


def classifier_of(loaded: LoadedModel, seed: int = 0) -> Any:
    """A sequence classifier with the layers of a causal model, which is used up, and a new head.

    An adapter is merged first. The head is drawn from N(0, initializer_range²) by `seed`. Raises ModelError
    for quantised weights, and for a kind of model of which transformers has no classifier.
    """
    from transformers import AutoModelForSequenceClassification

    if getattr(loaded.model, "is_quantized", False) or getattr(
        loaded.model.config, "quantization_config", None
    ):
        raise ModelError(f"{loaded.origin} has quantised weights: write it whole first, with `renshu merge`")
    causal = loaded.model.merge_and_unload(safe_merge=True) if has_adapter(loaded.model) else loaded.model
    config = type(causal.config).from_dict({**causal.config.to_dict(), "num_labels": 1})
    try:
        model = AutoModelForSequenceClassification.from_config(config)
    except ValueError:
        raise ModelError(f"{loaded.origin}: {config.model_type} models have no sequence classifier") from None
    if type(model.base_model) is not type(causal.base_model) or not hasattr(model, "score"):
        raise ModelError(
            f"{loaded.origin}: the classifier of {config.model_type} models has other layers than the model"
        )
    setattr(model, model.base_model_prefix, causal.base_model)
    generator = torch.Generator().manual_seed(stable_hash(seed, "reward head") % 2**63)
    head = torch.empty_like(model.score.weight)
    with torch.no_grad():
        model.score.weight.copy_(head.normal_(0.0, config.initializer_range, generator=generator))
    return _ready(model, loaded.tokenizer).to(next(causal.parameters()).device)


def scores(model: Any, rows: Sequence[Sequence[int]]) -> Tensor:
    """The number that a classifier gives each row of ids, (R,), in one forward pass padded on the right.

    As transformers computes it: at the last token that is not the padding token.
    """
    longest = max(map(len, rows))
    padding = model.config.get_text_config().pad_token_id
    ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=model.device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=model.device)
    logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return logits.squeeze(-1)


def _ready(model: Any, tokenizer: Any) -> Any:
    """Without dropout, and with a padding token, by which transformers finds the end of a row."""
    disable_dropout(model)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise ModelError("the tokenizer has neither a padding token nor one that ends a text: set pad_token")
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model
