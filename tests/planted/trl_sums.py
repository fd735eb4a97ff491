"""Reward functions as TRL takes them: sums in words."""

import re


def exact_reward(completions, answer, **kwargs):
    return [1.0 if c[-1]["content"].strip() == a else 0.0 for c, a in zip(completions, answer, strict=True)]


def number_reward(completions, **kwargs):
    texts = [completion[-1]["content"] for completion in completions]
    return [0.2 if re.fullmatch(r"\s*-?\d+\s*", text) else 0.0 for text in texts]
