"""Engines sample from a model.

`native` computes every token once, `reference` runs every model, `scripted` is the fake. Import an engine
from its own module, or let `choose.engine_for` pick one: this page loads neither torch nor transformers.
"""

from renshu.engines.protocol import Engine, EngineStats, Generated, Sampling, Session, Watch

__all__ = ["Engine", "EngineStats", "Generated", "Sampling", "Session", "Watch"]
