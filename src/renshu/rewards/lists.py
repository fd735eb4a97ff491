"""Reward functions that score several completions at once: what they return is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any


def reward_list(name: str, returned: Any, count: int, of: str = "completion") -> list[float | None]:
    """The rewards of `count` completions, or of what else `of` says, as the function `name` returned them.

    One finite number (or bool) or None for each. Nothing is broadcast and nothing is parsed from
    text. Raises ValueError that names the function and, for a bad entry, its index.
    """
    if hasattr(returned, "tolist"):  # numpy arrays and tensors
        returned = returned.tolist()
    where = f"reward function {name!r}"
    if isinstance(returned, str) or not isinstance(returned, Sequence):
        raise ValueError(f"{where}: not a list but {type(returned).__name__}; return one reward a {of}")
    if len(returned) != count:
        raise ValueError(f"{where}: expected {count} got {len(returned)} rewards")
    return [reward_number(f"{where}, {of} {i}", value) for i, value in enumerate(returned)]


def reward_number(where: str, value: Any) -> float | None:
    """A reward as a float, None if it is not applicable. Raises ValueError for text and non-finite
    numbers.
    """
    if hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    if value is None:
        return None
    if not isinstance(value, Real):
        raise ValueError(f"{where}: not a number but {type(value).__name__} {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{where}: non-finite reward {number}")
    return number
