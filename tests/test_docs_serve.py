"""The guide to serving: every option with its true default, every key of a request, code that compiles."""

import re
from pathlib import Path

import pytest
import typer.main

import renshu
from renshu.cli.app import app
from renshu.pipeline.loaded_agent import LoadedAgent
from renshu.serve.request import Body, Defaults

GUIDE = (Path(__file__).parent.parent / "docs/guide-serve.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app).commands


def options(verb):
    return {
        name: p
        for p in COMMANDS[verb].params
        for name in p.opts
        if name.startswith("--") and name != "--help"
    }


@pytest.mark.parametrize("verb", ["serve", "pack", "reproduce"])
def test_options_in_the_guide_are_those_of_the_verbs(verb):
    missing = {name for name in options(verb) if name not in GUIDE} - {"--out"}
    assert missing == set()


def test_defaults_of_serve_are_the_true_ones():
    found = options("serve")
    assert "| `--port`, `--host` | `8000`, `127.0.0.1` |" in GUIDE
    assert (found["--port"].default, found["--host"].default) == (8000, "127.0.0.1")
    assert "| `--temperature` | `0` |" in GUIDE
    assert "| `--max-tokens` | `512` |" in GUIDE
    assert (found["--temperature"].default, found["--max-tokens"].default) == (0.0, 512)
    assert (Defaults().temperature, Defaults().max_tokens) == (0.0, 512)
    assert "| `--at-once` | `64` |" in GUIDE
    assert found["--at-once"].default == 64


def test_every_key_of_a_request_is_spoken_of():
    told = {"model", "messages", "service_tier", "prompt_cache_key", "safety_identifier", "stream_options"}
    told |= {"frequency_penalty", "presence_penalty"}  # "penalties"
    assert [key for key in Body.model_fields if key not in told and f"`{key}" not in GUIDE] == []


def test_its_code_compiles_and_names_what_exists():
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.S):
        compile(block, "guide", "exec")
    assert set(re.findall(r"agent\.(\w+)\(", GUIDE)) == {"reply", "solve"}
    assert all(hasattr(LoadedAgent, name) for name in ("reply", "solve"))
    assert renshu.load_agent.__name__ == "load_agent"
