"""What is counted in a step, in every process, and put together at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from renshu.algorithms import Mean


class Tally:
    """Sums and means over the passes and updates of a step."""

    def __init__(self) -> None:
        self.means: dict[str, Mean] = {}
        self.sums: dict[str, float] = {"tokens_computed": 0, "tokens_naive": 0, "bad_updates": 0}
        self.largest_gap = 0.0

    @classmethod
    def of_all(cls, tallies: Iterable[Tally]) -> Tally:
        """What several processes counted, as if one had."""
        result = cls()
        for tally in tallies:
            result.add(tally.means, **tally.sums)
            result.largest_gap = max(result.largest_gap, tally.largest_gap)
        return result

    def add(self, means: Mapping[str, Mean], **sums: float) -> None:
        for name, mean in means.items():
            self.means[name] = self.means.get(name, Mean(0.0, 0)) + mean
        for name, value in sums.items():
            self.sums[name] += value

    def compare(self, trainer: Tensor, sampler: Tensor) -> None:
        """The canary: before the first update both come from the same weights and must agree."""
        gap = (trainer - sampler).abs()
        self.add({"sampler_gap": Mean(gap.sum().item(), gap.numel())})
        self.largest_gap = max(self.largest_gap, gap.max().item())

    def metrics(self) -> dict[str, float]:
        """`loss` is 0 where no update was made: a loss over nothing."""
        found = {"loss": 0.0} | {name: mean.value for name, mean in self.means.items()} | self.sums
        return found | ({"sampler_gap_max": self.largest_gap} if "sampler_gap" in found else {})
