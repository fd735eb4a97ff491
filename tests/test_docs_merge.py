"""The guide to merging: its commands parse, its options have their true defaults and choices."""

import re
import shlex
from pathlib import Path
from typing import get_args

import typer.main

from renshu.cli.app import app
from renshu.handover.gguf_file import ARCHITECTURES, FileType
from renshu.handover.merge import Form
from renshu.handover.ollama import MOST_CONTEXT

GUIDE = (Path(__file__).parent.parent / "docs/guide-merge.md").read_text("utf-8")
VERB = typer.main.get_command(app).commands["merge"]


def test_commands_parse():
    commands = re.findall(r"^renshu merge ([^#\n]*)", GUIDE, re.M)
    assert len(commands) == 3
    for rest in commands:
        VERB.make_context("merge", shlex.split(rest))  # raises for an option that is not there


def test_options_are_the_true_ones():
    rows = {
        name: (default, text)
        for name, default, text in re.findall(r"^\| `(--\w+)` \| (.+?) \| (.+) \|$", GUIDE, re.M)
    }
    options = {p.opts[0]: p for p in VERB.params if p.opts[0].startswith("--")}
    assert rows.keys() == options.keys()
    for name, option in options.items():
        default, text = rows[name]
        assert default == ("required" if option.required else f"`{option.default}`")
        for choice in get_args({"--to": Form, "--dtype": FileType}.get(name)):
            assert f"`{choice}`" in text
            VERB.make_context("merge", ["runs/clerk-0", "--out", "x", name, choice])


def test_what_it_says_of_limits_is_true():
    assert f"at most {MOST_CONTEXT:,}" in GUIDE
    assert ARCHITECTURES == ("llama", "qwen2", "qwen3")
    assert "Llama, Qwen2 and Qwen3 models" in GUIDE
