"""Seeds by identity: a seed is a hash of what it is for, never `seed + i`, so that no two streams collide."""

from __future__ import annotations

import hashlib
import random


def stable_hash(*parts: str | int) -> int:
    """A 63-bit integer that depends on nothing but `parts`, on every machine and in every process."""
    text = "\x1f".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*parts: str | int) -> random.Random:
    """A private `random.Random` for the thing named by `parts`."""
    return random.Random(stable_hash(*parts))
