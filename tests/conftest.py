"""What every test runs under: one thread, no network, hypothesis without clocks or chance."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import hypothesis
import torch

torch.set_num_threads(1)

hypothesis.settings.register_profile("renshu", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("renshu")
