"""What engines ask of a transformers model: its context, and to be evaluated rather than trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NO_LIMIT = 1 << 30  # tokens


def model_context(model: Any) -> int:
    """Tokens the model can attend to, by its configuration; models without positions have no limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else NO_LIMIT


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
