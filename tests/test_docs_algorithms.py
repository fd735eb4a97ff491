"""The guide to algorithms: its examples are stages of recipes, and it names every algorithm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from renshu.pipeline.recipe import ALGORITHMS, Recipe

GUIDE = (Path(__file__).parent.parent / "docs/guide-algorithms.md").read_text("utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_stages(example: str) -> None:
    recipe = Recipe.from_dict({"env": "flights", **yaml.safe_load(example)})
    assert all(f"## {stage.algorithm.upper()}" in GUIDE for stage in recipe.stages)


def test_every_algorithm_is_named() -> None:
    assert len(EXAMPLES) >= 3
    assert [name for name in ALGORITHMS if f"`{name}`" not in GUIDE] == []
