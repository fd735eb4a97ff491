"""What several verbs share."""

from __future__ import annotations

import os
import warnings


def quiet() -> None:
    """Keep the libraries below from drawing bars and printing advice between our lines."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")
    warnings.filterwarnings("ignore", module="peft")
