"""The processes that train one model together.

Each of them holds the same model and knows every batch whole; only what is expensive is divided: rollouts,
log-probs and gradients. So a run means the same whatever the number of processes. One that is alone is the
base class, where nothing is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from renshu.errors import ConfigError, OtherProcessFailed
from renshu.models.sharded import shard

T = TypeVar("T")
R = TypeVar("R")


class Processes:
    """One process that is alone. rank: its number, from 0, of `size`; the first writes and speaks for all."""

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def each(self, action: Callable[[], T]) -> list[T]:
        """What `action` gives in every process, in their order.

        Where it fails in one, all fail: that one with its own error, the others with OtherProcessFailed.
        """
        return [action()]

    def cause(self, error: BaseException) -> BaseException:
        """What to raise in the place of `error`, which ends this process and so all others.

        Of several processes one keeps its error, the first cause; the others get OtherProcessFailed.
        """
        return error

    def led(self, action: Callable[[], T]) -> T:
        """What `action` gives in the process that leads, which alone does it."""
        results = self.each(lambda: action() if self.leads else None)
        return results[0]  # type: ignore[return-value]

    def divided(
        self, items: Sequence[T], work: Callable[[list[T]], Sequence[R]], key: Callable[[T], Hashable] = id
    ) -> list[R]:
        """`work(items)`, a share of them in each process; items of equal `key` come to the same one.

        work: gives one result an item.
        """
        shares = dealt([key(item) for item in items], self.size)
        found = self.each(lambda: list(work([items[i] for i in shares[self.rank]])))
        return in_order(shares, found)

    def total(self, number: float) -> float:
        """The sum over all processes."""
        return sum(self.each(lambda: number))

    def any(self, flag: bool) -> bool:
        """Whether it holds in any process."""
        return any(self.each(lambda: flag))

    def wrap(self, model: Any) -> Any:
        """What is called in the place of `model` where its gradient is wanted, by all at the same time."""
        return model

    def accumulating(self, wrapped: Any, *, last: bool) -> AbstractContextManager[Any]:
        """Around a forward and backward pass of an update. last: then gradients are put together."""
        return nullcontext()

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Of parameters that `wrap` does not know, after the last backward pass of an update."""


ALONE = Processes()
Alarm = Callable[[BaseException], BaseException]


@dataclass(frozen=True)
class _Failure:
    text: str


class Together(Processes):
    """Several processes, joined by torch's default process group.

    Gradients are averaged, as DDP and FSDP do; the loop multiplies its losses by `size`, as it wants the sum.
    alarm: does what `cause` promises.
    """

    def __init__(self, alarm: Alarm | None = None) -> None:
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._alarm = alarm

    def cause(self, error: BaseException) -> BaseException:
        return error if self._alarm is None else self._alarm(error)

    def each(self, action: Callable[[], T]) -> list[T]:
        own: Any
        error = None
        try:
            own = action()
        except Exception as raised:
            error, own = raised, _Failure(f"{type(raised).__name__}: {raised}")
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, own)
        for rank, result in enumerate(found):
            if isinstance(result, _Failure):
                if rank == self.rank and error is not None:
                    raise error
                raise OtherProcessFailed(f"process {rank}: {result.text}")
        return found

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:  # nothing to do here
                    parameter.grad = torch.zeros_like(parameter)
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= self.size


class Replicated(Together):
    """Every process has all weights: data parallelism (DDP), by Accelerate."""

    def __init__(self, alarm: Alarm | None = None) -> None:
        super().__init__(alarm)
        self._accelerator: Any = None
        self._wrapped: dict[Any, Any] = {}

    def wrap(self, model: Any) -> Any:
        if model not in self._wrapped:
            if self._accelerator is None:
                self._accelerator = _accelerator(on_cpu=next(model.parameters()).device.type == "cpu")
            self._wrapped[model] = self._accelerator.prepare(model)
        return self._wrapped[model]

    def accumulating(self, wrapped: Any, *, last: bool) -> AbstractContextManager[Any]:
        no_sync: AbstractContextManager[Any] = self._accelerator.no_sync(wrapped)
        return nullcontext() if last else no_sync


class Sharded(Together):
    """Every process has a part of the weights, and of gradients and moments: FSDP2, by torch."""

    def wrap(self, model: Any) -> Any:
        shard(model)
        return model


def dealt(keys: Sequence[Hashable], size: int) -> list[list[int]]:
    """Indices for each of `size` processes: different keys in turn, equal ones together."""
    number: dict[Hashable, int] = {}
    shares: list[list[int]] = [[] for _ in range(size)]
    for index, key in enumerate(keys):
        shares[number.setdefault(key, len(number)) % size].append(index)
    return shares


def in_order(shares: Sequence[Sequence[int]], found: Sequence[Sequence[R]]) -> list[R]:
    """What was found in shares, in the order of the indices that these hold."""
    pairs = [
        pair for share, part in zip(shares, found, strict=True) for pair in zip(share, part, strict=True)
    ]
    return [result for _, result in sorted(pairs, key=lambda pair: pair[0])]


def require_equal(processes: Processes, record: dict[str, Any]) -> None:
    """Raise ConfigError if the processes do not say the same of what they are about to train."""
    records = processes.each(lambda: record)
    odd = [name for name in record if any(other.get(name) != record[name] for other in records)]
    if odd:
        raise ConfigError(
            f"the processes do not train the same: {', '.join(odd)} differ; give all of them the same files "
            "and packages"
        )


def _accelerator(*, on_cpu: bool) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    # Buffers never change, and telling them at every pass would need as many passes everywhere.
    options = DistributedDataParallelKwargs(broadcast_buffers=False)
    return Accelerator(cpu=on_cpu, mixed_precision="no", kwargs_handlers=[options])
