"""Rewards: parts with weights, combined so that an unknown score never becomes a zero."""

from renshu.rewards.lists import reward_list
from renshu.rewards.rubric import Kind, Part, Rubric, cause_of

__all__ = ["Kind", "Part", "Rubric", "cause_of", "reward_list"]
