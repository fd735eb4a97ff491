"""What DPO and KTO share: where preferences come from, and which of them can be learned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator
from torch import Tensor

from renshu.algorithms.losses import row_sums
from renshu.algorithms.protocol import LossInputs, Mean, PracticeConfig
from renshu.algorithms.rollouts import reward_of
from renshu.types import Group, Labelled, Pair, Row, Scored, Trajectory, row_of

ItemT = TypeVar("ItemT")


class PreferenceConfig(PracticeConfig):
    """Settings of a stage that learns from preferences.

    They come from a file (`data`), from rollouts of an earlier stage or run (`trajectories`), or, where
    neither is given, from the rollouts that each step samples (`steps`, `tasks_per_step`, `group`).
    train_on: sampled: what the model sampled, never what a tool answered. completion: all tokens from the
        first sampled one to the end of the row, as TRL does.
    """

    PRACTICE: ClassVar[tuple[str, ...]] = ("steps", "tasks_per_step", "group")
    SUPPLIED: ClassVar[tuple[str, ...]] = ("epochs",)

    data: str | None = Field(None, description="a file of preferences, JSON lines")
    trajectories: str | None = Field(None, description="rollouts of an earlier stage or run")
    epochs: int = Field(1, gt=0, description="passes over `data` or `trajectories`")
    max_length: int = Field(4096, gt=1, description="tokens of a row; what is longer is cut at its end")
    train_on: Literal["sampled", "completion"] = "sampled"
    beta: float = Field(0.1, gt=0, description="the larger, the closer to the reference model")
    learning_rate: float = Field(1e-5, gt=0)

    @property
    def samples(self) -> bool:
        """Whether each step samples its own rollouts."""
        return self.data is None and self.trajectories is None

    @model_validator(mode="after")
    def _one_supply(self) -> Self:
        if self.data is not None and self.trajectories is not None:
            raise ValueError("data and trajectories: preferences come from one of them; leave the other out")
        fields = type(self).model_fields
        for name in self.SUPPLIED if self.samples else self.PRACTICE:
            if getattr(self, name) != fields[name].default:
                why = "without data or trajectories" if self.samples else "with data or trajectories"
                use = self.PRACTICE if self.samples else self.SUPPLIED
                raise ValueError(f"{name} does nothing {why}: leave it out, and use {', '.join(use)}")
        return self


@dataclass(frozen=True)
class Kept(Generic[ItemT]):
    """items: what can be learned from. left_out: how many could not be kept, by reason. cut: rows that lost
    their end.
    """

    items: tuple[ItemT, ...]
    left_out: Mapping[str, int]
    cut: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        counts = {f"left_out_{reason}": count for reason, count in self.left_out.items()}
        return {**counts, "rows_cut": self.cut}


def fitted(row: Row, config: PreferenceConfig) -> Row:
    """The row as it is trained on: `train_on` and `max_length` applied, without the sampler's log-probs.

    A loss on preferences compares with the reference, not with the sampler. Nothing may be left to train.
    """
    trained = row.trained
    if config.train_on == "completion" and any(trained):
        start = prompt_length(row)
        trained = (False,) * start + (True,) * (len(row.ids) - start)
    return Row(row.ids[: config.max_length], trained[: config.max_length], group=row.group)


def prompt_length(row: Row) -> int:
    """Tokens before the first trained one."""
    return row.trained.index(True)


def usable_pairs(pairs: Sequence[Pair], config: PreferenceConfig) -> Kept[Pair]:
    """The pairs as they are trained on. A second call changes nothing.

    Left out: `equal`: both sides have the same tokens, so that the loss has no gradient; `untrained`: a side
    has nothing to train within `max_length`.
    """
    kept: list[Pair] = []
    cut = equal = 0
    for pair in pairs:
        chosen, rejected = fitted(pair.chosen, config), fitted(pair.rejected, config)
        if chosen.ids == rejected.ids:
            equal += 1
        elif any(chosen.trained) and any(rejected.trained):
            kept.append(Pair(chosen, rejected))
            cut += _is_cut(pair.chosen, config) + _is_cut(pair.rejected, config)
    return Kept(tuple(kept), {"equal": equal, "untrained": len(pairs) - len(kept) - equal}, cut)


def usable_labelled(answers: Sequence[Labelled], config: PreferenceConfig) -> Kept[Labelled]:
    """The answers as they are trained on. Left out: `untrained`, see `usable_pairs`."""
    kept: list[Labelled] = []
    cut = 0
    for answer in answers:
        row = fitted(answer.row, config)
        if any(row.trained):
            kept.append(Labelled(row, answer.good))
            cut += _is_cut(answer.row, config)
    return Kept(tuple(kept), {"untrained": len(answers) - len(kept)}, cut)


def _is_cut(row: Row, config: PreferenceConfig) -> bool:
    return len(row.ids) > config.max_length


def pairs_of(
    groups: Sequence[Group], *, choose: Literal["best_worst", "all"] = "best_worst", margin: float = 0.0
) -> Kept[Pair]:
    """Pairs of rollouts of one task, of which one was rewarded by more than `margin` above the other.

    best_worst: the best and the worst of each group, the first of several. all: every two that differ.
    Left out: `unscored` and `forked` rollouts (`_comparable`), `tied` groups: those without a pair.
    """
    pairs: list[Pair] = []
    left_out = Counter({"unscored": 0, "forked": 0, "tied": 0})
    for group in groups:
        ranked = sorted(_comparable(group, left_out), key=lambda scored: -scored[1])
        compared = list(combinations(ranked, 2))
        if choose == "best_worst" and ranked:
            compared = [(ranked[0], min(ranked, key=lambda scored: scored[1]))]
        found = [
            Pair(row_of(better.segments), row_of(worse.segments))
            for (better, high), (worse, low) in compared
            if high - low > margin
        ]
        left_out["tied"] += not found
        pairs += found
    return Kept(tuple(pairs), dict(left_out))


def labelled_of(groups: Sequence[Group], *, threshold: float | None = None) -> Kept[Labelled]:
    """Every rollout with a thumb: up where its reward is at least `threshold`; without that, if it succeeded.

    Left out: `unscored` and `forked` rollouts (`_comparable`), `undecided`: success is not defined.
    """
    answers = []
    left_out = Counter({"unscored": 0, "forked": 0, "undecided": 0})
    for group in groups:
        for trajectory, reward in _comparable(group, left_out):
            good = _succeeded(trajectory) if threshold is None else reward >= threshold
            if good is None:
                left_out["undecided"] += 1
            else:
                answers.append(Labelled(row_of(trajectory.segments), good))
    return Kept(tuple(answers), dict(left_out))


def _comparable(group: Group, left_out: Counter[str]) -> Iterator[tuple[Trajectory, float]]:
    """Rollouts with their rewards; not those without one, nor those that are more than one row: half of a
    dialogue is no answer that could be preferred to another.
    """
    for trajectory in group.trajectories:
        reward = reward_of(trajectory)
        if reward is None:
            left_out["unscored"] += 1
        elif trajectory.forks:
            left_out["forked"] += 1
        else:
            yield trajectory, reward


def _succeeded(trajectory: Trajectory) -> bool | None:
    return trajectory.score.success if isinstance(trajectory.score, Scored) else None


def implicit_rewards(inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Log-probs of each row and their log-ratios to the reference, (R,) both; without one, it says 0.

    A row's log-ratio times beta is its implicit reward (arXiv:2305.18290, eq. 5).
    """
    logps = row_sums(inputs.logprobs, inputs.row, inputs.rows)
    if inputs.reference_logprobs is None:
        return logps, logps
    return logps, row_sums(inputs.logprobs - inputs.reference_logprobs, inputs.row, inputs.rows)


def side_metrics(logps: Tensor, rewards: Tensor, labels: Tensor) -> dict[str, Mean]:
    """Means over the rows of either side: rewards_chosen, rewards_rejected, logps_chosen, logps_rejected."""
    sides = {"chosen": labels, "rejected": ~labels}
    values = {"rewards": rewards, "logps": logps}
    return {
        f"{name}_{side}": Mean.of(value[members])
        for name, value in values.items()
        for side, members in sides.items()
    }
