"""What engines ask of a transformers model: its context, and to be evaluated rather than trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from renshu.errors import EngineError


def model_context(model: Any) -> int:
    """The model's own limit of tokens. Raises EngineError if its configuration names none."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not limit:
        raise EngineError(
            f"the configuration of {type(model).__name__} has no max_position_embeddings: pass context="
        )
    return int(limit)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch dropout off; afterwards every module is back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
