"""Which tokens already have keys and values: prompts share stretches, and what is known is copied."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from renshu.engines.tiers import Stretch, Tier

SHARED = 32  # tokens that prompts must share before a trunk is worth its product of its own
ARCHIVED = 8192  # tokens of closed sessions that are kept for later ones


@dataclass(eq=False)
class Archived:
    """Keys and values of a stretch whose last user left: tokens `start` to `cached` of the path `ids`."""

    ids: list[int]
    number: int
    start: int
    cached: int
    layers: dict[int, tuple[Tensor, Tensor]]  # keys (K, tokens, D), values (K, tokens, V)
    marks: dict[int, Tensor]

    def read(self, layer: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        keys, values = self.layers[layer]
        part = slice(begin - self.start, end - self.start)
        return keys[:, part], values[:, part]


class Prefixes:
    """The three tiers and the archive: places new paths in them and lets go of what nobody uses."""

    def __init__(self) -> None:
        self.trunks, self.stems, self.rows = Tier(), Tier(), Tier()
        self._by_ids: dict[tuple[int, ...], Stretch] = {}  # the living stems
        self._archive: deque[Archived] = deque()  # the oldest first

    @property
    def tiers(self) -> tuple[Tier, Tier, Tier]:
        return self.trunks, self.stems, self.rows

    def place(self, paths: Sequence[list[int]]) -> list[Stretch]:
        """The stem of each path, new or shared; trunks are laid where several new paths begin alike."""
        keys = [tuple(path) for path in paths]
        fresh = [key for key in dict.fromkeys(keys) if key not in self._by_ids]
        for key, trunk in zip(fresh, self._lay_trunks(fresh), strict=True):
            self._by_ids[key] = self.borrow(Stretch(self.stems, list(key), trunk))
        return [self._by_ids[key] for key in keys]

    def row(self, stem: Stretch, ids: list[int]) -> Stretch:
        """A row for a session that goes on after `stem`; `ids` is the session's own growing list."""
        return Stretch(self.rows, ids, stem)

    def release(self, stretch: Stretch) -> None:
        """One user less. What nobody uses any more moves to the archive, and its ancestors lose a user."""
        stretch.users -= 1
        if stretch.users > 0:
            return
        if stretch.tier is self.stems:
            del self._by_ids[tuple(stretch.ids)]
        self._store(stretch)
        stretch.tier.give(stretch.slot)
        if stretch.parent is not None:
            self.release(stretch.parent)

    def _lay_trunks(self, fresh: Sequence[tuple[int, ...]]) -> list[Stretch | None]:
        """The trunk of each new path: a living one, or a new one for paths that share enough beyond it."""
        trunks = [self._longest_trunk(ids) for ids in fresh]
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, (ids, trunk) in enumerate(zip(fresh, trunks, strict=True)):
            alike[ids[: (len(trunk.ids) if trunk else 0) + SHARED]].append(index)
        for opening, members in alike.items():
            paths: list[Sequence[int]] = [fresh[index] for index in members]
            if trunks[members[0]] is None:  # nothing is shared yet: also with a prompt that came earlier
                paths += [stem.ids for stem in self._by_ids.values() if tuple(stem.ids[:SHARED]) == opening]
            length = min(min(common(paths[0], path) for path in paths), min(map(len, paths)) - 1)
            if len(paths) > 1 and length >= len(opening):
                trunk = self.borrow(Stretch(self.trunks, list(paths[0][:length])))
                for index in members:
                    trunks[index] = trunk
        return trunks

    def _longest_trunk(self, ids: Sequence[int]) -> Stretch | None:
        """The longest trunk that `ids` begins with and goes beyond."""
        begun = [t for t in self.trunks.owners.values() if common(t.ids, ids) == len(t.ids) < len(ids)]
        return max(begun, key=lambda trunk: len(trunk.ids), default=None)

    def borrow(self, stretch: Stretch) -> Stretch:
        """Copy keys and values that another stretch of the same path has. Returns `stretch`.

        The last token is computed even if it is known, unless its logits were kept too or nobody needs them.
        """
        while not stretch.complete:
            best = max(self._donors(stretch), key=lambda found: found[1], default=None)
            if best is None:
                break
            donor, shared = best
            self._copy(donor, stretch, shared)
            stretch.cached, stretch.path = shared, (donor.number, shared)
            if isinstance(donor, Stretch) and shared == donor.cached:
                stretch.path = donor.path  # by this name a living donor knows where it stands
            if stretch.complete and shared in donor.marks:
                stretch.marks[shared] = donor.marks[shared]
                stretch.logits = stretch.marks[shared][None], 0
        return stretch

    def _donors(self, stretch: Stretch) -> Iterable[tuple[Stretch | Archived, int]]:
        """Stretches that hold the next token of `stretch`, each with the length of path it can give."""
        ids, known = stretch.ids, stretch.cached
        donors: list[Stretch | Archived] = [donor for tier in self.tiers for donor in tier.owners.values()]
        for donor in donors + list(self._archive):
            if donor.start <= known < donor.cached and donor.ids[known] == ids[known]:
                shared = min(common(donor.ids, ids), donor.cached)
                if shared == len(ids) and shared not in donor.marks and stretch.tier is not self.trunks:
                    shared -= 1
                if shared > known:
                    yield donor, shared

    def _copy(self, donor: Stretch | Archived, stretch: Stretch, end: int) -> None:
        begin, offset = stretch.cached, stretch.start
        stretch.tier.reserve(len(stretch.ids) - offset)
        for layer in donor.tier.layers if isinstance(donor, Stretch) else donor.layers:
            key, value = donor.read(layer, begin, end)
            buffers = stretch.tier.buffers(layer, key.transpose(0, 1), value.transpose(0, 1))
            for buffer, part in zip(buffers, (key, value), strict=True):
                buffer[stretch.slot, :, begin - offset : end - offset] = part

    def _store(self, stretch: Stretch) -> None:
        if stretch.cached == stretch.start:
            return
        layers = {}
        for layer in stretch.tier.layers:
            key, value = stretch.read(layer, stretch.start, stretch.cached)
            layers[layer] = (key.clone(), value.clone())
        ids, number = list(stretch.ids), stretch.number
        self._archive.append(Archived(ids, number, stretch.start, stretch.cached, layers, stretch.marks))
        while (
            sum(entry.cached - entry.start for entry in self._archive) > ARCHIVED and len(self._archive) > 1
        ):
            self._archive.popleft()


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two paths share from the start; slices compare at the speed of C."""
    shortest = min(len(left), len(right))
    left, right = tuple(left[:shortest]), tuple(right[:shortest])
    if left == right:
        return shortest
    return bisect_left(range(shortest), True, key=lambda n: left[: n + 1] != right[: n + 1])
