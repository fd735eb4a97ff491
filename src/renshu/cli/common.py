"""What several verbs share."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from logging import getLogger
from pathlib import Path
from typing import Annotated, Any

import typer

AGAIN = "install it, or Renshu with all it needs: pip install --force-reinstall renshu"

KeyVariables = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key-env",
        help="Environment variable with the key of an api: model; HOST=NAME for several hosts.",
    ),
]
AtOnce = Annotated[
    int | None, typer.Option("--api-at-once", min=1, help="Requests together to an api: model; default: 8.")
]
Keep = Annotated[
    Path | None,
    typer.Option(
        help="Folder for episodes of api: models; default: comparison, in the first run if there is one."
    ),
]


def refuse_without_api(targets: Sequence[str], *options: Any) -> None:
    """Raise a usage error for options of api: models where there is none."""
    if any(option is not None for option in options) and not any(t.startswith("api:") for t in targets):
        raise typer.BadParameter(
            "--api-key-env, --api-at-once and --keep would do nothing here: no api:MODEL@URL is asked"
        )


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
    getLogger("bitsandbytes").setLevel("ERROR")  # peft imports it; it advises other packages for CPUs
    warnings.filterwarnings("ignore", module="transformers")
    for library in ("accelerate", "peft"):
        warnings.filterwarnings("ignore", module=library)
