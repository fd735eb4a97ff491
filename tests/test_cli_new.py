"""`renshu new` writes a folder that runs as it is, in English and Chinese; `renshu schema` fits recipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from renshu.check.cases import read_cases, require_cases
from renshu.cli import main
from renshu.config import load_yaml
from renshu.envs import call, check_env, play_through, say
from renshu.errors import ConfigError
from renshu.pipeline.environments import load_environment
from renshu.pipeline.new import class_name, require_name, write_new
from renshu.pipeline.recipe import built_in_recipes, find_recipe, read_recipe, recipe_name
from renshu.pipeline.schema import recipe_schema
from renshu.pipeline.train import train_recipe
from tiny_models import qwen_template, save_tiny_model

NAMES = {"en": "order_desk", "zh": "订单"}
FILES = ["README.md", "cases.yaml", "{name}.py", "recipe.schema.json", "recipe.yaml", "test_{name}.py"]


@pytest.fixture(scope="module", params=["en", "zh"])
def made(request, tmp_path_factory):
    """Folder, name and environment of a new project."""
    name = NAMES[request.param]
    folder = write_new(name, tmp_path_factory.mktemp("new") / "deep", request.param)
    environment = load_environment(read_recipe(str(folder / "recipe.yaml")).env, folder)
    return folder, name, environment


def test_the_files_are_there_and_name_the_environment(made):
    folder, name, environment = made
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(f.format(name=name) for f in FILES)
    assert environment.__name__ == class_name(name)
    for path in folder.iterdir():
        assert b"\r" not in path.read_bytes()
        assert "${" not in path.read_text("utf-8")


def test_the_environment_keeps_its_contract_and_is_hard_to_cheat(made):
    _, _, environment = made
    assert check_env(environment) == []
    task = environment.tasks.test[0]
    gold = play_through(environment(), task).score
    assert (gold.success, gold.value, gold.parts) == (True, 1.1, {"right_day": 1.0, "well_formed": 1.0})
    careless = environment()
    hurried = play_through(careless, task, careless.hurried()).score
    assert (hurried.success, hurried.value) == (False, 0.1)
    every_day = " ".join(f"{year}-{month:02d}-05" for year in (2026, 2027, 2028) for month in range(1, 13))
    for answer in ("", every_day, f"{task['arrival']} 2026-01-01", task["order"]):
        assert play_through(environment(), task, [say(answer)]).score.success is False
    stranger = play_through(environment(), task, [call("find_order", customer="Zed"), say("")])
    assert stranger.counts["tool_errors"] == 1


def test_the_cases_hold_and_the_recipe_names_them(made):
    folder, _, environment = made
    assert read_recipe(str(folder / "recipe.yaml")).checks.must_pass == "cases.yaml"
    results = require_cases(environment, read_cases(folder / "cases.yaml"))
    assert [(result.success, result.reward) for result in results] == [
        (True, 1.1),
        (False, 0.0),
        (False, 0.0),
    ]


def test_prompts_and_docs_are_in_the_language(made):
    folder, name, environment = made
    task = environment.tasks.train[0]
    told = environment().opening(task)[-1].content + environment.system
    find, track = environment().tools()
    properties = find.schema["function"]["parameters"]["properties"]
    if name == NAMES["zh"]:
        assert "包裹" in told
        assert (find.description, properties["customer"]["description"]) == ("查顾客的订单号。", "顾客")
        assert track.schema["function"]["parameters"]["properties"]["order"]["description"] == "订单号"
    else:
        assert told.isascii()
        assert (find.description, properties["customer"]["description"]) == (
            "Order of a customer.",
            "first and last name",
        )
    assert f"renshu train {name}/recipe.yaml" in (folder / "README.md").read_text("utf-8")


def test_its_own_test_passes(made):
    folder, _, _ = made
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", folder.name]
    done = subprocess.run(
        command,
        cwd=folder.parent,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_the_recipe_trains(made, tmp_path):
    folder, _, _ = made
    model = save_tiny_model(tmp_path / "model", template=qwen_template())
    small = ["stages.0.sft.demonstrations=4", "stages.0.sft.epochs=1", "stages.1.grpo.steps=1"]
    small += ["stages.1.grpo.group=2", "stages.1.grpo.tasks_per_step=1", "stages.1.sample={max_tokens: 4}"]
    small += [
        "eval={tasks: 2, dev_tasks: 1, max_tokens: 4}",
        f"model.name={model}",
        f"out={tmp_path / 'run'}",
    ]
    run = train_recipe(read_recipe(str(folder / "recipe.yaml"), small), name="recipe", base=folder)
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert [stage["name"] for stage in summary["stages"]] == ["warm-up", "practice"]


def test_what_is_there_is_never_overwritten(tmp_path):
    write_new("desk", tmp_path)
    (tmp_path / "desk" / "recipe.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="there already and is never overwritten"):
        write_new("desk", tmp_path)
    assert (tmp_path / "desk" / "recipe.yaml").read_text("utf-8") == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        write_new("desk", tmp_path / "file")


def test_a_disk_that_fills_leaves_nothing(tmp_path, monkeypatch):
    real = Path.write_text

    def full(path, *arguments, **options):
        if path.name == "recipe.yaml":
            raise OSError(28, "No space left on device")
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_new("desk", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my-desk", "e.g. my_desk"),
        ("2fast", "e.g. order_desk"),
        ("a/b", "e.g. a_b"),
        ("../up", "e.g. up"),
        ("class", "e.g. order_desk"),
        ("", "e.g. order_desk"),
        ("_x", "e.g. x"),
        ("\ufb01le", "is read by Python as 'file'"),
        ("cafe\u0301", "is read by Python as 'caf\u00e9'"),
        ("json", "the name of a module that Python loads"),
        ("renshu", "the name of a module that Python loads"),
    ],
)
def test_names_that_cannot_be(name, told):
    with pytest.raises(ConfigError) as error:
        require_name(name)
    assert told in str(error.value)


def test_class_names():
    names = [class_name(name) for name in ("order_desk", "orders", "Orders2", "tasks", "none", "订单")]
    assert names == ["OrderDesk", "Orders", "Orders2", "TasksEnvironment", "NoneEnvironment", "订单"]


def test_an_environment_called_like_a_name_it_uses_still_loads(tmp_path):
    folder = write_new("environment", tmp_path)
    assert check_env(load_environment("environment.py:EnvironmentEnvironment", folder)) == []


def test_the_verb_says_what_comes_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["renshu", "new", "desk", "--language", "zh"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    out = capsys.readouterr().out.replace("\\", "/").splitlines()
    assert out[-3:] == [
        "  renshu play desk/recipe.yaml",
        "  renshu check desk/recipe.yaml",
        "  renshu train desk/recipe.yaml",
    ]
    monkeypatch.setattr(sys, "argv", ["renshu", "new", "other", "--language", "fr"])
    with pytest.raises(SystemExit):
        main()
    assert "expected one of en, zh" in capsys.readouterr().err


SCHEMA = recipe_schema()


@pytest.mark.parametrize("name", built_in_recipes())
def test_the_schema_takes_the_built_in_recipes(name):
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(load_yaml(find_recipe(name)), SCHEMA)


def test_the_schema_of_a_new_folder_takes_its_recipe(made):
    folder, _, _ = made
    text = (folder / "recipe.yaml").read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    assert json.loads((folder / "recipe.schema.json").read_text("utf-8")) == SCHEMA
    jsonschema.validate(load_yaml(folder / "recipe.yaml"), SCHEMA)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"sead": 1}, []),
        ({"model": {"name": "embedded", "adapter": "loha"}}, ["model", "adapter"]),
        ({"stages": []}, ["stages"]),
        ({"stages": [{"name": "a", "sft": {"epoch": 1}}]}, ["stages", 0, "sft"]),
        ({"seed": -1}, ["seed"]),
    ],
)
def test_the_schema_refuses_what_a_recipe_may_not_say(change, path):
    recipe = {"env": "flights", "stages": [{"name": "a", "sft": {}}]}
    good = {"model": {"adapter": "lora"}, "presets": {"gpu": {"model.name": "x"}}}
    jsonschema.validate(recipe | good, SCHEMA)
    (error,) = jsonschema.Draft7Validator(SCHEMA).iter_errors(recipe | change)
    assert list(error.absolute_path) == path


def test_schema_is_printed_as_json(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["renshu", "schema"])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_shells_complete_verbs():
    environment = {**os.environ, "_RENSHU_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    command = [Path(sys.executable).parent / "renshu"]
    done = subprocess.run(
        command, env={**environment, "COMP_WORDS": "renshu sch"}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["schema"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("desk/recipe.yaml", "desk"),
        ("desk/hard.yaml", "hard"),
        ("desk/recipe.resolved.yaml", "recipe.resolved"),
    ],
)
def test_a_recipe_called_just_recipe_is_named_after_its_folder(tmp_path, monkeypatch, file, name):
    assert recipe_name(tmp_path / file) == name
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    assert recipe_name(Path(file).relative_to("desk")) == name
