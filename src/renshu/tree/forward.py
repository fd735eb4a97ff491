"""Rows in, log-probs of their trained tokens out: one forward pass, every distinct token once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from renshu.errors import DataError, UnsupportedAttention
from renshu.tree.logprobs import chosen_logprobs
from renshu.tree.packing import Layout, padded_tokens
from renshu.tree.support import bare, refusal, supports_tree
from renshu.tree.tiles import TreeAttention
from renshu.tree.trie import Ints, TokenTree
from renshu.types import Row


@dataclass(frozen=True)
class TokenLogprobs:
    """What one forward pass says about the N trained tokens of some rows, in row order then token order.

    logprobs: temperature-scaled log-prob of each, (N,), float32 at least, differentiable. entropy: of the
    distribution each was drawn from, in nats, (N,); hidden: the model's last state before each, (N, D); both
    None unless asked for.
    computed: tokens the model computed, padding included. naive: tokens of all rows, every copy counted.
    """

    logprobs: Tensor
    entropy: Tensor | None
    computed: int
    naive: int
    hidden: Tensor | None = None


def token_logprobs(
    model: Any,
    rows: Sequence[Row],
    *,
    temperature: float = 1.0,
    layout: Layout | Literal["auto"] = "auto",
    entropy: bool = False,
    hidden: bool = False,
) -> TokenLogprobs:
    """Log-probs of all trained tokens of `rows` under `model`, from one forward pass.

    `layout="tree"` computes each distinct token once, `"padded"` computes the rows side by side; results and
    gradients are the same. `"auto"` is the tree wherever the model takes one (`renshu.tree.supports_tree`).
    Raises DataError if no token is trained, UnsupportedAttention for a tree the model does not take.
    """
    with _states_before_head(model if hidden else None) as states:
        logits, index, target, computed = _logits(model, rows, layout)
    logprobs, entropies = chosen_logprobs(logits, index, target, temperature, entropy)
    found = states[-1].flatten(0, -2)[index] if hidden else None
    return TokenLogprobs(logprobs, entropies, computed, sum(len(row.ids) for row in rows), found)


def token_states(model: Any, rows: Sequence[Row], *, layout: Layout | Literal["auto"] = "auto") -> Tensor:
    """The model's last state before each trained token of `rows`, (N, D): what its head is given there.

    layout and errors as of `token_logprobs`.
    """
    with _states_before_head(model) as states:
        _, index, _, _ = _logits(model, rows, layout)
    return states[-1].flatten(0, -2)[index]


def _logits(
    model: Any, rows: Sequence[Row], layout: Layout | Literal["auto"]
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Logits that predict, (M, V); each trained token's row in them and id, (N,); tokens computed."""
    if not any(any(row.trained) for row in rows):
        raise DataError(f"none of the {len(rows)} rows has a trained token: there is nothing to compute")
    takes_tree = supports_tree(model)
    if layout == "tree" and not takes_tree:
        raise UnsupportedAttention(f'{refusal(model)}: use layout="padded"')
    device = next(model.parameters()).device
    compute = _tree_logits if takes_tree and layout != "padded" else _padded_logits
    logits, index, target, computed = compute(model, rows, device)
    return logits, torch.from_numpy(index).to(device), torch.from_numpy(target).to(device), computed


@contextmanager
def _states_before_head(model: Any) -> Iterator[list[Tensor]]:
    """Catches what the head is given: the last states of the positions whose logits are asked for.

    The last call counts: before it, the model may be asked whether it takes trees. `output_hidden_states`
    would keep the states of every position and layer.
    """
    caught: list[Tensor] = []
    if model is None:
        yield caught
        return
    head = bare(model).get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    try:
        yield caught
    finally:
        handle.remove()


def _tree_logits(model: Any, rows: Sequence[Row], device: torch.device) -> tuple[Tensor, Ints, Ints, int]:
    """Logits of predicting nodes, (M, V); each trained token's row there and id, (N,); tokens computed."""
    tree = TokenTree.build(rows)
    sources, index = np.unique(tree.source, return_inverse=True)
    logits: Tensor = model(
        input_ids=torch.from_numpy(tree.ids).to(device)[None],
        position_ids=torch.from_numpy(tree.positions).to(device)[None],
        attention_mask=torch.ones(
            1, 1, 1, 1, dtype=torch.bool, device=device
        ),  # keeps transformers from making one
        tree=TreeAttention(tree),
        use_cache=False,
        logits_to_keep=torch.from_numpy(sources).to(device),
    ).logits[0]
    return logits, index, tree.target, len(tree)


def _padded_logits(model: Any, rows: Sequence[Row], device: torch.device) -> tuple[Tensor, Ints, Ints, int]:
    """As `_tree_logits`, of rows padded on the right and the positions at which any of them predicts."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.tensor(row.ids)
        mask[number, : len(row.ids)] = 1
    at = [np.flatnonzero(row.trained) for row in rows]
    sources, index = np.unique(np.concatenate(at) - 1, return_inverse=True)
    logits: Tensor = model(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        use_cache=False,
        logits_to_keep=torch.from_numpy(sources).to(device),
    ).logits.flatten(0, 1)  # (rows × M, V)
    index += np.repeat(np.arange(len(rows)) * len(sources), [len(a) for a in at])
    target = np.concatenate([np.asarray(row.ids, dtype=np.int64)[a] for row, a in zip(rows, at, strict=True)])
    return logits, index, target, padded_tokens(rows)
