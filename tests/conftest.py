"""What every test runs under: one thread, no network, hypothesis without clocks or chance."""

from __future__ import annotations

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

hypothesis.settings.register_profile("renshu", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("renshu")


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a verb in this process: (exit code, standard output, standard error)."""

    from renshu.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["renshu", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run
