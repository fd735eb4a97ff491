"""Rollout: environments and sessions become trajectories, alone or in groups."""

from renshu.rollout.collect import collect
from renshu.rollout.dynamic import collect_rounds
from renshu.rollout.episode import Limits, run_episode
from renshu.rollout.metrics import length_metrics, rollout_metrics, tool_sequences, why_untrained

__all__ = [
    "Limits",
    "collect",
    "collect_rounds",
    "length_metrics",
    "rollout_metrics",
    "run_episode",
    "tool_sequences",
    "why_untrained",
]
