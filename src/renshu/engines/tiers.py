"""Where the native engine keeps keys and values: slots of equal capacity, for one batched product.

A path of tokens is laid out over at most three stretches: a *trunk* (what prompts share, such as system and
tools), a *stem* (the rest of one prompt, shared by its group) and a *row* (what one session added).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from torch import Tensor

_numbers = count(1)
Path = tuple[int, int]  # (number of a stretch, n): the path of its first n tokens; equal names, equal paths
ROOT: Path = (0, 0)


@dataclass(eq=False)
class Stretch:
    """Tokens `ids[start:]` of a path, in one slot of a tier; those before `start` are its ancestors'.

    cached: how many tokens of the path have keys and values. path: a name of the path of these tokens.
    logits: after the last token, as a matrix and the row in it. marks: logits (vocab,) after the first n
    tokens, kept where a prompt or a tool's answer ended. users: sessions and stretches resting on it.
    """

    tier: Tier
    ids: list[int]
    parent: Stretch | None = None
    number: int = field(default_factory=lambda: next(_numbers))
    users: int = 0
    logits: tuple[Tensor, int] | None = None
    marks: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = 0
        self.path = ROOT
        if self.parent is not None:
            self.start = len(self.parent.ids)
            self.path = (self.parent.number, self.start)
            self.parent.users += 1
        self.cached = self.start
        self.slot = self.tier.take(self)

    @property
    def complete(self) -> bool:
        return self.cached == len(self.ids)

    def read(self, layer: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of the keys (K, end - begin, D) and values (K, end - begin, V) of tokens begin to end."""
        keys, values = self.tier.layers[layer]
        part = slice(begin - self.start, end - self.start)
        return keys[self.slot, :, part], values[self.slot, :, part]


class Tier:
    """Slots × capacity tokens of keys and values per layer; both double when they run out."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}  # keys (slots, K, capacity, D), values (…, V)
        self.slots = 1
        self.capacity = 64
        self.owners: dict[int, Stretch] = {}
        self._free = [0]  # a heap: the lowest first, so that the batch stays dense

    @property
    def span(self) -> int:
        """Slots a product over the whole tier must cover."""
        return max(self.owners, default=-1) + 1

    def take(self, stretch: Stretch) -> int:
        """The lowest free slot, now owned by `stretch`."""
        if not self._free:
            self._free = list(range(self.slots, 2 * self.slots))
            self.slots *= 2
        slot = heapq.heappop(self._free)
        self.owners[slot] = stretch
        return slot

    def give(self, slot: int) -> None:
        """Free a slot; what it holds is overwritten by the next owner."""
        del self.owners[slot]
        heapq.heappush(self._free, slot)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in every slot, at the next write of each layer."""
        while self.capacity < tokens:
            self.capacity *= 2

    def round(self, tokens: int) -> int:
        """Columns a product over `tokens` covers: multiples of 32, so that lanes last for many steps."""
        return min(-(-tokens // 32) * 32, self.capacity)

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor, columns: Tensor) -> None:
        """Store key (n, K, D) and value (n, K, V) at `slots` (n,) and `columns` (n,)."""
        keys, values = self.buffers(layer, key, value)
        keys[slots, :, columns] = key
        values[slots, :, columns] = value

    def buffers(self, layer: int, *like: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's buffers at the tier's present size.

        like: keys (n, K, D) and values (n, K, V) that show the shape of heads to a layer not seen before.
        """
        held = self.layers.get(layer)
        if held is not None and held[0].shape[0] == self.slots and held[0].shape[2] == self.capacity:
            return held
        shapes = [(self.slots, x.shape[1], self.capacity, x.shape[-1]) for x in held or like]
        keys, values = (x.new_zeros(shape) for x, shape in zip(held or like, shapes, strict=True))
        for old, new in zip(held or (), (keys, values), strict=False):
            new[: old.shape[0], :, : old.shape[2]] = old
        self.layers[layer] = keys, values
        return keys, values

    def compact(self) -> bool:
        """Once less than half of the span is in use, move the last stretches forward. True if it did."""
        used = len(self.owners)
        if self.span <= 8 or 2 * used >= self.span:
            return False
        moved = [slot for slot in self.owners if slot >= used]
        free = [slot for slot in range(used) if slot not in self.owners]
        for layer in self.layers:
            for buffer in self.buffers(layer):
                buffer[free] = buffer[moved]
        for old, new in zip(moved, free, strict=True):
            self.owners[new] = self.owners.pop(old)
            self.owners[new].slot = new
        self._free = list(range(used, self.slots))
        return True
