"""The reference model: what a policy is compared with while it is trained, in a KL or in implicit rewards.

It is never a second model where that can be helped: the weights that are trained are exchanged for the length
of a pass, or the adapter is switched off. A model that is spread over processes is asked while it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from renshu.models.adapters import adapter_off, has_adapter
from renshu.models.load import LoadedModel, load
from renshu.models.sharded import whole_tensor
from renshu.tree import pack, supports_tree, token_logprobs
from renshu.tree.packing import Layout
from renshu.types import Row

Reference = Callable[[Sequence[Row], float], Tensor]  # rows, temperature → (N,) of their trained tokens
Divided = Callable[[Sequence[Row], Callable[[Sequence[Row]], list[Tensor]]], list[Tensor]]


def reference_of(model: Any) -> Reference:
    """The model as it is now, whatever becomes of it.

    The weights that are trained are copied. An adapter that was never trained needs no copy: its reference is
    the model with the adapter switched off.
    """
    if has_adapter(model) and _untrained(model):
        return _passes(model, lambda: adapter_off(model))
    frozen = {
        name: whole_tensor(weight.detach()).clone()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    return _passes(model, lambda: _exchanged(model, frozen))


def base_of(loaded: LoadedModel) -> Reference:
    """The model below its adapter, or, without one, as its folder has it: this is loaded a second time."""
    if has_adapter(loaded.model):
        return _passes(loaded.model, lambda: adapter_off(loaded.model))
    return _passes(load(loaded.settings).model.requires_grad_(False), nullcontext)


def present(model: Any) -> Reference:
    """The model as it is whenever it is asked: for `cached`, which asks at once."""
    return _passes(model, nullcontext)


def cached(
    reference: Reference,
    rows: Sequence[Row],
    *,
    model: Any,
    temperature: float,
    token_budget: int,
    divided: Divided = lambda rows, said: said(rows),
) -> Reference:
    """What the reference says about `rows`, asked once and in their order: a resumed run finds the same.

    The log-probs stay in memory: four bytes a trained token. model: whose layout the rows are packed for.
    divided: lets several processes ask about a share of the rows each.
    """
    layout: Layout = "tree" if supports_tree(model) else "padded"

    def said(rows: Sequence[Row]) -> list[Tensor]:
        answers: dict[int, Tensor] = {}
        for indices in pack(rows, token_budget, layout):
            part = [rows[i] for i in indices]
            split = torch.split(reference(part, temperature).cpu(), [sum(row.trained) for row in part])
            answers |= dict(zip(indices, split, strict=True))
        return [answers[i] for i in range(len(rows))]

    distinct = {(row.ids, row.trained): row for row in rows}
    known = dict(zip(distinct, divided(list(distinct.values()), said), strict=True))
    return lambda rows, _: torch.cat([known[row.ids, row.trained] for row in rows])


def _passes(model: Any, opened: Callable[[], AbstractContextManager[Any]]) -> Reference:
    @torch.no_grad()
    def logprobs(rows: Sequence[Row], temperature: float) -> Tensor:
        training = model.training
        model.eval()
        try:
            with opened():
                return token_logprobs(model, rows, temperature=temperature).logprobs
        finally:
            model.train(training)

    return logprobs


@contextmanager
def _exchanged(model: Any, frozen: dict[str, Tensor]) -> Iterator[None]:
    """While open, the parameters hold what was frozen, and the copies what they held."""
    weights = [(parameter, frozen[name]) for name, parameter in model.named_parameters() if name in frozen]
    _exchange(weights)
    try:
        yield
    finally:
        _exchange(weights)


def _exchange(weights: Sequence[tuple[Tensor, Tensor]]) -> None:
    for parameter, copy in weights:
        held = parameter.detach().clone()
        parameter.detach().copy_(copy)
        copy.copy_(held)


def _untrained(model: Any) -> bool:
    return all(not p.any() for name, p in model.named_parameters() if "lora_B" in name)
