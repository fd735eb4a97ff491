"""What several verbs share."""

from __future__ import annotations

import os
import warnings

AGAIN = "install it, or Renshu with all it needs: pip install --force-reinstall renshu"


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
