"""What several verbs share."""

from __future__ import annotations

import math
import os
import warnings

import typer

AGAIN = "install it, or Renshu with all it needs: pip install --force-reinstall renshu"


def finite(number: float | None) -> float | None:
    """A number of an option. Raises a usage error for inf, which passes every lower bound."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is no number to reckon with: give a finite one")
    return number


def quiet() -> None:
    """Keep the libraries below from drawing bars and printing advice between our lines."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")
    warnings.filterwarnings("ignore", module="peft")
