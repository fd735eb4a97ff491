"""What must not be handed over: keys, tokens and passwords in the text of a file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

_KNOWN = {
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----",
    "an API key (sk-…)": r"\bsk-[A-Za-z0-9_-]{20,}",
    "a payment key": r"\b[rs]k_live_[A-Za-z0-9]{16,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{20,}",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "a Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "a Google key": r"\bAIza[A-Za-z0-9_-]{35}",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "a bearer token": r"(?i:bearer) +[A-Za-z0-9._~+/-]{24,}",
    "a password in an address": r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"']{1,64}:[^\s/@\"'{}<>$]{3,64}@",
}
_PATTERN = re.compile("|".join(f"({pattern})" for pattern in _KNOWN.values()))
_ASSIGNED = re.compile(
    r"(?i)(?:key|token|secret|passwd|password|credentials?)[\"']?\s*(?::=|=>|[:=])\s*[\"']?([A-Za-z0-9+/_=.~-]{16,})"
)
BITS = 3.5  # of a character: words repeat their letters, keys do not
LONGEST = 100_000  # characters of a line that are looked at in one piece


@dataclass(frozen=True)
class Secret:
    """Where something stands that looks like a secret, and what it looks like; never the secret itself."""

    file: str
    line: int
    kind: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} holds what looks like {self.kind}"


def find_secrets(file: str, data: bytes) -> Iterator[Secret]:
    """All that looks like a secret in a file; one finding a line. Files that are no text hold none."""
    name = PurePath(file).name
    if name == ".env" or name.startswith(".env.") or name.endswith((".pem", ".p12", ".pfx")):
        yield Secret(file, 1, "a file of secrets, by its name")
        return
    if b"\0" in data[:8192]:
        return
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), start=1):
        kinds = (_kind(line[at : at + LONGEST]) for at in range(0, len(line), LONGEST - 1000))
        if kind := next(filter(None, kinds), None):
            yield Secret(file, number, kind)


def _kind(text: str) -> str | None:
    if found := _PATTERN.search(text):
        assert found.lastindex is not None
        return list(_KNOWN)[found.lastindex - 1]
    for match in _ASSIGNED.finditer(text):
        words = re.split(r"[._/~=+-]+", match[1])  # `stages.0.sft.learning_rate` is no key
        if any(_mixed(word) for word in words) and _entropy(match[1]) >= BITS:
            return "a key, token or password"
    return None


def _mixed(word: str) -> bool:
    return any(letter.isdigit() for letter in word) and any(letter.isalpha() for letter in word)


def _entropy(text: str) -> float:
    """Bits per character."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)
