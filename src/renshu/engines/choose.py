"""Which engine runs a model: the native one wherever the model takes token trees, else the reference, unless
the recipe names one.
"""

from __future__ import annotations

from typing import Any

from renshu.engines.native import NativeEngine
from renshu.engines.protocol import Engine
from renshu.engines.reference import ReferenceEngine
from renshu.engines.settings import EngineSettings
from renshu.tree.support import supports_tree

AUTO = EngineSettings()


def engine_for(model: Any, settings: EngineSettings = AUTO, *, context: int | None = None) -> Engine:
    """The engine that is asked for; of `auto` the fastest that runs `model`: stateful models and refused
    attentions get the reference. context: tokens a session may hold, of engines of this process.

    Raises EngineError if the engine cannot run this model, or its server is not there.
    """
    if settings.kind == "vllm":
        from renshu.engines.vllm import VllmEngine

        return VllmEngine(model, settings)
    if settings.kind == "native" or (settings.kind == "auto" and supports_tree(model)):
        return NativeEngine(model, context=context)
    return ReferenceEngine(model, context=context)
