"""The guides to vLLM and to endpoints: recipes that are read, commands whose options there are."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from renshu.cli.app import app
from renshu.engines import Sampling
from renshu.engines.vllm_server import require_exact
from renshu.errors import ConfigError
from renshu.pipeline.arms import find_arms
from renshu.pipeline.recipe import read_recipe

DOCS = Path(__file__).parent.parent / "docs"
VLLM = (DOCS / "guide-vllm.md").read_text("utf-8")
COMPARE = (DOCS / "guide-compare.md").read_text("utf-8")


def test_the_recipe_is_one(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", VLLM, re.S)
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    assert read_recipe(str(tmp_path / "r.yaml")).engine.kind == "vllm"


@pytest.mark.parametrize(
    ("row", "samplings"),
    [
        ("temperature 1, or greedy", [Sampling(1), Sampling(1, 0.0)]),
        ("another temperature", [Sampling(1, 0.7)]),
        ("temperature 1 with top_p, top_k or min_p", [Sampling(1, top_p=0.9), Sampling(1, min_p=0.1)]),
        ("another temperature with one of these", [Sampling(1, 0.7, top_k=3)]),
    ],
)
def test_the_table_of_logprobs_is_what_is_refused(row, samplings):
    cells = re.search(rf"^\| {row} \| (\w+).*? \| (\w+).*\|$", VLLM, re.M).groups()
    for mode, cell in zip(("raw", "processed"), cells, strict=True):
        for sampling in samplings:
            if cell == "yes":
                require_exact(mode, sampling)
            else:
                with pytest.raises(ConfigError):
                    require_exact(mode, sampling)


def test_commands_with_endpoints_are_commands():
    commands = [shlex.split(line) for line in re.findall(r"^renshu (.*api:.*)$", COMPARE, re.M)]
    assert len(commands) == 3
    for verb, *arguments in commands:
        known = {option for parameter in get_command(app).commands[verb].params for option in parameter.opts}
        assert {a for a in arguments if a.startswith("--")} <= known
        assert find_arms([a for a in arguments if a.startswith("api:")])[0].address is not None
