"""Models whose weights are spread over processes (FSDP2, torch's `fully_shard`), and how they are used whole.

Every function here also takes a model or tensor that is not spread, and then does the obvious. Those that say
"together" have to be called by all processes at the same point.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from renshu.errors import ModelError

# Sharded models, each with its structure in the `meta` device: what a copy is made from.
_structures: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


def shard(model: Any) -> None:
    """Spread the weights over all processes, one unit a layer: each keeps its part, and their gradients'.

    The model stays the same object; its parameters become DTensors. Together; a second call changes nothing.
    Raises ModelError for four-bit weights, which cannot be cut.
    """
    if model in _structures:
        return
    if getattr(model, "is_quantized", False):
        raise ModelError("weights in four bits cannot be spread over processes: set parallel.kind=ddp")
    from torch.distributed.fsdp import fully_shard

    _structures[model] = _replaced(model, {p: _empty(p) for p in model.parameters()})
    layers = frozenset(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers and any(True for _ in module.parameters()):
            fully_shard(module)
    fully_shard(model)


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """While open, every process has all weights, and may call the model as often as it likes, alone.

    Together, opening and closing. For passes without gradient: sampling, evaluation, log-probs.
    """
    if model not in _structures:
        yield
        return
    units = _units(model)
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.set_reshard_after_forward(unit is not model, recurse=False)  # as torch has it
            unit.reshard()


def copied(model: Any) -> Any:
    """A copy of the model with weights of its own, whole in every process. Together."""
    if model not in _structures:
        return copy.deepcopy(model)
    structure = _structures[model]
    with whole(model):
        weights = dict(model.named_parameters())
        return _replaced(
            structure,
            {
                empty: nn.Parameter(weights[name].detach().clone(), requires_grad=empty.requires_grad)
                for name, empty in structure.named_parameters()
            },
        )


def whole_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor of which this process may hold a part. Together."""
    return tensor.full_tensor() if is_part(tensor) else tensor  # type: ignore[attr-defined]


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """The part of `value`, known to all processes, that belongs where `like` is."""
    if not is_part(like):
        return value.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    mesh: Any = like.device_mesh  # type: ignore[attr-defined]
    placed: Tensor = distribute_tensor(value.to(like.device), mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
    return placed


def is_part(tensor: Tensor) -> bool:
    """Whether this process holds a part of the tensor only."""
    return hasattr(tensor, "full_tensor")


def _units(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _empty(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)


def _replaced(model: nn.Module, parameters: dict[nn.Parameter, nn.Parameter]) -> nn.Module:
    """A copy of a model with other parameters in the place of its own; tied ones stay tied."""
    return copy.deepcopy(model, {id(old): new for old, new in parameters.items()})
