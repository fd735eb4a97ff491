"""Models: load them from anywhere, put an adapter on, keep a reference."""

from renshu.models.settings import AdapterSettings, ModelSettings

__all__ = ["AdapterSettings", "ModelSettings"]
