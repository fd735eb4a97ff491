"""TRL rewards: the last line must be 'Answer: <number> <unit>'."""

import re

LAST = re.compile(r"Answer:\s*(-?\d+(?:\.\d+)?)\s*([a-z]+)\s*$")


def value_reward(completions, value, **kwargs):
    scores = []
    for completion, want in zip(completions, value, strict=True):
        match = LAST.search(completion[-1]["content"])
        scores.append(1.0 if match and abs(float(match.group(1)) - want) < 0.01 else 0.0)
    return scores


def unit_reward(completions, unit, **kwargs):
    matches = [LAST.search(c[-1]["content"]) for c in completions]
    return [0.5 * (m.group(2) == u) if m else 0.0 for m, u in zip(matches, unit, strict=True)]
