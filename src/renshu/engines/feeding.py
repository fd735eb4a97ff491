"""What the next forward pass feeds: each distinct new token once, for all stretches that need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from renshu.engines.lanes import Batch, Lane
from renshu.engines.prefixes import common
from renshu.engines.tiers import Path, Stretch, Tier

CHUNK = 512  # tokens of one stretch in one pass, which bounds its scores
SCORES = 2**21  # queries × keys of one lane


@dataclass(eq=False)
class Feed:
    """The next tokens of a stretch; `followers` on the same path want the first so many of them too."""

    stretch: Stretch
    tokens: list[int]
    followers: list[tuple[Stretch, int]] = field(default_factory=list)


def plan(leaves: Iterable[Stretch]) -> list[Feed]:
    """The feeds of the next pass; none when every leaf has its logits.

    A stretch waits for its ancestors. Stretches on equal paths with equal next tokens share one feed as far
    as they agree, and part ways in the next pass.
    """
    feeds: dict[tuple[Path, int], Feed] = {}
    seen: set[Stretch] = set()
    for leaf in leaves:
        stretch = _first_incomplete(leaf)
        if stretch is None or stretch in seen:
            continue
        seen.add(stretch)
        tokens = stretch.ids[stretch.cached : stretch.cached + CHUNK]
        feed = feeds.setdefault((stretch.path, tokens[0]), Feed(stretch, tokens))
        if feed.stretch is not stretch:
            feed.followers.append((stretch, common(feed.tokens, tokens)))
    return list(feeds.values())


def _first_incomplete(stretch: Stretch) -> Stretch | None:
    found = None
    node: Stretch | None = stretch
    while node is not None:
        if node.cached < len(node.ids):
            found = node
        node = node.parent
    return found


class Pass:
    """Runs forward passes of a model on feeds, and keeps what consecutive decode steps have in common."""

    def __init__(self, model: Any, tiers: Sequence[Tier]) -> None:
        self._model = model
        self._tiers = tiers
        self._decode: tuple[Any, Lane] | None = None

    def moved(self) -> None:
        """Stretches changed their slots."""
        self._decode = None

    def run(self, feeds: Sequence[Feed]) -> None:
        """Compute the keys and values of the feeds, and the logits of stretches that are complete now."""
        for feed in feeds:
            for stretch in (feed.stretch, *(follower for follower, _ in feed.followers)):
                stretch.tier.reserve(len(stretch.ids) - stretch.start)
        device = self._model.get_input_embeddings().weight.device
        rows = self._tiers[-1]
        decoding: list[Feed] = []
        prefilling: list[Feed] = []
        for feed in feeds:
            decodes = feed.stretch.tier is rows and len(feed.tokens) == 1
            (decoding if decodes else prefilling).append(feed)
        lanes = [(self._decode_lane(decoding, device), len(decoding))] if decoding else []
        ordered = decoding
        for members in self._split(prefilling):
            lanes.append((self._prefill_lane(members, device), sum(len(feed.tokens) for feed in members)))
            ordered = ordered + members
        ids = [token for feed in ordered for token in feed.tokens]
        depths = [feed.stretch.cached + n for feed in ordered for n in range(len(feed.tokens))]
        wanted, finished = self._wanted(ordered)
        logits = self._model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=torch.tensor([depths], device=device),
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
            tree=Batch(lanes, self._writes(ordered, device)),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, device=device, dtype=torch.long),
        ).logits[0]
        self._advance(ordered)
        for stretch, row, count in finished:
            stretch.logits = logits, row
            if count > 1 or stretch.tier is not rows:  # kept for whoever comes to the same point later
                stretch.marks[stretch.cached] = logits[row].clone()
                stretch.logits = stretch.marks[stretch.cached][None], 0

    def _decode_lane(self, feeds: Sequence[Feed], device: torch.device) -> Lane:
        stretches = [feed.stretch for feed in feeds]
        columns = stretches[0].tier.round(max(len(s.ids) - s.start for s in stretches))
        key = (columns, [stretch.number for stretch in stretches])
        if self._decode is None or self._decode[0] != key:
            # The lane serves until its columns run out: it may read whatever its rows write by then.
            ends = [stretch.start + columns for stretch in stretches]
            self._decode = key, Lane(stretches, self._tiers, ends, dense=True, device=device)
        lane = self._decode[1]
        lane.at(torch.tensor([[stretch.cached] for stretch in stretches], device=device))
        return lane

    def _prefill_lane(self, feeds: Sequence[Feed], device: torch.device) -> Lane:
        stretches = [feed.stretch for feed in feeds]
        tiers = self._tiers[: self._tiers.index(stretches[0].tier) + 1]
        lengths = [len(feed.tokens) for feed in feeds]
        ends = [feed.stretch.cached + length for feed, length in zip(feeds, lengths, strict=True)]
        lane = Lane(stretches, tiers, ends, dense=False, device=device)
        places = torch.arange(max(lengths), device=device)
        sizes = torch.tensor(lengths, device=device)[:, None]
        within = torch.minimum(places, sizes - 1)  # (B, L): padding repeats the last token
        first = torch.tensor([stretch.cached for stretch in stretches], device=device)[:, None]
        before = sizes.cumsum(0) - sizes
        lane.at(first + within, (before + within).flatten(), (places < sizes).flatten().nonzero()[:, 0])
        return lane

    def _split(self, feeds: Sequence[Feed]) -> Iterable[list[Feed]]:
        """Lanes of one tier and similar length, so that padding and the size of the scores stay bounded."""
        lane: list[Feed] = []
        for feed in sorted(feeds, key=lambda f: (self._tiers.index(f.stretch.tier), len(f.tokens))):
            length, keys = len(feed.tokens), feed.stretch.cached + len(feed.tokens)
            if lane and (
                lane[0].stretch.tier is not feed.stretch.tier
                or length > 2 * len(lane[0].tokens)
                or (len(lane) + 1) * length * max(keys, *(f.stretch.cached for f in lane)) > SCORES
            ):
                yield lane
                lane = []
            lane.append(feed)
        if lane:
            yield lane

    def _writes(
        self, feeds: Sequence[Feed], device: torch.device
    ) -> list[tuple[Tier, Tensor, Tensor, Tensor | None]]:
        """Where each tier stores the new keys and values: the feeds' own slots and their followers'."""
        targets: dict[Tier, tuple[list[int], list[int], list[int]]] = {}
        first = 0
        for feed in feeds:
            for stretch, count in ((feed.stretch, len(feed.tokens)), *feed.followers):
                slots, columns, sources = targets.setdefault(stretch.tier, ([], [], []))
                slots += [stretch.slot] * count
                columns += range(stretch.cached - stretch.start, stretch.cached - stretch.start + count)
                sources += range(first, first + count)
            first += len(feed.tokens)
        everything = list(range(first))
        return [
            (
                tier,
                torch.tensor(slots, device=device),
                torch.tensor(columns, device=device),
                None if sources == everything else torch.tensor(sources, device=device),
            )
            for tier, (slots, columns, sources) in targets.items()
        ]

    def _wanted(self, feeds: Sequence[Feed]) -> tuple[list[int], list[tuple[Stretch, int, int]]]:
        """Tokens whose logits are wanted; stretches this pass completes, their rows, the tokens they got."""
        wanted: dict[int, int] = {}
        finished = []
        first = 0
        for feed in feeds:
            for stretch, count in ((feed.stretch, len(feed.tokens)), *feed.followers):
                if stretch.cached + count == len(stretch.ids) and stretch.tier is not self._tiers[0]:
                    finished.append((stretch, wanted.setdefault(first + count - 1, len(wanted)), count))
            first += len(feed.tokens)
        return list(wanted), finished

    def _advance(self, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            leader = feed.stretch
            for stretch, count in ((leader, len(feed.tokens)), *feed.followers):
                stretch.cached += count
                stretch.path = (leader.number, stretch.cached)
