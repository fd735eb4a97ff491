"""Which engine runs a model: the native one wherever the model takes token trees, else the reference."""

from __future__ import annotations

from typing import Any

from renshu.engines.native import NativeEngine
from renshu.engines.reference import ReferenceEngine
from renshu.tree.support import supports_tree


def engine_for(model: Any, *, context: int | None = None) -> NativeEngine | ReferenceEngine:
    """The fastest engine that runs `model`; stateful models and refused attentions get the reference."""
    if supports_tree(model):
        return NativeEngine(model, context=context)
    return ReferenceEngine(model, context=context)
