"""Models: load them from anywhere, put an adapter on, keep a reference."""

from renshu.models.reward import RewardModel, reward_model
from renshu.models.settings import AdapterSettings, ModelSettings

__all__ = ["AdapterSettings", "ModelSettings", "RewardModel", "reward_model"]
