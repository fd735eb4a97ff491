"""The reference model: what a policy is compared with while it is trained, in a KL or in implicit rewards.

It is never a second model where that can be helped: the weights that are trained are exchanged for the length
of a pass, or the adapter is switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from renshu.models.adapters import adapter_off, has_adapter
from renshu.models.load import LoadedModel, load
from renshu.tree import pack, supports_tree, token_logprobs
from renshu.types import Row

Reference = Callable[[Sequence[Row], float], Tensor]  # rows, temperature → (N,) of their trained tokens


def reference_of(model: Any) -> Reference:
    """The model as it is now, whatever becomes of it.

    The weights that are trained are copied. An adapter that was never trained needs no copy: its reference is
    the model with the adapter switched off.
    """
    if has_adapter(model) and _untrained(model):
        return _passes(model, lambda: adapter_off(model))
    frozen = {p: p.detach().clone() for p in model.parameters() if p.requires_grad}
    return _passes(model, lambda: _exchanged(frozen))


def base_of(loaded: LoadedModel) -> Reference:
    """The model below its adapter, or, without one, as its folder has it: this is loaded a second time."""
    if has_adapter(loaded.model):
        return _passes(loaded.model, lambda: adapter_off(loaded.model))
    return _passes(load(loaded.settings).model.requires_grad_(False), nullcontext)


def present(model: Any) -> Reference:
    """The model as it is whenever it is asked: for `cached`, which asks at once."""
    return _passes(model, nullcontext)


def cached(
    reference: Reference, rows: Sequence[Row], *, model: Any, temperature: float, token_budget: int
) -> Reference:
    """What the reference says about `rows`, asked once and in their order: a resumed run finds the same.

    The log-probs stay in memory: four bytes a trained token. model: whose layout the rows are packed for.
    """
    distinct = list({(row.ids, row.trained): row for row in rows}.values())
    known: dict[tuple[tuple[int, ...], tuple[bool, ...]], Tensor] = {}
    for indices in pack(distinct, token_budget, "tree" if supports_tree(model) else "padded"):
        part = [distinct[i] for i in indices]
        lengths = [sum(row.trained) for row in part]
        split = torch.split(reference(part, temperature).cpu(), lengths)
        known |= {(row.ids, row.trained): said for row, said in zip(part, split, strict=True)}
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
def _exchanged(frozen: dict[Tensor, Tensor]) -> Iterator[None]:
    """While open, the parameters hold what was frozen, and the copies what they held; in place, as sharded
    parameters are known by their storage.
    """
    _exchange(frozen)
    try:
        yield
    finally:
        _exchange(frozen)


def _exchange(frozen: dict[Tensor, Tensor]) -> None:
    for parameter, copy in frozen.items():
        held = parameter.detach().clone()
        parameter.detach().copy_(copy)
        copy.copy_(held)


def _untrained(model: Any) -> bool:
    return all(not p.any() for name, p in model.named_parameters() if "lora_B" in name)
