"""The guide to the proxy says what is true: its recipe, its program, its endpoints and options."""

import ast
import inspect
import re
from pathlib import Path

from renshu.cli.proxy import proxy
from renshu.pipeline.recipe import read_recipe
from renshu.proxy.app import BeginBody, RewardBody, TrainBody, application
from renshu.proxy.client import Proxy
from renshu.proxy.start import require_elsewhere
from renshu.serve.request import SAMPLED_BY

GUIDE = (Path(__file__).parent.parent / "docs/guide-proxy.md").read_text("utf-8")


def test_the_recipe_is_one_for_the_proxy(tmp_path):
    path = tmp_path / "desk.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", GUIDE, re.S)[1], encoding="utf-8")
    overrides = re.search(r"^renshu proxy desk.yaml --port 9000 --patience 120 (\S+)$", GUIDE, re.M)[1]
    recipe = read_recipe(str(path), [overrides])
    require_elsewhere(recipe)
    assert recipe.stages[0].grpo.steps == 10


def test_the_program_calls_what_there_is():
    tree = ast.parse(re.search(r"```python\n(.*?)```", GUIDE, re.S)[1])
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "proxy"
    }
    assert called == {"run", "steps", "finish"}
    assert called <= set(dir(Proxy))


def test_endpoints_bodies_and_options_are_the_true_ones():
    paths = {route.path.replace("{id}", "ID") for route in application(FAKE).routes}
    told = set(re.findall(r"`(?:POST|GET) (/[\w/]+)", GUIDE))
    assert told == {"/episodes", "/episodes/ID/reward", "/train", "/status", "/finish"}
    assert told <= paths
    assert "/episodes/ID/v1/chat/completions" in paths
    for model in (BeginBody, RewardBody, TrainBody):
        for key in model.model_fields:
            assert f'"{key}"' in GUIDE
    assert all(f"`{name}`" in GUIDE for name in SAMPLED_BY)
    defaults = {name: given.default for name, given in inspect.signature(proxy).parameters.items()}
    assert (defaults["port"], defaults["patience"]) == (8700, 600.0)


class FAKE:
    register = worker = None
