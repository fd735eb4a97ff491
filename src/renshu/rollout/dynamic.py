"""Dynamic sampling: rounds of rollouts until enough groups have something to teach."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from renshu.types import Group


def collect_rounds(
    sample: Callable[[int], Sequence[Group]], enough: Callable[[Sequence[Group]], bool], further: int
) -> list[Group]:
    """The groups of round 0 and of up to `further` more, in order; no more once all so far are `enough`.

    DAPO, arXiv:2503.14476, section 3.2. Nothing is thrown away here: credit chooses what is trained on. A
    round must depend on its number alone, so that a resumed run samples the same.
    """
    groups = list(sample(0))
    for number in range(1, further + 1):
        if enough(groups):
            break
        groups += sample(number)
    return groups
