"""Models whose weights are spread over processes (FSDP2, torch's `fully_shard`), and how they are used whole.

Every function here also takes a model or tensor that is not spread, and then does the obvious. Those that say
"together" have to be called by all processes at the same point.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from renshu.errors import ModelError

_sharded: WeakSet[nn.Module] = WeakSet()


def shard(model: Any) -> None:
    """Spread the weights over all processes, a layer at a time: each keeps its part, and its gradients'.

    The model stays the same object; its parameters become DTensors. Together; a second call changes nothing.
    Raises ModelError for four-bit weights, which cannot be cut.
    """
    if model in _sharded:
        return
    if getattr(model, "is_quantized", False):
        raise ModelError("weights in four bits cannot be spread over processes: set parallel.kind=ddp")
    from torch.distributed.fsdp import fully_shard

    layers = frozenset(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module)
    fully_shard(model)
    _sharded.add(model)


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """While open, every process has all weights, and may call the model as often as it likes, alone.

    Together, opening and closing. For passes without gradient: sampling, evaluation, log-probs. What is
    written into weights is lost when it closes.
    """
    if model not in _sharded:
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.set_reshard_after_forward(unit is not model, recurse=False)  # as torch has it
            unit.reshard()


def whole_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor of which this process may hold a part. Together."""
    return tensor.full_tensor() if _is_part(tensor) else tensor  # type: ignore[attr-defined]


def whole_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """All weights of a model that is spread, by name; None of one that holds them itself. Together."""
    if model not in _sharded:
        return None
    owners = {name: id(weight) for name, weight in model.named_parameters(remove_duplicate=False)}
    found: dict[int | str, Tensor] = {}
    names = model.state_dict()
    for name, part in names.items():
        owner = owners.get(name, name)
        if owner not in found:  # tied weights stay one tensor
            found[owner] = whole_tensor(part).cpu()
    return {name: found[owners.get(name, name)] for name in names}


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """The part of `value`, known to all processes, that belongs where `like` is."""
    if not _is_part(like):
        return value.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    mesh: Any = like.device_mesh  # type: ignore[attr-defined]
    placements: Any = like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(like.device), mesh, placements, src_data_rank=None)


def _is_part(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")
